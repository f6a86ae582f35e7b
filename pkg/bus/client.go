package bus

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// DefaultTimeout limits a request whose context has no deadline.
const DefaultTimeout = 10 * time.Second

// Request sends in as JSON to subject and decodes the reply into out. An error
// reply comes back as *errcode.Error; no responders is unavailable, no reply in
// time is timeout. out may be nil.
func Request(ctx context.Context, nc *nats.Conn, subject string, in, out any) error {
	return request(ctx, nc, subject, in, out, time.Time{})
}

// request is Request; first is when it was first sent, zero for now.
func request(ctx context.Context, nc *nats.Conn, subject string, in, out any, first time.Time) error {
	msg, err := NewMsg(subject, in)
	if err != nil {
		return err
	}
	if !first.IsZero() {
		msg.Header.Set(message.HeaderRetry, strconv.FormatInt(time.Since(first).Milliseconds()+1, 10))
	}
	reply, err := RequestMsg(ctx, nc, msg)
	if err != nil {
		return err
	}
	return DecodeReply(reply.Data, out)
}

// Retry is Request for requests that may be sent again without harm: reads, and
// writes that carry an opId. It tries again, with jittered backoff and within
// ctx, while the service is unavailable, overloaded, or does not answer within
// a few seconds. The error in the end is what the service last said, if it said
// anything: that it did not answer a later try says less.
func Retry(ctx context.Context, nc *nats.Conn, subject string, in, out any) error {
	begin := time.Now()
	end, ok := ctx.Deadline()
	if !ok {
		end = begin.Add(DefaultTimeout)
	}
	var said error
	first, err := begun(ctx) // when a try was sent that may have been received
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		until := begin.Add(retryAfter)
		if end.Before(until) {
			until = end
		}
		try, done := context.WithDeadline(ctx, until)
		err := request(try, nc, subject, in, out, first)
		done()
		if err == nil || !errcode.From(err).Retryable {
			return err
		}
		if first.IsZero() && !errors.Is(err, nats.ErrNoResponders) {
			first = begin
		}
		if said != nil && errors.Is(err, errcode.Timeout) {
			err = said
		}
		said = err
		pause := min(10*time.Millisecond<<min(attempt, 6), 500*time.Millisecond)
		pause = pause/2 + rand.N(pause)
		if time.Until(end) < pause {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		begin = time.Now()
	}
}

// retryAfter is how long Retry waits for an answer to one try.
const retryAfter = 4 * time.Second

// NewMsg makes a message with in as its JSON body; a json.RawMessage or []byte
// is taken as it is, nil is an empty object.
func NewMsg(subject string, in any) (*nats.Msg, error) {
	var body []byte
	switch v := in.(type) {
	case nil:
		body = []byte("{}")
	case json.RawMessage:
		body = v
	case []byte:
		body = v
	default:
		var err error
		if body, err = message.Marshal(in); err != nil {
			return nil, errcode.Wrap(errcode.InvalidRequest, err, "the request has no JSON form: %v", err)
		}
	}
	m := nats.NewMsg(subject)
	m.Data = body
	return m, nil
}

// A request that met nobody is sent again before that is believed: while
// replicas of a queue group come and go, a server may find that the one it
// chose has just left. Nobody took the request, so this repeats nothing.
const (
	absentTries = 3
	absentPause = 10 * time.Millisecond
)

// RequestMsg sends a request and returns its reply, or the error the reply
// carries.
func RequestMsg(ctx context.Context, nc *nats.Conn, msg *nats.Msg) (*nats.Msg, error) {
	if int64(len(msg.Data)) > MaxBody(nc) {
		limit, actual := MaxBody(nc), int64(len(msg.Data))
		return nil, errcode.OverLimit(errcode.TooLarge, limit, actual, "the request is %d bytes, at most %d are allowed", actual, limit)
	}
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	injectTrace(ctx, msg)
	reply, err := nc.RequestMsgWithContext(ctx, msg)
	for try := 1; errors.Is(err, nats.ErrNoResponders) && try < absentTries; try++ {
		select {
		case <-ctx.Done():
			return nil, requestError(ctx, msg.Subject, err)
		case <-time.After(absentPause):
		}
		reply, err = nc.RequestMsgWithContext(ctx, msg)
	}
	if err != nil {
		return nil, requestError(ctx, msg.Subject, err)
	}
	if err := ReplyError(reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// ReplyError is the error an error reply carries, or nil.
func ReplyError(reply *nats.Msg) error {
	if reply.Header == nil || reply.Header.Get(message.HeaderErrorCode) == "" {
		return nil
	}
	return errcode.Decode(reply.Data, reply.Header.Get(message.HeaderErrorCode)+" "+reply.Header.Get(message.HeaderError))
}

// Replier reads a reply itself, when it has a form that it knows; otherwise it
// returns false and is decoded as JSON.
type Replier interface {
	ReadReply(body []byte) bool
}

// DecodeReply decodes a reply's body.
func DecodeReply(body []byte, out any) error {
	if out == nil {
		return nil
	}
	if r, ok := out.(Replier); ok && r.ReadReply(body) {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return errcode.Wrap(errcode.Internal, err, "unreadable reply: %v", err)
	}
	return nil
}

// MaxBody is the largest body, in bytes, that goes into one message on this
// connection; the rest of max_payload is left for headers.
func MaxBody(nc *nats.Conn) int64 { return max(nc.MaxPayload()-8*1024, 1024) }

// NewOpID makes an id that identifies a mutation across its retries.
func NewOpID() string { return uuid.NewString() }

func withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

func requestError(ctx context.Context, subject string, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return errcode.Wrap(errcode.Unavailable, err, "nobody answers on %s", subject)
	case errors.Is(err, nats.ErrMaxPayload):
		return errcode.Wrap(errcode.TooLarge, err, "the request is larger than the server takes")
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected):
		return errcode.Wrap(errcode.Unavailable, err, "not connected to NATS")
	case errors.Is(err, nats.ErrBadSubject):
		return errcode.Wrap(errcode.InvalidRequest, err, "bad subject %q", subject)
	case errors.Is(err, context.Canceled):
		return errcode.Wrap(errcode.Cancelled, err, "cancelled while waiting for %s", subject)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), ctx.Err() != nil:
		return errcode.Wrap(errcode.Timeout, err, "no reply on %s in time", subject)
	}
	return errcode.Wrap(errcode.Unavailable, err, "request on %s: %v", subject, err)
}

// serverURLs splits a list of server URLs as the NATS client does. An error
// never shows the list: it may hold a password.
func serverURLs(list string) ([]*url.URL, error) {
	var urls []*url.URL
	for p := range strings.SplitSeq(list, ",") {
		p = strings.TrimSpace(p)
		if !strings.Contains(p, "://") {
			p = "nats://" + p
		}
		u, err := url.Parse(p)
		if err != nil || u.Host == "" {
			return nil, errcode.Field("server", "must be one or more NATS URLs, comma-separated")
		}
		urls = append(urls, u)
	}
	return urls, nil
}

// redactURL removes user, password and token from a list of URLs.
func redactURL(list string) string {
	urls, err := serverURLs(list)
	if err != nil {
		return "(unreadable URL)"
	}
	shown := make([]string, len(urls))
	for i, u := range urls {
		if u.User != nil {
			u.User = url.User("redacted")
		}
		shown[i] = u.String()
	}
	return strings.Join(shown, ",")
}
