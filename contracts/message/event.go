package message

import (
	"encoding/json"
	"strconv"
)

// Kinds of events; the last token of their subjects.
const (
	EventCall     = "call"     // an agent's call ended
	EventToolCall = "toolcall" // a tool's call of another tool ended
	EventSubmit   = "submit"   // a submitted call's end was recorded
	EventJob      = "job"      // a tool's background check ended
	EventWake     = "wake"     // an agent accepted a wake
	EventConfig   = "config"   // an agent's configuration was applied, or removed
)

// EventKinds are all kinds, in the order of their documentation.
var EventKinds = []string{EventCall, EventToolCall, EventSubmit, EventJob, EventWake, EventConfig}

// Outcomes of events, beside the error codes, and for a job the actions of
// JobReply.
const (
	OutcomeOK       = "ok"       // the tool could do it
	OutcomeFailed   = "failed"   // the tool says it could not
	OutcomeAccepted = "accepted" // of a wake
	OutcomeApplied  = "applied"  // of a configuration
	OutcomeRemoved  = "removed"  // of a configuration
)

// Event is an entry of the audit trail, published on event.<tenant>.<agent>.<kind>
// after what it tells of. It is best effort: an event may be lost, or come twice, what it
// tells of does not depend on it.
type Event struct {
	Kind           string          `json:"kind"`
	Time           string          `json:"time"` // when it ended, RFC 3339, UTC
	AgentID        string          `json:"agentId"`
	Outcome        string          `json:"outcome"` // ok, failed (the tool says so) or an error's code; of a job: none, wake, wakeStateless or an error's code; accepted, applied, removed
	Tool           string          `json:"tool,omitempty"`
	CallID         string          `json:"callId,omitempty"`
	ChatID         string          `json:"chatId,omitempty"`
	WorkerID       string          `json:"workerId,omitempty"`
	JobID          string          `json:"jobId,omitempty"`
	WakeID         string          `json:"wakeId,omitempty"`
	Revision       uint64          `json:"revision,omitempty"`       // of the configuration that was applied
	DurationMs     int64           `json:"durationMs,omitempty"`     // in the worker
	ArgumentsBytes int64           `json:"argumentsBytes,omitempty"` // as the caller sent them
	ResultBytes    int64           `json:"resultBytes,omitempty"`    // content, data and error message
	Arguments      json.RawMessage `json:"arguments,omitempty"`      // where the tenant's configuration asks for them; secrets redacted; left out when large

	More []Event `json:"more,omitempty"` // later ones of the same agent and kind, which were published together with this one
}

// All is the event and those that were published together with it.
func (e Event) All() []Event {
	more := e.More
	e.More = nil
	return append([]Event{e}, more...)
}

func (e Event) plain() (json.RawMessage, bool) {
	w := writer{b: make([]byte, 0, 320+len(e.ChatID)+len(e.Arguments)), ok: true}
	w.string("kind", e.Kind, false)
	w.string("time", e.Time, false)
	w.string("agentId", e.AgentID, false)
	w.string("outcome", e.Outcome, false)
	w.string("tool", e.Tool, true)
	w.string("callId", e.CallID, true)
	w.string("chatId", e.ChatID, true)
	w.string("workerId", e.WorkerID, true)
	w.string("jobId", e.JobID, true)
	w.string("wakeId", e.WakeID, true)
	if e.Revision > 0 {
		w.name("revision")
		w.b = strconv.AppendUint(w.b, e.Revision, 10)
	}
	w.int("durationMs", e.DurationMs, true)
	w.int("argumentsBytes", e.ArgumentsBytes, true)
	w.int("resultBytes", e.ResultBytes, true)
	w.raw("arguments", e.Arguments)
	for i, m := range e.More {
		b, ok := m.plain()
		w.ok = w.ok && ok
		if i > 0 {
			w.b = append(w.b, ',')
		} else {
			w.name("more")
			w.b = append(w.b, '[')
		}
		w.b = append(w.b, b...)
	}
	if len(e.More) > 0 {
		w.b = append(w.b, ']')
	}
	return w.end(), w.ok
}

// EventsList asks for a tenant's events, oldest first; the fields narrow it.
type EventsList struct {
	AgentID string `json:"agentId,omitempty"`
	Kind    string `json:"kind,omitempty"`
	Since   string `json:"since,omitempty"`  // stored at or after this time, RFC 3339
	Cursor  string `json:"cursor,omitempty"` // of the page before; Since then counts no more
	Limit   int    `json:"limit,omitempty"`  // at most so many events; 0 or over 1000 for 1000
}

// EventListing answers EventsList.
type EventListing struct {
	Events []Event `json:"events"`
	Cursor string  `json:"cursor,omitempty"` // set when there may be more
}
