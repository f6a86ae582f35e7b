package worker

import (
	"encoding/json"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// maxAudited is how large arguments may be, in bytes, to stand in an event.
const maxAudited = 16 << 10

// audit publishes the event of what has been answered. It waits for nothing: an
// event that cannot be published is lost, and counted. args are left out (nil),
// unless the tenant's configuration asks for them.
func (w *Worker) audit(who subject.Agent, h *hosted, e message.Event, args json.RawMessage) {
	e.AgentID, e.Tool, e.WorkerID = who.Agent, h.def.Name, w.id
	e.Time = time.Now().UTC().Format(time.RFC3339Nano)
	if len(args) > 0 && len(args) <= maxAudited {
		e.Arguments = w.audited(who, h, args)
	}
	data, err := message.Marshal(e)
	if err == nil {
		err = w.nc.Publish(subject.Event(who.Tenant, who.Agent, e.Kind), data)
	}
	if err != nil {
		w.metrics.lost.Inc()
	}
}

// audited is what an event shows of arguments: nil unless the tenant asks for them,
// and nothing of the secrets in the tool's settings.
func (w *Worker) audited(who subject.Agent, h *hosted, args json.RawMessage) json.RawMessage {
	config, ok := w.grants.configs.Peek(agentKey{who.Tenant, who.Agent})
	if !ok || config.Tenant == nil || config.Tenant.Events == nil || !config.Tenant.Events.Arguments {
		return nil
	}
	_, redact, err := w.secrets.resolve(config.Config.Tools[h.def.Name])
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
