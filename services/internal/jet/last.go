package jet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// The server answers for at most 1,024 subjects at a time, and a request must
// fit a message.
const (
	lastSubjects = 1000
	lastBytes    = 128 << 10 // of subjects in one request; less where messages are small
	lastTries    = 3
)

// lastTimeout limits a Last whose context has no deadline.
const lastTimeout = 10 * time.Second

// Last returns the last message of each subject that matches a filter, in the
// order of the stream, without a consumer. It returns all or an error, never a
// part. Replicas may answer a little behind the leader.
//
// Up to 1,024 subjects are one consistent snapshot; more are read in portions.
func Last(ctx context.Context, js jetstream.JetStream, stream string, filters ...string) ([]*jetstream.RawStreamMsg, error) {
	if len(filters) == 0 {
		return nil, nil
	}
	ctx, cancel := withTimeout(ctx, lastTimeout)
	defer cancel()
	out, err := lastOf(ctx, js, stream, filters)
	if !errors.Is(err, errTooMany) {
		return out, lastError(err)
	}
	subjects, err := subjectsOf(ctx, js, stream, filters)
	if err != nil {
		return nil, lastError(err)
	}
	out = nil
	for part := range portions(subjects, int(min(lastBytes, js.Conn().MaxPayload()/2))) {
		msgs, err := lastOf(ctx, js, stream, part)
		if err != nil {
			return nil, lastError(err)
		}
		out = append(out, msgs...)
	}
	slices.SortFunc(out, func(a, b *jetstream.RawStreamMsg) int { return int(int64(a.Sequence) - int64(b.Sequence)) })
	return out, nil
}

var (
	errTooMany = errors.New("too many subjects for one request")
	errVanish  = errors.New("a message was removed while it was read")
)

func lastError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
}

// subjectsOf asks the stream's leader which subjects match.
func subjectsOf(ctx context.Context, js jetstream.JetStream, stream string, filters []string) ([]string, error) {
	st, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	seen := map[string]struct{}{}
	for _, f := range filters {
		info, err := st.Info(ctx, jetstream.WithSubjectFilter(f))
		if err != nil {
			return nil, err
		}
		for s := range info.State.Subjects {
			seen[s] = struct{}{}
		}
	}
	subjects := make([]string, 0, len(seen))
	for s := range seen {
		subjects = append(subjects, s)
	}
	slices.Sort(subjects)
	return subjects, nil
}

// portions cuts subjects into lists that fit one request, of at most room bytes,
// and one answer.
func portions(subjects []string, room int) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		start, size := 0, 0
		for i, s := range subjects {
			if i > start && (i-start == lastSubjects || size+len(s) > room) {
				if !yield(subjects[start:i]) {
					return
				}
				start, size = i, 0
			}
			size += len(s)
		}
		if start < len(subjects) {
			yield(subjects[start:])
		}
	}
}

// lastOf is one snapshot of at most 1,024 subjects; the server may cut it into
// several answers by size.
func lastOf(ctx context.Context, js jetstream.JetStream, stream string, filters []string) ([]*jetstream.RawStreamMsg, error) {
	var err error
	for range lastTries {
		var out []*jetstream.RawStreamMsg
		req := multiLast{Subjects: filters}
		for {
			var end snapshotEnd
			if end, err = snapshot(ctx, js, stream, req, &out); err != nil || end.pending == 0 {
				break
			}
			req.From, req.UpTo = end.last+1, end.upTo
		}
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, errVanish) {
			return nil, err
		}
	}
	return nil, err
}

type multiLast struct {
	Subjects []string `json:"multi_last"`
	From     uint64   `json:"seq,omitempty"`
	UpTo     uint64   `json:"up_to_seq,omitempty"`
}

type snapshotEnd struct{ pending, last, upTo uint64 }

// snapshot makes one direct get and appends what comes to out, until the
// server says that this was all.
func snapshot(ctx context.Context, js jetstream.JetStream, stream string, req multiLast, out *[]*jetstream.RawStreamMsg) (snapshotEnd, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return snapshotEnd{}, err
	}
	nc := js.Conn()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return snapshotEnd{}, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(-1, -1); err != nil { // at most what one answer holds
		return snapshotEnd{}, err
	}
	if err := nc.PublishRequest(directGet(js.Options(), stream), inbox, body); err != nil {
		return snapshotEnd{}, err
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return snapshotEnd{}, err
		}
		h := m.Header
		if h.Get(jetstream.SequenceHeader) != "" {
			raw, err := stored(m)
			if err != nil {
				return snapshotEnd{}, err
			}
			*out = append(*out, raw)
			continue
		}
		status, text := h.Get("Status"), h.Get("Description")
		switch {
		case status == "204":
			return snapshotEnd{
				pending: number(h, "Nats-Num-Pending"), last: number(h, "Nats-Last-Sequence"), upTo: number(h, "Nats-UpTo-Sequence"),
			}, nil
		case status == "404" && text == "Message Not Found":
			return snapshotEnd{}, errVanish
		case status == "404":
			return snapshotEnd{}, nil
		case status == "413":
			return snapshotEnd{}, errTooMany
		case status == "503":
			return snapshotEnd{}, nats.ErrNoResponders
		}
		return snapshotEnd{}, fmt.Errorf("stream %s: unexpected answer %s %s", stream, status, text)
	}
}

func stored(m *nats.Msg) (*jetstream.RawStreamMsg, error) {
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return nil, err
	}
	return &jetstream.RawStreamMsg{Subject: m.Header.Get(jetstream.SubjectHeader), Sequence: seq, Header: m.Header, Data: m.Data, Time: at}, nil
}

func number(h nats.Header, name string) uint64 {
	n, _ := strconv.ParseUint(h.Get(name), 10, 64)
	return n
}

func directGet(o jetstream.JetStreamOptions, stream string) string {
	return apiPrefix(o) + "DIRECT.GET." + stream
}

func apiPrefix(o jetstream.JetStreamOptions) string {
	switch {
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	}
	return "$JS.API."
}

// LastDirect returns the last message of a subject; jetstream.ErrMsgNotFound
// when there is none. The stream must allow direct gets. Replicas may answer a
// little behind the leader; a stream without them answers with what was last
// when the request arrived. It is nats.go's GetLastMsgForSubject for hot paths.
func LastDirect(ctx context.Context, js jetstream.JetStream, stream, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := js.Conn().RequestWithContext(ctx, directGet(js.Options(), stream)+"."+subject, nil)
	if err != nil {
		return nil, err
	}
	if m.Header.Get(jetstream.SequenceHeader) != "" {
		return stored(m)
	}
	status, text := m.Header.Get("Status"), m.Header.Get("Description")
	if status == "404" {
		return nil, jetstream.ErrMsgNotFound
	}
	return nil, fmt.Errorf("stream %s: unexpected answer %s %s", stream, status, text)
}

// LastFromLeader returns the last message of a subject as the stream's leader
// has it; jetstream.ErrMsgNotFound when there is none. It is the request that
// nats.go makes only for streams without direct gets, which followers answer
// too and may be behind.
func LastFromLeader(ctx context.Context, js jetstream.JetStream, stream, subject string) (*jetstream.RawStreamMsg, error) {
	req, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, err
	}
	reply, err := js.Conn().RequestWithContext(ctx, apiPrefix(js.Options())+"STREAM.MSG.GET."+stream, req)
	if err != nil {
		return nil, err
	}
	var resp struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &resp); err != nil {
		return nil, fmt.Errorf("unreadable message: %w", err)
	}
	switch {
	case resp.Error != nil && resp.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, jetstream.ErrMsgNotFound
	case resp.Error != nil:
		return nil, resp.Error
	case resp.Message == nil:
		return nil, errors.New("a reply without a message")
	}
	m := resp.Message
	raw := &jetstream.RawStreamMsg{Subject: m.Subject, Sequence: m.Seq, Data: m.Data, Time: m.Time}
	if len(m.Header) > 0 {
		if raw.Header, err = nats.DecodeHeadersMsg(m.Header); err != nil {
			return nil, fmt.Errorf("unreadable headers: %w", err)
		}
	}
	return raw, nil
}

func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}
