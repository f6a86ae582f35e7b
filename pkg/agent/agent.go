// Package agent is an agent's side of the bus: which tools it has, calling and
// submitting them, and being woken. A Client speaks for one agent of one tenant
// and is safe for concurrent use; it needs no permission beyond that agent's own
// subjects.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// lostAfter is how long a running call may go without a beat (workers send one
// every second) before its worker counts as lost.
const lostAfter = 5 * time.Second

// beats are the headers that ask for beats. The first may wait as long as the
// next would: most calls are over by then.
var beats = nats.Header{message.HeaderBeats: {"1"}, message.HeaderFirstBeat: {"1000"}}

// Client is an agent on the bus.
type Client struct {
	nc     *nats.Conn
	tenant string
	agent  string
	sub    *nats.Subscription

	mu    sync.Mutex
	calls map[string]*watch // by call id
}

// watch is what a running call hears from its worker.
type watch struct {
	progress func(json.RawMessage)

	mu    sync.Mutex
	quiet *time.Timer // fires when nothing was heard for too long; nil: nobody waits for it
}

// New makes a client. Close it when the agent ends; nc stays open.
func New(nc *nats.Conn, tenant, agent string) (*Client, error) {
	if err := subject.CheckTenant(tenant); err != nil {
		return nil, err
	}
	if err := subject.CheckName("agent", agent); err != nil {
		return nil, err
	}
	c := &Client{nc: nc, tenant: tenant, agent: agent, calls: map[string]*watch{}}
	var err error
	c.sub, err = nc.Subscribe(subject.AgentProgress(tenant, agent, "*"), c.hear)
	if err != nil {
		return nil, errcode.Wrap(errcode.Unavailable, err, "subscribe progress: %v", err)
	}
	return c, nil
}

// Close ends the client. Running calls lose sight of their workers and end as
// worker_lost: finish or cancel them first.
func (c *Client) Close() error {
	if err := c.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	return nil
}

// Tools lists the tools the agent may call now, and those granted to it that no
// worker hosts. An unknown agent is not_found.
func (c *Client) Tools(ctx context.Context) (message.AgentToolsReply, error) {
	var r message.AgentToolsReply
	err := bus.Retry(ctx, c.nc, subject.AgentTools(c.tenant, c.agent), nil, &r)
	return r, err
}

// Option is one choice of a call.
type Option func(*options)

type options struct {
	req      message.CallRequest
	timeout  time.Duration
	progress func(json.RawMessage)
}

// Chat names the conversation; tools that keep ToolState need it.
func Chat(id string) Option { return func(o *options) { o.req.ChatID = id } }

// CallID names the call; unique within the agent. One is made otherwise.
func CallID(id string) Option { return func(o *options) { o.req.CallID = id } }

// IdempotencyKey identifies what the call is to do, within the agent and the tool: calls
// with the same key have one effect and get the first one's result, as long as results
// are kept, also while the first one runs. Use it to call again after an error that is
// retryable. The same key with other arguments or for another chat is a conflict.
//
// When the first one's worker is lost, a tool that is declared idempotent runs again;
// of any other the result is worker_lost from then on.
func IdempotencyKey(key string) Option { return func(o *options) { o.req.IdempotencyKey = key } }

// WakeOnDone has the agent woken when a submitted call has ended, in the call's chat if it
// has one.
func WakeOnDone() Option { return func(o *options) { o.req.WakeOnDone = true } }

// Timeout limits the call; without it, ctx and the tool's own limit do.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// OnProgress receives what the tool reports while it runs, in order. fn must be
// quick.
func OnProgress(fn func(json.RawMessage)) Option { return func(o *options) { o.progress = fn } }

// Call calls a tool and waits for its result. Arguments are any value with a
// JSON object form; nil is none.
//
// A reply with Success false means that the tool ran and failed. An error means
// that it could not be called: not_found (no such agent), not_allowed (not
// granted), unavailable (no worker hosts it), invalid_arguments, timeout,
// cancelled (ctx was), worker_lost (its worker vanished), and so on. When ctx
// ends, the worker is told to stop.
func (c *Client) Call(ctx context.Context, tool string, arguments any, opts ...Option) (message.CallReply, error) {
	o := options{req: message.CallRequest{CallID: uuid.NewString()}}
	for _, f := range opts {
		f(&o)
	}
	if err := c.check(tool, &o); err != nil {
		return message.CallReply{}, err
	}
	var err error
	if o.req.Arguments, err = encode(arguments); err != nil {
		return message.CallReply{}, err
	}
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeout, errcode.New(errcode.Timeout, "%s did not answer within %s", tool, o.timeout))
		defer cancel()
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	w, err := c.enter(o)
	if err != nil {
		return message.CallReply{}, err
	}
	defer c.leave(o.req.CallID)
	watch := func() func() {
		return w.guard(func() {
			lost(errcode.New(errcode.WorkerLost, "the worker that ran %s has not been heard of for %s", tool, lostAfter))
		})
	}
	to := subject.AgentCall(c.tenant, c.agent, tool)
	r, err := bus.CallTool(noDefault{ctx}, c.nc, c.spill(), to, o.req, beats, watch)
	switch {
	case err != nil && ctx.Err() != nil:
		return r, errcode.From(context.Cause(ctx))
	case errors.Is(err, errcode.Unavailable) && errors.Is(err, nats.ErrNoResponders):
		return r, errcode.Wrap(errcode.Unavailable, err, "no worker hosts tool %q now", tool)
	}
	return r, err
}

func (c *Client) check(tool string, o *options) error {
	if err := subject.CheckName("tool", tool); err != nil {
		return err
	}
	if err := subject.CheckName("callId", o.req.CallID); err != nil {
		return err
	}
	if o.req.ChatID != "" {
		if err := subject.CheckFree("chatId", o.req.ChatID); err != nil {
			return err
		}
	}
	if o.req.IdempotencyKey != "" {
		if err := subject.CheckFree("idempotencyKey", o.req.IdempotencyKey); err != nil {
			return err
		}
	}
	if o.timeout < 0 {
		return errcode.Field("timeout", "must not be negative")
	}
	return nil
}

func encode(arguments any) (json.RawMessage, error) {
	if arguments == nil {
		return nil, nil
	}
	if raw, ok := arguments.(json.RawMessage); ok {
		if len(raw) > 0 && !json.Valid(raw) {
			return nil, errcode.Fields(errcode.InvalidArguments, errcode.FieldFault{Field: "arguments", Message: "not valid JSON"})
		}
		return raw, nil
	}
	b, err := message.Marshal(arguments)
	if err != nil {
		return nil, errcode.Wrap(errcode.InvalidArguments, err, "arguments: %v", err)
	}
	return b, nil
}

func (c *Client) enter(o options) (*watch, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[o.req.CallID] != nil {
		return nil, errcode.Field("callId", "%q is in use by a running call", o.req.CallID)
	}
	w := &watch{progress: o.progress}
	c.calls[o.req.CallID] = w
	return w, nil
}

func (c *Client) leave(callID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, callID)
}

// hear takes a beat or progress of one of the agent's calls, whoever made it.
func (c *Client) hear(m *nats.Msg) {
	a, err := subject.ParseAgent(m.Subject)
	if err != nil {
		return
	}
	c.mu.Lock()
	w := c.calls[a.ID]
	c.mu.Unlock()
	if w == nil {
		return
	}
	w.heard()
	var e message.ProgressEvent
	if w.progress != nil && json.Unmarshal(m.Data, &e) == nil && len(e.Progress) > 0 {
		w.progress(e.Progress)
	}
}

// guard calls lost when the call's worker has been silent for too long.
func (w *watch) guard(lost func()) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quiet = time.AfterFunc(lostAfter, lost)
	return w.unguard
}

func (w *watch) unguard() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quiet.Stop()
	w.quiet = nil
}

// heard says that the worker lives.
func (w *watch) heard() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet != nil && w.quiet.Stop() { // once lost is lost
		w.quiet.Reset(lostAfter)
	}
}

// noDefault keeps a request from getting the default timeout: a call's limit is
// its tool's, and its worker's beats tell whether waiting makes sense.
type noDefault struct{ context.Context }

func (c noDefault) Deadline() (time.Time, bool) {
	if d, ok := c.Context.Deadline(); ok {
		return d, true
	}
	return time.Now().Add(24 * time.Hour), true
}

// String names the agent in logs.
func (c *Client) String() string { return fmt.Sprintf("%s/%s", c.tenant, c.agent) }
