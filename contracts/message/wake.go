package message

import (
	"encoding/json"
	"fmt"
)

// Modes of a wake.
const (
	WakeChat      = "chat"      // the agent goes on in a conversation (default)
	WakeStateless = "stateless" // an isolated run without history
)

// Kinds of a WakeSource.
const (
	SourceSchedule = "schedule"
	SourceToolJob  = "toolJob"
	SourceCall     = "call"
	SourceAPI      = "api"
)

// Wake asks an agent to wake up. It is sent as a request on the agent's wake
// subject until the agent accepts it; WakeID is the same each time, so that an
// agent can drop repeats.
type Wake struct {
	WakeID      string     `json:"wakeId"`
	Mode        string     `json:"mode"`
	Message     string     `json:"message"`
	ChatID      string     `json:"chatId,omitempty"`
	Source      WakeSource `json:"source"`
	ScheduledAt string     `json:"scheduledAt,omitempty"` // RFC 3339, of what fired
	CreatedAt   string     `json:"createdAt"`             // RFC 3339
	ExpiresAt   string     `json:"expiresAt,omitempty"`   // RFC 3339; not delivered after it
	Attempt     int        `json:"attempt"`               // 1, and one more for each delivery that failed; busy is no failure
}

// WakeSource says what caused a wake.
type WakeSource struct {
	Kind string `json:"kind"`
	ID   string `json:"id"` // entry, job, call or request id
	Tool string `json:"tool,omitempty"`
}

// WakeReply is an agent's answer to a Wake. Accepted true takes the wake off
// the agent's mailbox. Accepted false with RetryAfter means busy. InProgress
// true is an interim answer: the final one follows on the same reply subject.
type WakeReply struct {
	Accepted   bool   `json:"accepted"`
	RetryAfter string `json:"retryAfter,omitempty"` // a Go duration
	InProgress bool   `json:"inProgress,omitempty"`
}

// Actions of a job run.
const (
	ActionNone          = "none"
	ActionWake          = "wake"
	ActionWakeStateless = "wakeStateless"
)

// JobRequest asks a worker for one run of a tool's background check. With
// HeaderBeats the worker beats while it runs, on the progress subject of the call
// id that HeaderCallID names.
type JobRequest struct {
	TickID      string `json:"tickId"`
	JobID       string `json:"jobId"`
	JobTypeID   string `json:"jobTypeId"`
	ScheduledAt string `json:"scheduledAt"` // RFC 3339
	Attempt     int    `json:"attempt"`
	TimeoutMs   int64  `json:"timeoutMs,omitempty"` // how long the run may take; the tool's own limit may be shorter
}

// JobReply is the outcome of one run. The store writes have not happened yet:
// the scheduler commits them together with the wake.
type JobReply struct {
	Action      string       `json:"action"`
	WakeMessage string       `json:"wakeMessage,omitempty"`
	ChatID      string       `json:"chatId,omitempty"`
	LogSummary  string       `json:"logSummary,omitempty"`
	StoreWrites []StoreWrite `json:"storeWrites,omitempty"`
}

// StoreWrite sets a key of the store, or deletes it when Value is null.
type StoreWrite struct {
	Key   string  `json:"key"`
	Value *string `json:"value"`
}

// UnmarshalJSON refuses a write without a value: to forget it must not delete.
func (w *StoreWrite) UnmarshalJSON(data []byte) error {
	var raw struct {
		Key   string          `json:"key"`
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw.Value == nil {
		return fmt.Errorf("the store write of %q has no value: a string, or null to delete", raw.Key)
	}
	w.Key, w.Value = raw.Key, nil
	if err := json.Unmarshal(raw.Value, &w.Value); err != nil {
		return fmt.Errorf("the store write of %q: %w", raw.Key, err)
	}
	return nil
}

// StoreCommit applies a job run's writes and records its wake, in one step. It
// is fenced: once a commit of a job's tick has been taken, another of the same
// tick, or of any whose Slot is not later, changes nothing and answers Committed
// false. While the wake of an earlier tick is not settled, a later tick is a
// conflict: that wake would be lost. At most 200 writes, each key once.
type StoreCommit struct {
	JobID   string       `json:"jobId"`
	TickID  string       `json:"tickId"`
	Slot    int64        `json:"slot"` // the tick's time, Unix milliseconds; orders the ticks of a job
	Attempt int          `json:"attempt"`
	Writes  []StoreWrite `json:"writes,omitempty"`
	Wake    *Wake        `json:"wake,omitempty"`
}

// StoreCommitted answers StoreCommit.
type StoreCommitted struct {
	Committed bool `json:"committed"`
}

// StoreOutbox asks for the outbox record of a job.
type StoreOutbox struct {
	JobID string `json:"jobId"`
}

// StoreOutboxRecord answers StoreOutbox: the last committed tick of the job,
// and its wake as long as that is not known to be in the agent's mailbox.
type StoreOutboxRecord struct {
	Found  bool   `json:"found"`
	TickID string `json:"tickId,omitempty"`
	Slot   int64  `json:"slot,omitempty"`
	Wake   *Wake  `json:"wake,omitempty"`
}

// StoreSettle says that the wake of a tick is in the agent's mailbox. Settling
// what is settled, or superseded, changes nothing.
type StoreSettle struct {
	JobID  string `json:"jobId"`
	TickID string `json:"tickId"`
}

// SchedulerList lists entries of a tenant, or of one agent.
type SchedulerList struct {
	AgentID string `json:"agentId,omitempty"`
	Cursor  string `json:"cursor,omitempty"` // of the answer before
}

// SchedulerEntry is a schedule or tool job.
type SchedulerEntry struct {
	AgentID  string     `json:"agentId"`
	EntryID  string     `json:"entryId"`
	Kind     string     `json:"kind"` // schedule or toolJob
	Cron     string     `json:"cron"`
	Timezone string     `json:"timezone"`
	Enabled  bool       `json:"enabled"`
	Paused   bool       `json:"paused,omitempty"`
	Next     string     `json:"next,omitempty"` // RFC 3339
	Last     *SlotEntry `json:"last,omitempty"`
	Tool     string     `json:"tool,omitempty"`
	JobType  string     `json:"jobTypeId,omitempty"`
}

// Outcomes of a slot.
const (
	SlotRan     = "ran"
	SlotMissed  = "missed"
	SlotSkipped = "skipped"
	SlotFailed  = "failed"
)

// SlotEntry is how one slot of an entry ended, or several in a row that did not
// run: then Slots is their number, Since the first's time, and ScheduledAt the
// last's.
type SlotEntry struct {
	TickID      string `json:"tickId"`
	ScheduledAt string `json:"scheduledAt"` // RFC 3339
	Slots       int    `json:"slots,omitempty"`
	Since       string `json:"since,omitempty"` // RFC 3339
	EndedAt     string `json:"endedAt"`         // RFC 3339
	Outcome     string `json:"outcome"`
	Action      string `json:"action,omitempty"` // none, wake, wakeStateless
	WakeID      string `json:"wakeId,omitempty"`
	Summary     string `json:"summary,omitempty"`
	Error       string `json:"error,omitempty"`
	Attempt     int    `json:"attempt,omitempty"`
}

// SchedulerEntries answers SchedulerList, ordered by agent and entry: as many as
// fit a message. Cursor is set when there are more.
type SchedulerEntries struct {
	Entries []SchedulerEntry `json:"entries"`
	Cursor  string           `json:"cursor,omitempty"`
}

// SchedulerEntryRef names an entry: the request of trigger, pause, resume and
// history.
type SchedulerEntryRef struct {
	AgentID string `json:"agentId"`
	EntryID string `json:"entryId"`
}

// SchedulerTriggered answers trigger: the entry runs now, apart from its slots.
type SchedulerTriggered struct {
	TickID string `json:"tickId"`
}

// SchedulerHistory answers history, newest first.
type SchedulerHistory struct {
	Slots []SlotEntry `json:"slots"`
}

// SchedulerPaused answers pause and resume.
type SchedulerPaused struct {
	Paused bool `json:"paused"`
}

// SchedulerWake sends a wake: now, at a time, or in a while.
type SchedulerWake struct {
	AgentID      string `json:"agentId"`
	Mode         string `json:"mode,omitempty"` // chat (default) or stateless
	Message      string `json:"message"`
	ChatID       string `json:"chatId,omitempty"`
	At           string `json:"at,omitempty"`           // RFC 3339
	In           string `json:"in,omitempty"`           // a Go duration
	ExpiresAfter string `json:"expiresAfter,omitempty"` // a Go duration, from when it is due
	OpID         string `json:"opId,omitempty"`

	// Source is what the wake is told of, when it is a call that has ended.
	Source *WakeSource `json:"source,omitempty"`
}

// SchedulerWakeSent answers SchedulerWake: the wake is kept until accepted.
type SchedulerWakeSent struct {
	WakeID string `json:"wakeId"`
}

// States of a wake in the mailbox.
const (
	WakesPending = "pending"
	WakesDead    = "dead"
)

// SchedulerWakes lists wakes that wait, those sent for later included, or that
// were given up.
type SchedulerWakes struct {
	AgentID string `json:"agentId,omitempty"`
	State   string `json:"state,omitempty"`  // pending (default) or dead
	Cursor  string `json:"cursor,omitempty"` // of the answer before
}

// SchedulerWakeList answers SchedulerWakes: those in mailboxes, oldest first, then
// those sent for later; as many as fit a message. Cursor is set when there may be
// more.
type SchedulerWakeList struct {
	Wakes  []PendingWake `json:"wakes"`
	Cursor string        `json:"cursor,omitempty"`
}

// PendingWake is a wake that waits.
type PendingWake struct {
	AgentID string `json:"agentId"`
	Wake    Wake   `json:"wake"`
	Due     string `json:"due,omitempty"` // RFC 3339, of one sent for later: until then it is in no mailbox
}

// JobDefinition is a background check that a tool offers.
type JobDefinition struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

// SubmitAck is what JetStream answers to a submit.
type SubmitAck struct {
	Stream string          `json:"stream"`
	Seq    uint64          `json:"seq"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// ResultRequest asks for the result of a submitted call; WaitMs (at most 60000)
// waits that long for one that is not there yet.
type ResultRequest struct {
	WaitMs int64 `json:"waitMs,omitempty"`
}

// States of a submitted call.
const (
	ResultPending = "pending"
	ResultDone    = "done"
)

// ResultReply answers ResultRequest and ResultGet. One of Reply, ReplyBlob and
// Error is set when State is done. Pending means that no end is recorded and the
// agent has submitted calls under way; with none under way, it is not_found.
type ResultReply struct {
	CallID    string          `json:"callId"`
	State     string          `json:"state"`
	Tool      string          `json:"tool,omitempty"`
	Reply     *CallReply      `json:"reply,omitempty"`
	ReplyBlob *Blob           `json:"replyBlob,omitempty"` // holds the JSON of a Reply too large for a message
	Error     json.RawMessage `json:"error,omitempty"`     // the error object of an error reply
}

// ResultGet is ResultRequest for workers: the call stands in the body.
type ResultGet struct {
	CallID string `json:"callId"`
	WaitMs int64  `json:"waitMs,omitempty"`
}

// ResultClaim asks for the right to run a submitted call, or one with an idempotency
// key; for workers, before they begin, and again well before the reply's LeaseMs have
// passed while it runs.
type ResultClaim struct {
	CallID  string `json:"callId"`
	RunID   string `json:"runId"`             // of this run, made by the worker
	Submit  uint64 `json:"submit,omitempty"`  // the stream sequence of the message that submitted it
	Release bool   `json:"release,omitempty"` // give the right back: the call was not run to its end

	Tool       string          `json:"tool,omitempty"`
	Idempotent bool            `json:"idempotent,omitempty"` // the tool may run again when it is not known what an earlier run did
	Fence      uint64          `json:"fence,omitempty"`      // of ResultClaimed, when a claim is renewed or given back
	NotBegun   bool            `json:"notBegun,omitempty"`   // with Release: the tool has not begun
	Error      json.RawMessage `json:"error,omitempty"`      // with Release: why the run has failed; the call is to run again

	// Keyed makes it the claim of a call with an idempotency key.
	Keyed *KeyedCall `json:"keyed,omitempty"`
}

// KeyedCall is what identifies a call with an idempotency key, within its agent and tool.
type KeyedCall struct {
	Key       string `json:"key"`
	Arguments string `json:"arguments"` // a digest of them, and of the chat: the same key is for the same call
}

// MaxSubmitTries is how often a submitted call of an idempotent tool is run.
const MaxSubmitTries = 5

// States of a claim.
const (
	ClaimGranted   = "granted"   // run it
	ClaimRunning   = "running"   // another run of the same message is under way: ask again after a second
	ClaimDuplicate = "duplicate" // it was submitted twice, and the other message is under way: acknowledge this one
	ClaimDone      = "done"      // it has ended: acknowledge the message
	ClaimReleased  = "released"  // answers Release
)

// ResultClaimed answers ResultClaim.
type ResultClaimed struct {
	State   string `json:"state"`
	LeaseMs int64  `json:"leaseMs"` // how long a granted claim stands

	Fence   uint64       `json:"fence,omitempty"`   // granted: names this run
	Tries   int          `json:"tries,omitempty"`   // granted: runs, this one included
	FirstMs int64        `json:"firstMs,omitempty"` // granted: how many milliseconds ago an earlier run began; 0: there was none
	Failed  bool         `json:"failed,omitempty"`  // done: it could not be served
	Result  *ResultReply `json:"result,omitempty"`  // done, with an idempotency key: how it ended
}

// ResultComplete records the end of a submitted call; for workers. Exactly one
// of Reply, ReplyBlob and Error is set.
type ResultComplete struct {
	CallID    string          `json:"callId"`
	Tool      string          `json:"tool"`
	Reply     *CallReply      `json:"reply,omitempty"`
	ReplyBlob *Blob           `json:"replyBlob,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
	Fence     uint64          `json:"fence,omitempty"` // of the claim; without one it is that of whoever runs the call
	Keyed     *KeyedCall      `json:"keyed,omitempty"` // of a call with an idempotency key
}

// ResultSettle has what follows the end of a submitted call happen, once: a call that
// could not be served is kept among the dead, and its agent is woken if it asked for
// that. For workers, after the end is recorded and before the message is acknowledged.
type ResultSettle struct {
	CallID     string          `json:"callId"`
	Tool       string          `json:"tool"`
	ChatID     string          `json:"chatId,omitempty"`
	WakeOnDone bool            `json:"wakeOnDone,omitempty"` // wake the agent
	Request    json.RawMessage `json:"request,omitempty"`    // the call's body, for running it again by hand; left out when it is too large
}

// ResultSettled answers ResultSettle.
type ResultSettled struct {
	Settled bool `json:"settled"`
}

// ResultCompleted answers ResultComplete; Recorded is false when another end
// was recorded before, which stands. The same end again is recorded.
type ResultCompleted struct {
	Recorded bool `json:"recorded"`
}

// SubmitsConsumer answers a request on subject.SubmitsConsumer, whose body is
// empty: pull from this durable consumer of this stream, one message per free
// slot.
type SubmitsConsumer struct {
	Stream  string `json:"stream"`
	Durable string `json:"durable"`
}

// States of a submitted call in a SubmitListing.
const (
	SubmitsWaiting = "waiting" // for a worker, or running
	SubmitsDead    = "dead"    // could not be served
)

// SubmitList lists a tenant's submitted calls that have not ended, or that could not be
// served and are kept for a while, oldest first.
type SubmitList struct {
	AgentID string `json:"agentId,omitempty"`
	State   string `json:"state,omitempty"`  // waiting (default) or dead
	Cursor  string `json:"cursor,omitempty"` // of the answer before
}

// SubmitListing answers SubmitList: as many as fit a message. Cursor is set when there may be
// more.
type SubmitListing struct {
	Submits []SubmitEntry `json:"submits"`
	Cursor  string        `json:"cursor,omitempty"`
}

// SubmitEntry is a submitted call.
type SubmitEntry struct {
	AgentID     string          `json:"agentId"`
	CallID      string          `json:"callId"`
	Tool        string          `json:"tool"`
	ChatID      string          `json:"chatId,omitempty"`
	SubmittedAt string          `json:"submittedAt,omitempty"` // RFC 3339
	EndedAt     string          `json:"endedAt,omitempty"`     // RFC 3339, of a dead one
	Tries       int             `json:"tries,omitempty"`       // runs begun, of a dead one
	Error       json.RawMessage `json:"error,omitempty"`       // of a dead one
}

// SubmitRef names a submitted call: the request of redrive.
type SubmitRef struct {
	AgentID string `json:"agentId"`
	CallID  string `json:"callId"`
}

// SubmitRedriven answers redrive: the call waits for a worker again, under its id.
type SubmitRedriven struct {
	CallID string `json:"callId"`
}
