// Package results answers what became of submitted calls: it records each
// call's end once, in the bucket toolbus_results, for as long as it is kept, and
// lets agents wait for it.
package results

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
	"github.com/toolbus/toolbus/services/state/internal/opstats"
)

// Submits is where submitted calls wait; *submits.Submits.
type Submits interface {
	// Consumer makes the durable consumer of a tool.
	Consumer(ctx context.Context, tool string) (message.SubmitsConsumer, error)
	// Waiting tells whether an agent has submitted calls that have not ended.
	Waiting(ctx context.Context, tenant, agent string) (bool, error)
	// Walk hands the calls that have not ended to visit, oldest first; agent may be "*".
	Walk(ctx context.Context, tenant, agent string, from uint64, visit func(*jetstream.RawStreamMsg) bool) error
	// Submit stores a call again.
	Submit(ctx context.Context, tenant, agent, tool, callID string, body []byte) error
}

// Limits bound results and those who wait for them.
type Limits struct {
	Keep     time.Duration // how long a result is kept
	KeepDead time.Duration // how long a submitted call is kept that could not be served
	Waiters  int           // requests that wait at once; more are overloaded
}

// maxWait is the longest a request may wait.
const maxWait = 60 * time.Second

const ioTimeout = 3 * time.Second

// Handler answers requests on result.<tenant>.<agent>.<op>,
// result._all.consumer.<tool> and agent.<tenant>.<agent>.result.<callId>.
type Handler struct {
	nc      *nats.Conn
	bucket  *bucket.Bucket
	claims  *claims
	submits Submits
	limits  Limits
	waiters *waiters
	cancels *nats.Subscription
	stats   *opstats.Stats
}

// Open makes the buckets and a Handler on them.
// Close it before nc.
func Open(ctx context.Context, js jetstream.JetStream, replicas int, limits Limits, submits Submits, stats *opstats.Stats, log telemetry.Logger) (*Handler, error) {
	cfg := jet.BucketStream(subject.BucketResults, replicas)
	cfg.Description = "Ends of submitted calls"
	cfg.Duplicates = time.Second // no publish carries a message id
	// No markers of what has expired: nobody watches for it, and a first write
	// after it must find nothing.
	cfg.RePublish = &jetstream.RePublish{
		Source:      jet.KVSubject(subject.BucketResults, "*.*.*"),
		Destination: subject.ChangesResult("{{wildcard(1)}}", "{{wildcard(2)}}", "{{wildcard(3)}}"),
		HeadersOnly: true,
	}
	b, err := bucket.Open(ctx, js, subject.BucketResults, cfg)
	if err != nil {
		return nil, err
	}
	c, err := openClaims(ctx, js, replicas)
	if err != nil {
		return nil, err
	}
	h := &Handler{nc: js.Conn(), bucket: b, claims: c, submits: submits, limits: limits, stats: stats}
	if h.waiters, err = newWaiters(h.nc, limits.Waiters, h.look, log); err != nil {
		return nil, err
	}
	if h.cancels, err = h.nc.QueueSubscribe(subject.AgentCancel("*", "*", "*"), "state-cancels", h.hearCancel); err != nil {
		h.waiters.close()
		return nil, err
	}
	return h, nil
}

// Close answers those who wait with what is known, and returns when nothing
// runs any more.
func (h *Handler) Close() {
	_ = h.cancels.Unsubscribe() // an error means that the connection is gone
	h.waiters.close()
}

// record is what is stored: a message.ResultReply, with what the worker sent as
// it came.
type record struct {
	CallID    string          `json:"callId"`
	State     string          `json:"state"`
	Tool      string          `json:"tool"`
	Reply     json.RawMessage `json:"reply,omitempty"`
	ReplyBlob json.RawMessage `json:"replyBlob,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// ServeWorker answers one request of a worker.
func (h *Handler) ServeWorker(ctx context.Context, in *bus.Incoming) (any, error) {
	tenant, agent, op, tool, err := subject.ParseResult(in.Subject)
	if err != nil {
		return nil, err
	}
	if tool != "" {
		return h.count("consumer", func() (any, error) { return h.submits.Consumer(ctx, tool) })
	}
	switch op {
	case "claim":
		return h.count(op, func() (any, error) { return h.claim(ctx, tenant, agent, in) })
	case "complete":
		return h.count(op, func() (any, error) { return h.complete(ctx, tenant, agent, in) })
	case "settle":
		return h.count(op, func() (any, error) { return h.settle(ctx, tenant, agent, in) })
	case "get":
		return h.count(op, func() (any, error) {
			var req message.ResultGet
			if err := in.Decode(&req); err != nil {
				return nil, err
			}
			return h.get(ctx, call{tenant, agent, req.CallID}, req.WaitMs, in)
		})
	}
	return nil, errcode.Field("op", "%.64q is not an operation on results", op)
}

// ServeAgent answers an agent that asks for one of its results.
func (h *Handler) ServeAgent(ctx context.Context, in *bus.Incoming) (any, error) {
	a, err := subject.ParseAgent(in.Subject)
	if err != nil {
		return nil, err
	}
	return h.count("result", func() (any, error) {
		var req message.ResultRequest
		if err := in.Decode(&req); err != nil {
			return nil, err
		}
		return h.get(ctx, call{a.Tenant, a.Agent, a.ID}, req.WaitMs, in)
	})
}

func (h *Handler) count(op string, f func() (any, error)) (any, error) {
	v, err := f()
	h.stats.Count("result."+op, err)
	return v, err
}

// claim lets a worker run a call that nobody runs and that has not ended.
func (h *Handler) claim(ctx context.Context, tenant, agent string, in *bus.Incoming) (any, error) {
	var req message.ResultClaim
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	if err := subject.CheckName("callId", req.CallID); err != nil {
		return nil, err
	}
	if err := subject.CheckName("runId", req.RunID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	out, err := h.claimRun(ctx, tenant, agent, req)
	if err != nil {
		return nil, unavailable(err)
	}
	return out, nil
}

// complete records a call's end, unless one is recorded.
func (h *Handler) complete(ctx context.Context, tenant, agent string, in *bus.Incoming) (any, error) {
	r, extra, err := decodeEnd(in)
	if err != nil {
		return nil, err
	}
	body, err := message.Marshal(r)
	if err == nil {
		err = h.fits(body)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	key := subject.ResultKey(tenant, agent, r.CallID)
	if extra.Keyed != nil {
		if err := checkKeyed(r.Tool, extra.Keyed); err != nil {
			return nil, err
		}
		key = keyedKey(tenant, agent, r.Tool, extra.Keyed)
	}
	recorded, err := h.completeRun(ctx, key, r, extra.Fence)
	if err != nil {
		return nil, unavailable(err)
	}
	return message.ResultCompleted{Recorded: recorded}, nil
}

// fits refuses what is too large for a message.
func (h *Handler) fits(body []byte) error {
	if limit, actual := bus.MaxBody(h.nc), int64(len(body)); actual > limit {
		return errcode.OverLimit(errcode.TooLarge, limit, actual, "the result has %d bytes, at most %d fit a message: spill the reply", actual, limit)
	}
	return nil
}

// decodeEnd reads a message.ResultComplete and checks it.
func decodeEnd(in *bus.Incoming) (record, endExtra, error) {
	var whole struct {
		record
		endExtra
	}
	if !utf8.Valid(in.Data) {
		return whole.record, whole.endExtra, errcode.New(errcode.InvalidRequest, "the body is not valid UTF-8")
	}
	if err := in.Decode(&whole); err != nil {
		return whole.record, whole.endExtra, err
	}
	r, err := checkEnd(whole.record)
	return r, whole.endExtra, err
}

// endExtra is what a message.ResultComplete says beside the end.
type endExtra struct {
	Fence uint64             `json:"fence"`
	Keyed *message.KeyedCall `json:"keyed"`
}

func checkEnd(r record) (record, error) {
	r.State = message.ResultDone
	if err := subject.CheckName("callId", r.CallID); err != nil {
		return r, err
	}
	if err := subject.CheckName("tool", r.Tool); err != nil {
		return r, err
	}
	ends := 0
	for _, e := range []struct {
		field string
		raw   *json.RawMessage
		into  any
	}{{"reply", &r.Reply, new(message.CallReply)}, {"replyBlob", &r.ReplyBlob, new(message.Blob)}, {"error", &r.Error, new(errcode.Error)}} {
		if string(*e.raw) == "null" {
			*e.raw = nil
		}
		if len(*e.raw) == 0 {
			continue
		}
		ends++
		if err := bus.DecodeBody(*e.raw, e.into); err != nil {
			return r, errcode.Field(e.field, "is not readable: %v", err)
		}
	}
	if ends != 1 {
		return r, errcode.Field("reply", "exactly one of reply, replyBlob and error is needed, not %d", ends)
	}
	return r, nil
}

// get answers with the end of a call, at once or when it is there.
func (h *Handler) get(ctx context.Context, c call, waitMs int64, in *bus.Incoming) (any, error) {
	if err := subject.CheckName("callId", c.id); err != nil {
		return nil, err
	}
	wait := time.Duration(waitMs) * time.Millisecond
	if waitMs < 0 || waitMs > maxWait.Milliseconds() {
		return nil, errcode.Field("waitMs", "must be 0 to %d", maxWait.Milliseconds())
	}
	if wait == 0 {
		v, _, err := h.look(ctx, c, true)
		return v, err
	}
	w, err := h.waiters.enter(c, wait, in.Reply)
	if err != nil {
		return nil, err
	}
	// From here on an event finds the waiter, so this look misses nothing.
	v, done, err := h.look(ctx, c, false)
	if (done || err != nil) && h.waiters.leave(w) {
		return v, err
	}
	return bus.NoReply, nil
}

// look finds what is known of a call: its end, that it may be under way, or,
// when sure is set, not_found if it cannot be.
func (h *Handler) look(ctx context.Context, c call, sure bool) (reply any, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	if reply, done, err = h.end(ctx, c); done || err != nil || !sure {
		return reply, done, err
	}
	waiting, err := h.submits.Waiting(ctx, c.tenant, c.agent)
	if err != nil {
		return nil, false, err
	}
	if waiting {
		return message.ResultReply{CallID: c.id, State: message.ResultPending}, false, nil
	}
	// A worker records the end before it takes the call off the stream: it may
	// have ended between the two questions, but not before both.
	if reply, done, err = h.end(ctx, c); done || err != nil {
		return reply, done, err
	}
	return nil, false, errcode.New(errcode.NotFound, "no result and no submitted call %q", c.id)
}

func (h *Handler) end(ctx context.Context, c call) (reply any, done bool, err error) {
	m, err := h.bucket.Last(ctx, subject.ResultKey(c.tenant, c.agent, c.id))
	switch {
	case err != nil:
		return nil, false, unavailable(err)
	case m.Seq == 0 || m.Marker:
		return nil, false, nil
	}
	var r record // without what is nobody's business
	if err := json.Unmarshal(m.Data, &r); err != nil || r.State != message.ResultDone {
		return nil, false, err
	}
	return r, true, nil
}

func unavailable(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errcode.Wrap(errcode.Unavailable, err, "JetStream does not answer")
	}
	return err
}
