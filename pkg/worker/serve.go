package worker

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/arguments"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/internal/crew"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
)

// maxDepth ends tools that call each other in a circle.
const maxDepth = 16

// maxIdle is how many goroutines wait for a tool to run.
const maxIdle = 256

// spillTimeout limits the moving of a large body.
const spillTimeout = 30 * time.Second

// hosted is one tool in this worker.
type hosted struct {
	tool    tool.Tool
	def     tool.Definition
	jobs    tool.JobProvider // nil: none
	schema  *arguments.Schema
	timeout time.Duration
	late    *errcode.Error // ends a call that takes longer than timeout
	slots   chan struct{}
	crew    *crew.Crew
	log     telemetry.Logger
}

func (w *Worker) host(t tool.Tool) (*hosted, error) {
	d := t.Definition()
	if err := tool.Validate(t); err != nil {
		return nil, fmt.Errorf("tool %q: %w", d.Name, err)
	}
	schema, err := arguments.Compile(d.InputSchema)
	if err != nil {
		return nil, fmt.Errorf("tool %q: %w", d.Name, err)
	}
	h := &hosted{tool: t, def: d, schema: schema, timeout: d.Timeout, crew: w.crew, log: w.log.Module("Tool_" + d.Name)}
	if h.timeout == 0 {
		h.timeout = w.cfg.Timeout
	}
	h.late = h.tooLate(h.timeout)
	if jobs := tool.JobsOf(t); len(jobs) > 0 {
		h.jobs = t.(tool.JobProvider)
	}
	n := d.MaxConcurrent
	if n == 0 {
		n = w.cfg.MaxConcurrent
	}
	h.slots = make(chan struct{}, n)
	return h, nil
}

func (w *Worker) names() []string { return slices.Sorted(maps.Keys(w.tools)) }

func (w *Worker) definitions() []message.ToolDefinition {
	defs := make([]message.ToolDefinition, 0, len(w.tools))
	for _, n := range w.names() {
		h := w.tools[n]
		d := message.ToolDefinition{
			Name: h.def.Name, Description: h.def.Description, InputSchema: h.def.InputSchema,
			Internal: h.def.Internal, Version: h.def.Version, TimeoutMs: h.timeout.Milliseconds(),
		}
		for _, j := range tool.JobsOf(h.tool) {
			d.Jobs = append(d.Jobs, message.JobDefinition(j))
		}
		defs = append(defs, d)
	}
	return defs
}

// serve answers one call: from an agent, or from another tool.
func (w *Worker) serve(ctx context.Context, h *hosted, in *bus.Incoming) (any, error) {
	start := time.Now()
	who, err := subject.ParseAgent(in.Subject)
	if err != nil {
		return nil, err
	}
	spill := w.spill(who)
	stopBeats := func() {}
	defer func() { stopBeats() }()
	beats := func(callID string) {
		stopBeats()
		if in.Header.Get(message.HeaderBeats) == "1" {
			stopBeats = startBeats(w.nc, subject.AgentProgress(who.Tenant, who.Agent, callID), firstBeat(in.Header))
		}
	}
	if id := in.Header.Get(message.HeaderCallID); subject.CheckName("callId", id) == nil {
		beats(id) // fetching a large body takes a while
	}
	body, err := spill.In(ctx, w.nc, in.Header, in.Data)
	if err != nil {
		return nil, err
	}
	req, depth, err := readCall(body, in.Header)
	if err != nil {
		return nil, err
	}
	beats(req.CallID)
	reply, _, err := w.call(ctx, h, who, req, depth, false)
	if err != nil {
		return nil, err
	}
	reply.DurationMs = time.Since(start).Milliseconds()
	return w.spilled(ctx, spill, reply)
}

// spill moves bodies of any size between this worker and an agent.
func (w *Worker) spill(who subject.Agent) bus.Spill {
	return bus.Spill{Family: subject.FamilyWorker, Tenant: who.Tenant, Agent: who.Agent, Max: w.cfg.MaxBody}
}

// call runs one call to its end, within its time limit. slot says that the
// caller has taken one of h's slots for it, which call gives back. ran tells
// whether the tool has begun to run.
func (w *Worker) call(ctx context.Context, h *hosted, who subject.Agent, req message.CallRequest, depth int, slot bool) (reply message.CallReply, ran bool, err error) {
	start := time.Now()
	var res tool.Result
	defer func() {
		if slot {
			<-h.slots
		}
		w.metrics.done(h.def.Name, err, &res, start)
	}()
	ctx, done := h.limit(ctx, shorter(h.timeout, req.TimeoutMs))
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leave := w.running.enter(callKey{who.Tenant, who.Agent, req.CallID}, cancel)
	defer leave()

	call, redact, err := w.prepare(ctx, h, who, req, depth)
	if err != nil {
		return message.CallReply{}, false, err
	}
	if !slot {
		if err := h.acquire(ctx); err != nil {
			return message.CallReply{}, false, err
		}
	}
	slot = false // the tool gives it back
	res, err = run(ctx, h, req.CallID, redact, func() (tool.Result, error) { return h.tool.Execute(ctx, call) })
	if err != nil {
		return message.CallReply{}, true, err
	}
	reply, err = w.reply(req.CallID, res, redact, start)
	return reply, true, err
}

// limit ends ctx with a timeout that names the tool.
func (h *hosted) limit(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	late := h.late
	if timeout != h.timeout {
		late = h.tooLate(timeout)
	}
	return context.WithTimeoutCause(ctx, timeout, late)
}

func (h *hosted) tooLate(timeout time.Duration) *errcode.Error {
	return errcode.New(errcode.Timeout, "%s did not finish within %s", h.def.Name, timeout)
}

// acquire waits for a free slot until ctx ends; overloaded when its deadline
// passes first.
func (h *hosted) acquire(ctx context.Context) error {
	select {
	case h.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	err := ended(ctx)
	if err.Code == errcode.Timeout {
		err = errcode.New(errcode.Overloaded, "%s had no free slot in this worker before the call's deadline", h.def.Name)
	}
	return err
}

// shorter is a tool's limit, or what a caller asked for when that is less.
// Asking for more than a duration holds is asking for more than the limit.
func shorter(limit time.Duration, timeoutMs int64) time.Duration {
	if timeoutMs > 0 && timeoutMs < limit.Milliseconds() {
		return time.Duration(timeoutMs) * time.Millisecond
	}
	return limit
}

// readCall reads and checks the envelope of a call.
func readCall(body []byte, header nats.Header) (message.CallRequest, int, error) {
	var req message.CallRequest
	if err := bus.DecodeBody(body, &req); err != nil {
		return req, 0, err
	}
	if req.CallID == "" {
		req.CallID = uuid.NewString()
	} else if err := subject.CheckName("callId", req.CallID); err != nil {
		return req, 0, err
	}
	if req.ChatID != "" {
		if err := subject.CheckFree("chatId", req.ChatID); err != nil {
			return req, 0, err
		}
	}
	if req.TimeoutMs < 0 {
		return req, 0, errcode.Field("timeoutMs", "must not be negative")
	}
	if req.IdempotencyKey != "" {
		// Taking it and then running twice would break a promise.
		return req, 0, errcode.Field("idempotencyKey", "is not supported by this worker")
	}
	depth := 0
	if d := header.Get(message.HeaderDepth); d != "" {
		var err error
		if depth, err = strconv.Atoi(d); err != nil || depth < 0 {
			return req, 0, errcode.Field(message.HeaderDepth, "must be a number")
		}
		if depth > maxDepth {
			return req, 0, errcode.New(errcode.InvalidRequest, "tools call each other more than %d deep", maxDepth)
		}
	}
	return req, depth, nil
}

// prepare checks the grant and the arguments and makes the tool's Call.
func (w *Worker) prepare(ctx context.Context, h *hosted, who subject.Agent, req message.CallRequest, depth int) (*tool.Call, redactor, error) {
	settings, err := w.grants.settings(ctx, who, h.def)
	if err != nil {
		return nil, nil, err
	}
	args, err := h.schema.Check(req.Arguments)
	if err != nil {
		return nil, nil, err
	}
	settings, redact, err := w.secrets.resolve(settings)
	if err != nil {
		return nil, nil, err
	}
	call := tool.Call{
		Tenant: who.Tenant, Agent: who.Agent, Chat: req.ChatID, ID: req.CallID, InstanceID: w.id,
		Arguments: args, Settings: settings,
		Log: redact.logger(callLog{h.log, who, req.CallID}),
	}
	return call.WithEnv(&env{w: w, who: who, tool: h.def.Name, chat: req.ChatID, call: req.CallID, depth: depth}), redact, nil
}

// run runs fn, the tool at work, in a goroutine of its own, so that one that
// ignores its ctx cannot hold up the answer. The caller has taken a slot; it
// stays taken until fn really returns.
func run[T any](ctx context.Context, h *hosted, id string, redact redactor, fn func() (T, error)) (T, error) {
	type outcome struct {
		res T
		err error
	}
	done := make(chan outcome, 1)
	h.crew.Go(func() {
		defer func() { <-h.slots }()
		var out outcome
		returned := false
		defer func() {
			if p := recover(); p != nil {
				h.log.Error("tool panicked", "call", id, "panic", redact.text(fmt.Sprint(p)), "stack", redact.text(string(debug.Stack())))
				out = outcome{err: errcode.New(errcode.Internal, "%s failed unexpectedly (it panicked)", h.def.Name)}
			} else if !returned { // runtime.Goexit
				out = outcome{err: errcode.New(errcode.Internal, "%s ended without an answer", h.def.Name)}
			}
			done <- out
		}()
		res, err := fn()
		out, returned = outcome{res, err}, true
	})
	var out outcome
	var none T
	select {
	case out = <-done:
	case <-ctx.Done():
		select {
		case out = <-done: // both at once: the answer counts
		default:
			return none, h.cutOff(ctx)
		}
	}
	if out.err == nil {
		return out.res, nil
	}
	if ctx.Err() != nil {
		return none, h.cutOff(ctx)
	}
	e := *errcode.From(out.err)
	e.Message = redact.text(e.Message)
	if e.Code == errcode.Internal {
		h.log.Error("tool failed", "call", id, "err", e.Message)
	}
	return none, &e
}

// ended says why a call's ctx ended.
func ended(ctx context.Context) *errcode.Error { return errcode.From(context.Cause(ctx)) }

// cutOff says why a tool that was running was cut off. A worker that stops is
// lost to it, not unavailable: nobody knows what the tool had done by then.
func (h *hosted) cutOff(ctx context.Context) *errcode.Error {
	err := ended(ctx)
	if err.Code == errcode.Unavailable {
		return errcode.New(errcode.WorkerLost, "the worker stopped before %s had finished", h.def.Name)
	}
	return err
}

// reply is what a caller sees of a result.
func (w *Worker) reply(callID string, res tool.Result, redact redactor, start time.Time) (message.CallReply, error) {
	if len(res.Data) > 0 {
		data, err := message.Marshal(res.Data) // compact, as content shows it
		if err != nil {
			return message.CallReply{}, errcode.New(errcode.Internal, "the tool's data is not valid JSON")
		}
		res.Data = data
	}
	if res.Success && res.Content == "" && len(res.Data) > 0 {
		res.Content = string(res.Data)
	}
	if !res.Success && res.ErrorMessage == "" {
		res.ErrorMessage = "the tool failed and did not say why"
	}
	if res.Success {
		res.ErrorMessage = ""
	}
	reply := message.CallReply{
		CallID: callID, Success: res.Success,
		Content:      strings.ToValidUTF8(res.Content, "\uFFFD"),
		ErrorMessage: strings.ToValidUTF8(redact.text(res.ErrorMessage), "\uFFFD"),
		Data:         res.Data, DurationMs: time.Since(start).Milliseconds(),
	}
	if int64(2*len(res.Data)) > bus.MaxBody(w.nc) && reply.Content == string(res.Data) {
		reply.Content = "" // will be spilled: say it once, the reader fills it in
	}
	return reply, nil
}

// spilled is a reply's message, spilled when it does not fit one.
func (w *Worker) spilled(ctx context.Context, spill bus.Spill, reply message.CallReply) (any, error) {
	m, err := bus.ReplyMsg("", reply, nil)
	if err != nil {
		return nil, err
	}
	if !spill.Fits(w.nc, len(m.Data)) {
		// The call is over; its deadline must not cut the answer off.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spillTimeout)
		defer cancel()
		if err := spill.Out(ctx, w.nc, m); err != nil {
			return nil, fmt.Errorf("result of %s: %w", reply.CallID, err)
		}
	}
	return bus.Raw{Header: m.Header, Data: m.Data}, nil
}
