// Package results is the client of the results of submitted calls: a Recorder
// for workers, a Reader for agents. It imports no service.
package results

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Reader reads the results of one agent's submitted calls, with the permissions
// of that agent. It is safe for concurrent use. Errors are *errcode.Error.
type Reader struct {
	nc            *nats.Conn
	family        string
	tenant, agent string
}

// NewReader makes a Reader on a connection that stays the caller's.
func NewReader(nc *nats.Conn, tenant, agent string) *Reader {
	return &Reader{nc: nc, family: subject.FamilyAgent, tenant: tenant, agent: agent}
}

// Recorder records the ends of one agent's submitted calls, and reads them, with
// the permissions of a worker.
type Recorder struct{ Reader }

// NewRecorder makes a Recorder on a connection that stays the caller's.
func NewRecorder(nc *nats.Conn, tenant, agent string) *Recorder {
	return &Recorder{Reader{nc: nc, family: subject.FamilyWorker, tenant: tenant, agent: agent}}
}

const (
	longestAsk = 20 * time.Second // one request waits at most so long; the service takes up to a minute
	askGrace   = 4 * time.Second  // for the reply to a request beyond what it waits
)

// Get returns what is known of a call; with wait, it waits that long for the
// call's end. A State of message.ResultPending means that no end is recorded yet
// and calls of the agent are under way; not_found, that none is. A call's end
// that is an error has Error set. A reply of any size comes with Reply set.
//
// While the service is unavailable it is asked again, within wait and ctx.
func (r *Reader) Get(ctx context.Context, callID string, wait time.Duration) (message.ResultReply, error) {
	out, err := r.ask(ctx, callID, wait)
	if err == nil && out.ReplyBlob != nil {
		out, err = r.fetch(ctx, out)
	}
	if c := out.Reply; c != nil && c.Success && c.Content == "" && len(c.Data) > 0 {
		c.Content = string(c.Data)
	}
	return out, err
}

// Resolve is the reply of an end, fetched when it is large; the error is the one that
// the call ended with.
func (r *Reader) Resolve(ctx context.Context, end message.ResultReply) (message.CallReply, error) {
	if end.ReplyBlob != nil {
		var err error
		if end, err = r.fetch(ctx, end); err != nil {
			return message.CallReply{}, err
		}
	}
	return Ending(end)
}

// Ending is how a call ended whose reply is not a blob: its reply, or its error.
func Ending(end message.ResultReply) (message.CallReply, error) {
	switch {
	case len(end.Error) > 0:
		body, err := json.Marshal(struct {
			Error json.RawMessage `json:"error"`
		}{end.Error})
		if err != nil {
			return message.CallReply{}, errcode.Wrap(errcode.Internal, err, "unreadable result: %v", err)
		}
		return message.CallReply{}, errcode.Decode(body, "recorded")
	case end.Reply == nil:
		return message.CallReply{}, errcode.New(errcode.Internal, "the call has ended and its result says nothing")
	}
	if end.Reply.Success && end.Reply.Content == "" {
		end.Reply.Content = string(end.Reply.Data) // said once when large
	}
	return *end.Reply, nil
}

// fetch puts the reply itself in its description's place.
func (r *Reader) fetch(ctx context.Context, out message.ResultReply) (message.ResultReply, error) {
	desc, err := json.Marshal(out.ReplyBlob)
	if err != nil {
		return out, err
	}
	body, err := r.spill().In(ctx, r.nc, nats.Header{message.HeaderBlob: {string(desc)}}, nil)
	if err != nil {
		return out, err
	}
	out.Reply, out.ReplyBlob = new(message.CallReply), nil
	err = bus.DecodeReply(body, out.Reply)
	return out, err
}

func (r *Reader) ask(ctx context.Context, callID string, wait time.Duration) (message.ResultReply, error) {
	var out message.ResultReply
	if err := r.check(callID); err != nil {
		return out, err
	}
	if wait <= 0 {
		to, req := r.request(callID, 0)
		err := bus.Retry(ctx, r.nc, to, req, &out)
		return out, err
	}
	end := time.Now().Add(wait)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		left := max(min(time.Until(end), longestAsk), 0)
		to, req := r.request(callID, left)
		out = message.ResultReply{}
		try, cancel := context.WithTimeout(ctx, left+askGrace)
		err := bus.Request(try, r.nc, to, req, &out)
		cancel()
		over := time.Until(end) <= 0
		switch {
		case err == nil && (out.State == message.ResultDone || over):
			return out, nil
		case err == nil:
			pause = 5 * time.Millisecond // it has waited
			continue
		case ctx.Err() != nil || over || !errcode.From(err).Retryable:
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, err
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

func (r *Reader) check(callID string) error {
	if err := subject.CheckTenant(r.tenant); err != nil {
		return err
	}
	if err := subject.CheckName("agent", r.agent); err != nil {
		return err
	}
	return subject.CheckName("callId", callID)
}

func (r *Reader) request(callID string, wait time.Duration) (to string, req any) {
	if r.family == subject.FamilyWorker {
		return subject.Result(r.tenant, r.agent, "get"), message.ResultGet{CallID: callID, WaitMs: wait.Milliseconds()}
	}
	return subject.AgentResult(r.tenant, r.agent, callID), message.ResultRequest{WaitMs: wait.Milliseconds()}
}

func (r *Reader) spill() bus.Spill {
	return bus.Spill{Family: r.family, Tenant: r.tenant, Agent: r.agent}
}

// Claim asks for the right to run a call, renews it, or gives it back; see
// message.ResultClaim. It tries again while the service is unavailable, within
// ctx (10 s when it has no deadline).
func (r *Recorder) Claim(ctx context.Context, claim message.ResultClaim) (message.ResultClaimed, error) {
	var out message.ResultClaimed
	if err := r.check(claim.CallID); err != nil {
		return out, err
	}
	err := bus.Retry(ctx, r.nc, subject.Result(r.tenant, r.agent, "claim"), claim, &out)
	return out, err
}

// envelope is what a result needs in a message beside its reply.
const envelope = 1 << 10

// Complete records the end of a call and reports whether this end is the one
// that stands: the first one wins, and the same again is that one. Exactly one
// of end's Reply and Error is set. A reply too large for a message is stored
// where large bodies are, which may keep it for less long than the result.
//
// It tries again while the service is unavailable, within ctx (10 s when it has
// no deadline).
func (r *Recorder) Complete(ctx context.Context, end message.ResultComplete) (bool, error) {
	if err := r.check(end.CallID); err != nil {
		return false, err
	}
	if end.Reply != nil {
		m, err := bus.NewMsg("", end.Reply)
		if err != nil {
			return false, err
		}
		if int64(len(m.Data)) > bus.MaxBody(r.nc)-envelope {
			if end.ReplyBlob, err = r.spill().Store(ctx, r.nc, m.Data); err != nil {
				return false, err
			}
			end.Reply = nil
		}
	}
	var out message.ResultCompleted
	err := bus.Retry(ctx, r.nc, subject.Result(r.tenant, r.agent, "complete"), end, &out)
	return out.Recorded, err
}

// Settle has what follows a recorded end happen; see message.ResultSettle.
func (r *Recorder) Settle(ctx context.Context, req message.ResultSettle) error {
	if err := r.check(req.CallID); err != nil {
		return err
	}
	if int64(len(req.Request)) > bus.MaxBody(r.nc)-envelope {
		req.Request = nil // too large to be kept
	}
	return bus.Retry(ctx, r.nc, subject.Result(r.tenant, r.agent, "settle"), req, nil)
}
