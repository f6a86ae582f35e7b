package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/tool"
)

// active is a call under way, from its first look at the configuration to its
// answer. It is answered once: when the tool returns, or when the call is cut off,
// at its deadline, by a cancel or by the worker's end, though the tool may not have
// noticed. The tool runs on the goroutine that took the call.
//
// One timer is all that it costs to watch it, for beats and the deadline.
type active struct {
	entry
	w   *Worker
	h   *hosted
	end func(res tool.Result, ran bool, err error) // called once

	begun  time.Time
	inner  context.Context
	ctx    context.Context // the tool's: inner until the deadline
	late   error           // the cause when the deadline passes
	redact redactor
	slot   claim
	again  string // the key that the tool sees when the caller gave none

	mu       sync.Mutex
	over     bool
	running  bool // the tool has begun
	deadline time.Time
	beat     time.Time // the next one's time; zero for none
	beats    string    // where they go
	timer    *time.Timer

	progress json.RawMessage // said by the tool, and not yet published
	told     time.Time       // when progress was last published
}

// progressEvery is how often a call's progress is published at most; of what a tool says
// in between the last counts.
const progressEvery = 100 * time.Millisecond

// say publishes the call's progress, now or as soon as it may.
func (a *active) say(progress json.RawMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	waits := a.progress != nil
	a.progress = progress
	switch wait := progressEvery - time.Since(a.told); {
	case wait <= 0:
		a.tell()
	case !waits:
		a.timer.Reset(0) // tick sees what is next
	}
}

// tell publishes the progress that waits. Called with mu.
func (a *active) tell() {
	m, err := bus.NewMsg(subject.AgentProgress(a.key.tenant, a.key.agent, a.key.id), message.ProgressEvent{Progress: a.progress})
	if err == nil && int64(len(m.Data)) <= bus.MaxBody(a.w.nc) {
		_ = a.w.nc.PublishMsg(m)
	}
	a.progress, a.told = nil, time.Now()
}

// callKey names a call; its id is unique within an agent only.
type callKey struct{ tenant, agent, id string }

// untilContext is a cancelled context that has a deadline: the one that cancels it
// when that has passed is the call's timer.
type untilContext struct {
	context.Context
	deadline time.Time
}

func (c untilContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c untilContext) Err() error {
	err := c.Context.Err()
	if err != nil && errcode.Of(context.Cause(c.Context)) == errcode.Timeout {
		return context.DeadlineExceeded
	}
	return err
}

// begin makes a call under way that ends after timeout. With beats not empty it
// publishes beats there, the first one after a while. ctx gives values only: the
// worker's end is told by running.
func (w *Worker) begin(ctx context.Context, h *hosted, key callKey, timeout time.Duration, end func(tool.Result, bool, error)) *active {
	a := &active{entry: entry{key: key}, w: w, h: h, end: end, late: h.late, begun: time.Now()}
	a.deadline = a.begun.Add(timeout)
	a.active = a
	if timeout != h.timeout {
		a.late = h.tooLate(timeout)
	}
	inner, cancel := context.WithCancelCause(ctx)
	a.inner, a.ctx, a.cancel = inner, untilContext{inner, a.deadline}, cancel
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(timeout, a.tick)
	if err := w.running.enter(&a.entry); err != nil {
		a.cancel(err)
	}
	return a
}

// within shortens the call's time to limit, from its beginning.
func (a *active) within(limit time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	until := a.begun.Add(limit)
	if a.over || !until.Before(a.deadline) {
		return
	}
	a.deadline, a.late = until, a.h.tooLate(limit)
	a.ctx = untilContext{a.inner, until}
	a.timer.Reset(0) // tick sees what is next
}

// beatTo has the call publish beats.
func (a *active) beatTo(to string, first time.Duration) {
	if first == 0 {
		_ = a.w.nc.Publish(to, beat)
		first = beatEvery
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	a.beats, a.beat = to, time.Now().Add(first)
	if a.beat.Before(a.deadline) {
		a.timer.Reset(first)
	}
}

// tick does what has its time.
func (a *active) tick() {
	a.mu.Lock()
	now := time.Now()
	if a.over {
		a.mu.Unlock()
		return
	}
	if !now.Before(a.deadline) {
		late := a.late
		a.mu.Unlock()
		a.cut(late)
		return
	}
	defer a.mu.Unlock()
	next := a.deadline
	if !a.beat.IsZero() {
		if !now.Before(a.beat) {
			_ = a.w.nc.Publish(a.beats, beat)
			a.beat = now.Add(beatEvery)
		}
		if a.beat.Before(next) {
			next = a.beat
		}
	}
	if a.progress != nil {
		due := a.told.Add(progressEvery)
		if now.Before(due) {
			if due.Before(next) {
				next = due
			}
		} else {
			a.tell()
		}
	}
	a.timer.Reset(time.Until(next))
}

// cut ends the tool's context and answers for it, if it has begun; otherwise
// whoever waits to begin it sees that its context has ended.
func (a *active) cut(cause error) {
	a.cancel(cause)
	a.mu.Lock()
	running := a.running
	a.mu.Unlock()
	if running {
		a.finish(tool.Result{}, true, a.cutOff())
	}
}

// finish answers, if nobody has.
func (a *active) finish(res tool.Result, ran bool, err error) {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	if a.progress != nil {
		a.tell() // the last word comes before the answer
	}
	a.over = true
	a.timer.Stop()
	a.mu.Unlock()
	a.w.running.leave(&a.entry)
	a.cancel(nil)
	a.end(res, ran, err)
}

// cutOff says why a tool that was running was cut off. A worker that stops is
// lost to it, not unavailable: nobody knows what the tool had done by then.
func (a *active) cutOff() *errcode.Error { return a.h.cutOff(a.ctx) }

// run runs the tool and answers. The caller has taken a slot, which is given back
// when the tool really returns.
func (a *active) run(call *tool.Call) {
	a.mu.Lock()
	a.running = true
	a.mu.Unlock()
	if a.ctx.Err() != nil { // cut before running was seen
		a.w.slots.release(a.slot, 0)
		a.finish(tool.Result{}, false, ended(a.ctx))
		return
	}
	var res tool.Result
	var err error
	returned := false
	begun := time.Now()
	defer func() {
		if p := recover(); p != nil {
			err = a.h.panicked(a.key.id, p, a.redact)
		} else if !returned { // runtime.Goexit
			err = a.h.noAnswer()
		}
		a.w.slots.release(a.slot, time.Since(begun))
		if err != nil {
			err = a.h.failure(a.ctx, a.key.id, err, a.redact)
		}
		a.finish(res, true, err)
	}()
	res, err = a.h.tool.Execute(a.ctx, call)
	returned = true
}

// panicked is the error of a tool that panicked.
func (h *hosted) panicked(id string, p any, redact redactor) error {
	h.log.Error("tool panicked", "call", id, "panic", redact.text(fmt.Sprint(p)), "stack", redact.text(string(debug.Stack())))
	return errcode.New(errcode.Internal, "%s failed unexpectedly (it panicked)", h.def.Name)
}

// noAnswer is the error of a tool that ended its goroutine.
func (h *hosted) noAnswer() error {
	return errcode.New(errcode.Internal, "%s ended without an answer", h.def.Name)
}

// failure is what a caller sees of a tool's error.
func (h *hosted) failure(ctx context.Context, id string, err error, redact redactor) *errcode.Error {
	if ctx.Err() != nil {
		return h.cutOff(ctx)
	}
	e := *errcode.From(err)
	e.Message = redact.text(e.Message)
	if e.Code == errcode.Internal {
		h.log.Error("tool failed", "call", id, "err", e.Message)
	}
	return &e
}

// running knows the calls under way, so that they can be cancelled.
type running struct {
	mu    sync.Mutex
	ended error              // why there are no more
	calls map[callKey]*entry // the first of a list
}

// entry is a call that can be cancelled.
type entry struct {
	key    callKey
	cancel context.CancelCauseFunc
	active *active // nil: it is not as far yet
	next   *entry  // with the same key
}

// cut ends a call with a cause.
func (e *entry) cut(cause error) {
	if e.active != nil {
		e.active.cut(cause)
	} else {
		e.cancel(cause)
	}
}

// enter adds a call; the error is why it must not begin. A caller may use one id for
// several calls: a cancel then ends all of them.
func (r *running) enter(e *entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[callKey]*entry{}
	}
	e.next = r.calls[e.key]
	r.calls[e.key] = e
	return r.ended
}

func (r *running) leave(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.calls[e.key]
	switch {
	case first != e:
		for ; first != nil; first = first.next {
			if first.next == e {
				first.next = e.next
				return
			}
		}
	case e.next == nil:
		delete(r.calls, e.key)
	default:
		r.calls[e.key] = e.next
	}
}

func (r *running) cancel(k callKey) {
	r.mu.Lock()
	found := r.calls[k].all(nil)
	r.mu.Unlock()
	for _, e := range found {
		e.cut(errcode.New(errcode.Cancelled, "the call was cancelled"))
	}
}

// stop cuts off the calls under way, and those that are still to come.
func (r *running) stop(cause error) {
	r.mu.Lock()
	r.ended = cause
	var found []*entry
	for _, e := range r.calls {
		found = e.all(found)
	}
	r.mu.Unlock()
	for _, e := range found {
		e.cut(cause)
	}
}

func (e *entry) all(found []*entry) []*entry {
	for ; e != nil; e = e.next {
		found = append(found, e)
	}
	return found
}

func keyOf(who subject.Agent, id string) callKey { return callKey{who.Tenant, who.Agent, id} }
