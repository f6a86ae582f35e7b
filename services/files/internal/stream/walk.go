package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Stop ends a walk early, without an error.
var Stop = errors.New("stop")

const (
	walkBatch = 512     // messages asked for at once
	walkBytes = 4 << 20 // bytes asked for at once
)

// Walk hands the messages of a subject (which may have wildcards) from sequence
// from on to fn, in order, until there are no more or fn returns an error; Stop
// ends it without one. hint is the number of bytes the caller wants, 0 for all.
// Any replica may answer: a message stored a moment ago may be missing.
//
// A walk that the server cut short is an error, never a short walk.
func (r Reader) Walk(ctx context.Context, subject string, from uint64, hint int64, fn func(Msg) error) error {
	for {
		next, more, err := r.batch(ctx, subject, max(from, 1), hint, fn)
		switch {
		case errors.Is(err, Stop):
			return nil
		case err != nil:
			return err
		case !more:
			return nil
		}
		from = next
	}
}

func (r Reader) batch(ctx context.Context, subject string, from uint64, hint int64, fn func(Msg) error) (next uint64, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// An inbox of its own: one under the connection's response inbox would be
	// delivered twice. A channel, since what waits for a message in nats.go
	// believes any status.
	inbox := r.Conn.NewInbox()
	msgs := make(chan *nats.Msg, 2*walkBatch)
	sub, err := r.Conn.ChanSubscribe(inbox, msgs)
	if err != nil {
		return 0, false, requestError(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	bytes := int64(walkBytes)
	if hint > 0 {
		bytes = min(bytes, hint)
	}
	body := fmt.Appendf(nil, `{"next_by_subj":%q,"seq":%d,"batch":%d,"max_bytes":%d}`, subject, from, walkBatch, bytes)
	if err := r.Conn.PublishRequest("$JS.API.DIRECT.GET."+r.Name, inbox, body); err != nil {
		return 0, false, requestError(err)
	}
	for {
		var m *nats.Msg
		select {
		case m = <-msgs:
		case <-ctx.Done():
			return 0, false, requestError(ctx.Err())
		}
		if last(m.Header, "Nats-Sequence") == "" { // no stored message
			switch status := m.Header.Get("Status"); status {
			case "204":
				left, err := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
				if err != nil {
					return 0, false, errcode.Wrap(errcode.Internal, err, "unreadable answer of JetStream")
				}
				return next, left > 0 && next > 0, nil
			case "404":
				return 0, false, nil
			case "503":
				return 0, false, r.absent(ctx)
			}
		}
		msg, err := decode(m)
		if err != nil {
			return 0, false, err
		}
		next = msg.Seq + 1
		if err := fn(msg); err != nil {
			return 0, false, err
		}
	}
}

// Send has the messages of a subject, from sequence from on, sent to another
// inbox: at most count messages of about bytes in all, then a status. It does not
// wait, and nobody says whether they arrive.
func (r Reader) Send(to, subject string, from uint64, count int, bytes int64) error {
	body := fmt.Appendf(nil, `{"next_by_subj":%q,"seq":%d,"batch":%d,"max_bytes":%d}`, subject, max(from, 1), count, bytes)
	if err := r.Conn.PublishRequest("$JS.API.DIRECT.GET."+r.Name, to, body); err != nil {
		return requestError(err)
	}
	return nil
}
