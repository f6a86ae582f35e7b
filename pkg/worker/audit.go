package worker

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// maxAudited is how large arguments may be, in bytes, to stand in an event.
const maxAudited = 16 << 10

const (
	auditPause = 100 * time.Millisecond // that an event may wait for others
	auditBatch = 100                    // events of one message
	auditBytes = 32 << 10               // about, of one message
)

// auditor publishes events some at a time: one by one they would cost as much as the
// calls that they tell of. It waits for nothing: what cannot be published is lost, and
// counted.
type auditor struct {
	w *Worker

	mu      sync.Mutex
	waiting map[auditKey]*eventBatch
	timer   *time.Timer // publishes what waits
	armed   bool
}

type auditKey struct{ tenant, agent, kind string }

type eventBatch struct {
	events []message.Event
	bytes  int
}

func newAuditor(w *Worker) *auditor {
	a := &auditor{w: w, waiting: map[auditKey]*eventBatch{}}
	a.timer = time.AfterFunc(time.Hour, a.flush)
	a.timer.Stop()
	return a
}

func (a *auditor) add(k auditKey, e message.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.waiting[k]
	if b == nil {
		b = &eventBatch{}
		a.waiting[k] = b
	}
	b.events = append(b.events, e)
	if b.bytes += 512 + len(e.ChatID) + len(e.Arguments); len(b.events) >= auditBatch || b.bytes >= auditBytes {
		delete(a.waiting, k)
		a.publish(k, b)
		return
	}
	if !a.armed {
		a.armed = true
		a.timer.Reset(auditPause)
	}
}

// flush publishes what waits.
func (a *auditor) flush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.armed = false
	for k, b := range a.waiting {
		delete(a.waiting, k)
		a.publish(k, b)
	}
}

func (a *auditor) publish(k auditKey, b *eventBatch) {
	e := b.events[0]
	e.More = b.events[1:]
	data, err := message.Marshal(e)
	if err == nil {
		err = a.w.nc.Publish(subject.Event(k.tenant, k.agent, k.kind), data)
	}
	if err != nil {
		a.w.metrics.lost.Add(float64(len(b.events)))
	}
}

// close publishes the last events.
func (a *auditor) close(context.Context) error {
	a.timer.Stop()
	a.flush()
	return nil
}

// audit tells the audit trail of what has been answered. args are left out (nil),
// unless the tenant's configuration asks for them.
func (w *Worker) audit(who subject.Agent, h *hosted, e message.Event, args json.RawMessage) {
	e.AgentID, e.Tool, e.WorkerID = who.Agent, h.def.Name, w.id
	e.Time = time.Now().UTC().Format(time.RFC3339Nano)
	if len(args) > 0 && len(args) <= maxAudited {
		e.Arguments = w.audited(who, h, args)
	}
	w.auditor.add(auditKey{who.Tenant, who.Agent, e.Kind}, e)
}

// audited is what an event shows of arguments: nil unless the tenant asks for them,
// and nothing of the secrets in the tool's settings.
func (w *Worker) audited(who subject.Agent, h *hosted, args json.RawMessage) json.RawMessage {
	config, ok := w.grants.configs.Peek(agentKey{who.Tenant, who.Agent})
	if !ok || config.tenant == nil || config.tenant.Events == nil || !config.tenant.Events.Arguments {
		return nil
	}
	_, redact, err := w.secrets.resolve(config.tools[h.def.Name].Settings)
	if err != nil { // what is secret is not known
		return nil
	}
	if len(redact) == 0 {
		return args
	}
	clean, err := redact.json(args)
	if err != nil {
		return nil
	}
	return clean
}

// called is the event of a call that ended, with a result of so many bytes.
func called(who subject.Agent, req message.CallRequest, success bool, size int, err error, start time.Time) message.Event {
	e := message.Event{
		Kind: message.EventCall, Outcome: message.OutcomeOK, CallID: req.CallID, ChatID: req.ChatID,
		DurationMs: time.Since(start).Milliseconds(), ArgumentsBytes: int64(len(req.Arguments)),
	}
	switch {
	case who.Family == subject.FamilyWorker:
		e.Kind = message.EventToolCall
	case who.Verb == subject.VerbSubmit:
		e.Kind = message.EventSubmit
	}
	switch {
	case err != nil:
		e.Outcome = string(errcode.Of(err))
	case !success:
		e.Outcome = message.OutcomeFailed
	}
	if err == nil {
		e.ResultBytes = int64(size)
	}
	return e
}

// checked is the event of a background check that ended.
func checked(req message.JobRequest, reply message.JobReply, err error, start time.Time) message.Event {
	e := message.Event{
		Kind: message.EventJob, Outcome: reply.Action, JobID: req.JobID,
		DurationMs: time.Since(start).Milliseconds(),
	}
	if err != nil {
		e.Outcome = string(errcode.Of(err))
	}
	return e
}
