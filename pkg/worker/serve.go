package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	own     *arguments.Schema // of its settings; nil: anything
	timeout time.Duration
	late    *errcode.Error // ends a call that takes longer than timeout
	slots   *toolSlots
	crew    *crew.Crew
	log     telemetry.Logger
	count   counts
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
	var own *arguments.Schema
	if d.SettingsSchema != nil {
		if own, err = arguments.CompileField("settingsSchema", d.SettingsSchema); err != nil {
			return nil, fmt.Errorf("tool %q: %w", d.Name, err)
		}
	}
	h := &hosted{tool: t, def: d, schema: schema, own: own, timeout: d.Timeout, crew: w.crew, log: w.log.Module("Tool_" + d.Name), count: w.metrics.of(d.Name)}
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
	h.slots = &toolSlots{name: d.Name, max: n}
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
			SettingsSchema: h.def.SettingsSchema, Idempotent: h.def.Idempotent,
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
	body, err := w.body(ctx, who, in)
	if err != nil {
		return nil, err
	}
	req, depth, err := readCall(body, in.Header)
	if err != nil {
		return nil, err
	}
	if w.handOn(h, in) {
		return bus.NoReply, nil
	}
	a := w.begin(bus.WithTrace(context.Background(), bus.Trace(ctx)), h, keyOf(who, req.CallID), shorter(h.timeout, req.TimeoutMs), nil)
	a.end = func(res tool.Result, _ bool, err error) {
		w.metrics.done(h, err, &res, start)
		var v any
		if err == nil {
			v, err = w.spilled(w.spill(who), a, res, start)
		}
		in.Answer(v, err)
		size := len(res.Content) + len(res.Data) + len(res.ErrorMessage)
		w.audit(who, h, called(who, req, res.Success, size, err, start), req.Arguments)
	}
	if beats := in.Header.Get(message.HeaderBeats); beats == "1" {
		a.beatTo(subject.AgentProgress(who.Tenant, who.Agent, req.CallID), firstBeat(in.Header))
	}
	w.execute(a, who, req, depth, nil)
	return bus.Later, nil
}

// body is a call's body. While a large one is fetched, which takes a moment, there
// are beats.
func (w *Worker) body(ctx context.Context, who subject.Agent, in *bus.Incoming) ([]byte, error) {
	if in.Header.Get(message.HeaderBlob) == "" {
		return in.Data, nil
	}
	if id := headerID(in.Header); id != "" && in.Header.Get(message.HeaderBeats) == "1" {
		defer startBeats(w.nc, subject.AgentProgress(who.Tenant, who.Agent, id), firstBeat(in.Header))()
	}
	return w.spill(who).In(ctx, w.nc, in.Header, in.Data)
}

// spill moves bodies of any size between this worker and an agent.
func (w *Worker) spill(who subject.Agent) bus.Spill {
	return bus.Spill{Family: subject.FamilyWorker, Tenant: who.Tenant, Agent: who.Agent, Max: w.cfg.MaxBody}
}

// execute runs a call to its end. slot is the claim of the slot that the caller has
// taken for it, which execute gives back; nil for none.
func (w *Worker) execute(a *active, who subject.Agent, req message.CallRequest, depth int, slot *claim) {
	call, entry, err := w.prepare(a, who, req, depth)
	if err == nil && entry.Limit > 0 {
		a.within(entry.Limit)
	}
	a.slot = claim{tool: a.h.slots, tenant: who.Tenant, agent: who.Agent, most: entry.MaxConcurrent}
	switch {
	case slot != nil && err == nil && *slot == a.slot:
	case slot != nil:
		w.slots.release(*slot, 0)
		fallthrough
	default:
		if err == nil {
			err = w.slots.acquire(a.ctx, a.slot, a.deadline)
		}
	}
	if err == nil && req.IdempotencyKey != "" {
		err = w.once(a, who, req, call)
	}
	if err != nil {
		a.finish(tool.Result{}, false, err)
		return
	}
	a.run(call)
}

// call runs one call to its end, within its time limit, in a slot that the caller has
// taken. ran tells whether the tool has begun to run.
func (w *Worker) call(ctx context.Context, h *hosted, who subject.Agent, req message.CallRequest, depth int, slot claim) (reply message.CallReply, ran bool, err error) {
	start := time.Now()
	ended := make(chan struct{})
	h.crew.Go(func() {
		a := w.begin(context.WithoutCancel(ctx), h, keyOf(who, req.CallID), shorter(h.timeout, req.TimeoutMs), nil)
		a.again = req.CallID
		a.end = func(res tool.Result, begun bool, failed error) {
			w.metrics.done(h, failed, &res, start)
			ran, err = begun, failed
			if err == nil {
				reply, err = w.reply(a, res, start)
			}
			close(ended)
		}
		defer context.AfterFunc(ctx, func() { a.cut(context.Cause(ctx)) })()
		w.execute(a, who, req, depth, &slot)
	})
	<-ended
	return reply, ran, err
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
		if err := subject.CheckFree("idempotencyKey", req.IdempotencyKey); err != nil {
			return req, 0, err
		}
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
func (w *Worker) prepare(a *active, who subject.Agent, req message.CallRequest, depth int) (*tool.Call, message.ToolEntry, error) {
	h := a.h
	entry, err := w.grants.entry(a.ctx, who, h.def)
	if err != nil {
		return nil, entry, err
	}
	args, err := h.arguments(req.Arguments, entry)
	if err != nil {
		return nil, entry, err
	}
	settings, redact, err := w.settings(h, entry)
	if err != nil {
		return nil, entry, err
	}
	a.redact = redact
	call := tool.Call{
		Tenant: who.Tenant, Agent: who.Agent, Chat: req.ChatID, ID: req.CallID, InstanceID: w.id,
		Arguments: args, Settings: settings,
		Log: a.redact.logger(callLog{h.log, who, req.CallID}),
	}.WithIdempotencyKey(cmp.Or(req.IdempotencyKey, a.again))
	return call.WithEnv(&env{w: w, who: who, tool: h.def.Name, chat: req.ChatID, depth: depth, active: a}), entry, nil
}

// run runs fn, a check at work, in a goroutine of its own, so that one that
// ignores its ctx cannot hold up the answer. The caller has taken a slot; it
// stays taken until fn really returns.
func run[T any](ctx context.Context, w *Worker, h *hosted, slot claim, id string, redact redactor, fn func() (T, error)) (T, error) {
	type outcome struct {
		res T
		err error
	}
	done := make(chan outcome, 1)
	h.crew.Go(func() {
		defer w.slots.release(slot, 0)
		var out outcome
		returned := false
		defer func() {
			if p := recover(); p != nil {
				out = outcome{err: h.panicked(id, p, redact)}
			} else if !returned { // runtime.Goexit
				out = outcome{err: h.noAnswer()}
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
	if out.err != nil {
		return none, h.failure(ctx, id, out.err, redact)
	}
	return out.res, nil
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
func (w *Worker) reply(a *active, res tool.Result, start time.Time) (message.CallReply, error) {
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
		CallID: a.key.id, Success: res.Success,
		Content:      strings.ToValidUTF8(res.Content, "\uFFFD"),
		ErrorMessage: strings.ToValidUTF8(a.redact.text(res.ErrorMessage), "\uFFFD"),
		Data:         res.Data, DurationMs: time.Since(start).Milliseconds(),
	}
	if int64(2*len(res.Data)) > bus.MaxBody(w.nc) && reply.Content == string(res.Data) {
		reply.Content = "" // will be spilled: say it once, the reader fills it in
	}
	return reply, nil
}

// spilled is the message of a reply, spilled when it does not fit one.
func (w *Worker) spilled(spill bus.Spill, a *active, res tool.Result, start time.Time) (any, error) {
	reply, err := w.reply(a, res, start)
	if err != nil {
		return nil, err
	}
	m := nats.Msg{}
	if m.Data, err = message.Marshal(reply); err != nil {
		return nil, err
	}
	if !spill.Fits(w.nc, len(m.Data)) {
		// The call is over; its deadline must not cut the answer off.
		ctx, cancel := context.WithTimeout(context.Background(), spillTimeout)
		defer cancel()
		if err := spill.Out(ctx, w.nc, &m); err != nil {
			return nil, fmt.Errorf("result of %s: %w", reply.CallID, err)
		}
	}
	return bus.Raw{Header: m.Header, Data: m.Data}, nil
}
