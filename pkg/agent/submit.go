package agent

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/results"
)

const (
	// submitTimeout limits the wait for a submit's acknowledgement when ctx has
	// no deadline.
	submitTimeout = 5 * time.Second
	// maxWait is how long a Wait waits at a stretch.
	maxWait = 30 * time.Second
)

// Submit hands a call over and returns as soon as it is stored: it then runs
// also when this process ends, and when no worker hosts the tool yet. Its
// result is kept for Result and Wait under the returned call id.
//
// unavailable means that the call is not known to be stored: submit it again
// with the same CallID: what was submitted twice runs once. Whether the tool is granted and the
// arguments fit is found out when the call runs: such errors are its result.
//
// Chat, CallID and Timeout (of the run, from its start) apply.
func (c *Client) Submit(ctx context.Context, tool string, arguments any, opts ...Option) (callID string, err error) {
	o := options{req: message.CallRequest{CallID: uuid.NewString()}}
	for _, f := range opts {
		f(&o)
	}
	callID = o.req.CallID
	if err := c.check(tool, &o); err != nil {
		return callID, err
	}
	if o.req.Arguments, err = encode(arguments); err != nil {
		return callID, err
	}
	o.req.TimeoutMs = o.timeout.Milliseconds()
	if o.timeout > 0 {
		o.req.TimeoutMs = max(o.req.TimeoutMs, 1)
	}
	m, err := bus.NewMsg(subject.AgentSubmit(c.tenant, c.agent, tool), o.req)
	if err != nil {
		return callID, err
	}
	if err := c.spill().Out(ctx, c.nc, m); err != nil {
		return callID, err
	}
	m.Header.Set(message.HeaderCallID, callID)
	return callID, c.publish(ctx, m)
}

func (c *Client) spill() bus.Spill {
	return bus.Spill{Family: subject.FamilyAgent, Tenant: c.tenant, Agent: c.agent}
}

// publish waits for the stream's acknowledgement.
func (c *Client) publish(ctx context.Context, m *nats.Msg) error {
	wait := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, submitTimeout)
		defer cancel()
	}
	reply, err := bus.RequestMsg(wait, c.nc, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return errcode.Wrap(errcode.Unavailable, err, "nobody stores submitted calls now")
	case errors.Is(err, errcode.Timeout) && ctx.Err() == nil:
		return errcode.Wrap(errcode.Unavailable, err, "the submit was not acknowledged in time")
	case err != nil:
		return err
	}
	var ack struct {
		Stream string `json:"stream"`
		Error  *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(reply.Data, &ack); {
	case err != nil || ack.Stream == "" && ack.Error == nil:
		return errcode.New(errcode.Unavailable, "the submit got an unreadable acknowledgement")
	case ack.Error != nil:
		return errcode.New(errcode.Unavailable, "the submit was not stored: %s", ack.Error.Description)
	}
	return nil
}

// Result asks how a submitted call ended, and waits up to wait when it has not.
// State says whether it has; then Reply or Error is set: Error is the error
// object of a call that could not be served. not_found is a call that was never
// submitted, or whose result is no longer kept; while the agent has submitted
// calls that have not ended, such a call is pending too.
func (c *Client) Result(ctx context.Context, callID string, wait time.Duration) (message.ResultReply, error) {
	if wait < 0 {
		return message.ResultReply{}, errcode.Field("wait", "must not be negative")
	}
	r, err := results.NewReader(c.nc, c.tenant, c.agent).Get(ctx, callID, wait)
	if err == nil && r.Reply != nil && r.Reply.Success && r.Reply.Content == "" {
		r.Reply.Content = string(r.Reply.Data) // said once when large
	}
	return r, err
}

// Wait waits until a submitted call has ended, or ctx has. It returns what Call
// would have. OnProgress applies: what the tool reports from now on.
func (c *Client) Wait(ctx context.Context, callID string, opts ...Option) (message.CallReply, error) {
	o := options{req: message.CallRequest{CallID: callID}}
	for _, f := range opts {
		f(&o)
	}
	o.req.CallID = callID
	if o.progress != nil {
		if err := subject.CheckName("callId", callID); err != nil {
			return message.CallReply{}, err
		}
		if _, err := c.enter(o); err != nil {
			return message.CallReply{}, err
		}
		defer c.leave(callID)
	}
	for {
		wait := maxWait
		if d, ok := ctx.Deadline(); ok {
			wait = max(min(wait, time.Until(d)), time.Millisecond)
		}
		r, err := c.Result(ctx, callID, wait)
		switch {
		case err == nil && r.State == message.ResultDone:
			return results.Ending(r)
		case ctx.Err() != nil:
			return message.CallReply{}, errcode.From(context.Cause(ctx))
		case err != nil && !errcode.From(err).Retryable:
			return message.CallReply{}, err
		}
	}
}

// Cancel ends a running call of this agent, called or submitted, wherever it
// runs: its end is then cancelled. One that has ended, or waits for a worker,
// is not changed.
func (c *Client) Cancel(ctx context.Context, callID string) error {
	if err := subject.CheckName("callId", callID); err != nil {
		return err
	}
	if err := c.nc.Publish(subject.AgentCancel(c.tenant, c.agent, callID), nil); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "cancel %s: %v", callID, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, submitTimeout)
		defer done()
	}
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "cancel %s: %v", callID, err)
	}
	return nil
}
