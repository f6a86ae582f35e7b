// Package subject builds and parses every NATS subject, stream, bucket and
// queue group of Toolbus, and checks the names that become part of them.
//
// Tenant and agent always stand in the subject, never only in the body:
// NATS permissions are subject permissions, and they are what isolates tenants.
// Builders do not validate; check names with CheckName, CheckTenant and
// CheckFree where they enter the system. Parsers do validate, because a
// subject comes from outside.
package subject

import (
	"encoding/base64"
	"strings"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Prefix starts every subject of this version of the contract.
const Prefix = "toolbus.v1."

// Families: the token after the prefix.
const (
	FamilyAgent     = "agent"     // what agents publish and receive
	FamilyWorker    = "worker"    // tool-to-tool calls and job checks
	FamilyInstance  = "instance"  // one worker process
	FamilyToolState = "toolstate" // state service
	FamilyStore     = "store"     // state service
	FamilyFiles     = "files"     // files service
	FamilyRegistry  = "registry"  // agent configuration
	FamilyCatalogue = "catalogue" // tool catalogue
	FamilyResult    = "result"    // recorded results, for workers
	FamilySubmits   = "submits"   // submitted calls of a tenant
	FamilyScheduler = "scheduler" // timers, jobs, wakes
	FamilyTimer     = "timer"     // the scheduler's own
	FamilyTick      = "tick"      // the scheduler's own
	FamilyMailbox   = "mailbox"   // the scheduler's own
	FamilyChanges   = "changes"   // change events
	FamilyEvent     = "event"     // audit trail
	FamilyEvents    = "events"    // what is asked of the audit trail
)

// Verbs of the agent and worker families.
const (
	VerbCall     = "call"
	VerbCancel   = "cancel"
	VerbProgress = "progress"
	VerbTools    = "tools"
	VerbSubmit   = "submit"
	VerbResult   = "result"
	VerbWake     = "wake"
	VerbReady    = "ready"
	VerbJob      = "job"
	VerbBlob     = "blob"
	VerbFetch    = "fetch"
)

// Streams and buckets. Only the owning service touches them.
const (
	StreamBlobs     = "TOOLBUS_BLOBS"     // files: spilled arguments and results
	StreamEvents    = "TOOLBUS_EVENTS"    // registry: audit trail
	StreamSubmits   = "TOOLBUS_SUBMITS"   // state: submitted calls that wait
	StreamTimers    = "TOOLBUS_TIMERS"    // scheduler: timers and the ticks they become
	StreamWakes     = "TOOLBUS_WAKES"     // scheduler: wakes not yet accepted
	BucketClaims    = "toolbus_claims"    // state: which submitted call runs where
	BucketResults   = "toolbus_results"   // state: results of submitted and idempotent calls
	BucketJobs      = "toolbus_jobs"      // scheduler: what each entry did last
	BucketAgents    = "toolbus_agents"    // registry
	BucketTools     = "toolbus_tools"     // registry
	BucketToolState = "toolbus_toolstate" // state
	BucketStore     = "toolbus_store"     // state
)

// AllTenants stands for every tenant in registry requests of services.
const AllTenants = "_all"

// FilesBucket is the tenant's object store.
func FilesBucket(tenant string) string { return "toolbus_files_" + tenant }

func join(parts ...string) string { return Prefix + strings.Join(parts, ".") }

// AgentCall is where an agent calls a tool; workers that host the tool answer.
// Any part may be "*" to subscribe.
func AgentCall(tenant, agent, tool string) string {
	return join(FamilyAgent, tenant, agent, VerbCall, tool)
}

// WorkerCall is where a tool calls another tool on behalf of the same agent.
func WorkerCall(tenant, agent, tool string) string {
	return join(FamilyWorker, tenant, agent, VerbCall, tool)
}

// AgentCancel cancels a running call.
func AgentCancel(tenant, agent, callID string) string {
	return join(FamilyAgent, tenant, agent, VerbCancel, callID)
}

// AgentProgress carries beats and progress of a running call. A client
// subscribes once, with callID "*".
func AgentProgress(tenant, agent, callID string) string {
	return join(FamilyAgent, tenant, agent, VerbProgress, callID)
}

// AgentTools asks the registry which tools an agent may see.
func AgentTools(tenant, agent string) string { return join(FamilyAgent, tenant, agent, VerbTools) }

// AgentSubmit is where an agent publishes a call that must survive;
// TOOLBUS_SUBMITS captures it and acknowledges to the publisher's inbox.
func AgentSubmit(tenant, agent, tool string) string {
	return join(FamilyAgent, tenant, agent, VerbSubmit, tool)
}

// AgentResult asks for the recorded result of a submitted call.
func AgentResult(tenant, agent, callID string) string {
	return join(FamilyAgent, tenant, agent, VerbResult, callID)
}

// AgentWake is where an agent is asked to wake up; its reply is the acceptance.
func AgentWake(tenant, agent string) string { return join(FamilyAgent, tenant, agent, VerbWake) }

// AgentReady is where an agent says that it listens for wakes.
func AgentReady(tenant, agent string) string { return join(FamilyAgent, tenant, agent, VerbReady) }

// WorkerJob asks a worker for one run of a tool's background check.
func WorkerJob(tenant, agent, tool string) string {
	return join(FamilyWorker, tenant, agent, VerbJob, tool)
}

// Result is an op on recorded results, for workers.
func Result(tenant, agent, op string) string { return join(FamilyResult, tenant, agent, op) }

// SubmitsConsumer asks the state service for the durable consumer through
// which the workers that host a tool pull its submitted calls; it is made when
// it is not there. The reply is a message.SubmitsConsumer.
func SubmitsConsumer(tool string) string { return join(FamilyResult, AllTenants, opConsumer, tool) }

const opConsumer = "consumer"

// ParseResult parses a Result or a SubmitsConsumer: of the latter, tool is set
// and the rest is "".
func ParseResult(s string) (tenant, agent, op, tool string, err error) {
	t, err := tokens(s, 4, 4)
	if err == nil && t[0] != FamilyResult {
		err = errcode.New(errcode.InvalidRequest, "subject %q is not of the results", s)
	}
	if err == nil && t[1] == AllTenants && t[2] == opConsumer {
		if err = CheckName("tool", t[3]); err == nil {
			return "", "", "", t[3], nil
		}
	}
	if err == nil {
		err = CheckTenant(t[1])
	}
	if err == nil {
		err = CheckName("agent", t[2])
	}
	if err != nil {
		return "", "", "", "", err
	}
	return t[1], t[2], t[3], "", nil
}

// Submits is an op on a tenant's submitted calls: list, redrive.
func Submits(tenant, op string) string { return join(FamilySubmits, tenant, op) }

// Scheduler is an op on a tenant's schedules, jobs and wakes.
func Scheduler(tenant, op string) string { return join(FamilyScheduler, tenant, op) }

// Timer is the subject of one armed timer, never used twice: entry is the
// schedule's or job's id, revision the definition it was armed for, slot the
// time it is due.
func Timer(tenant, agent, entry, revision, slot string) string {
	return join(FamilyTimer, tenant, agent, entry, revision, slot)
}

// Tick is what a Timer becomes when it is due.
func Tick(tenant, agent, entry, revision, slot string) string {
	return join(FamilyTick, tenant, agent, entry, revision, slot)
}

// TickParts is a parsed Tick or Timer.
type TickParts struct{ Tenant, Agent, Entry, Revision, Slot string }

// ParseTick parses a Tick or Timer.
func ParseTick(s string) (TickParts, error) {
	t, err := tokens(s, 6, 6)
	if err != nil {
		return TickParts{}, err
	}
	if t[0] != FamilyTick && t[0] != FamilyTimer {
		return TickParts{}, errcode.New(errcode.InvalidRequest, "subject %q is not a tick or timer", s)
	}
	p := TickParts{t[1], t[2], t[3], t[4], t[5]}
	for field, v := range map[string]string{"tenant": p.Tenant, "agent": p.Agent, "entryId": p.Entry, "revision": p.Revision, "slot": p.Slot} {
		if err := CheckName(field, v); err != nil {
			return TickParts{}, err
		}
	}
	return p, nil
}

// Mailbox holds the wakes of one agent that it has not accepted.
func Mailbox(tenant, agent string) string { return join(FamilyMailbox, tenant, agent) }

// DeadMailbox keeps the wakes of one agent that were given up.
func DeadMailbox(tenant, agent string) string { return join(FamilyMailbox, tenant, agent, "dead") }

// ChangesMailbox is the event that a wake came into a Mailbox.
func ChangesMailbox(tenant, agent string) string {
	return join(FamilyChanges, FamilyMailbox, tenant, agent)
}

// ParseChangesMailbox parses a ChangesMailbox.
func ParseChangesMailbox(s string) (tenant, agent string, err error) {
	rest, ok := strings.CutPrefix(s, Prefix+FamilyChanges+".")
	if !ok {
		return "", "", errcode.New(errcode.InvalidRequest, "subject %q is not a change of a mailbox", s)
	}
	return ParseMailbox(Prefix + rest)
}

// ParseDeadMailbox parses a DeadMailbox.
func ParseDeadMailbox(s string) (tenant, agent string, err error) {
	rest, ok := strings.CutSuffix(s, ".dead")
	if !ok {
		return "", "", errcode.New(errcode.InvalidRequest, "subject %q is not of given-up wakes", s)
	}
	return ParseMailbox(rest)
}

// ParseMailbox parses a Mailbox.
func ParseMailbox(s string) (tenant, agent string, err error) {
	t, err := tokens(s, 3, 3)
	if err == nil && t[0] != FamilyMailbox {
		err = errcode.New(errcode.InvalidRequest, "subject %q is not a mailbox", s)
	}
	if err == nil {
		err = CheckTenant(t[1])
	}
	if err == nil {
		err = CheckName("agent", t[2])
	}
	if err != nil {
		return "", "", err
	}
	return t[1], t[2], nil
}

// SubmitsDurable is the durable consumer of TOOLBUS_SUBMITS through which the
// workers that host a tool pull its submitted calls.
func SubmitsDurable(tool string) string { return "submits_" + tool }

// OutboxKey is the key in BucketStore under which a job's wake waits until it
// is published; no key of a tool collides with it.
func OutboxKey(tenant, agent, tool, jobID string) string {
	return tenant + "." + agent + "." + tool + ".outbox." + jobID
}

// Blob is where a chunk of a spilled body is published; TOOLBUS_BLOBS captures
// it and acknowledges to the publisher's inbox. Family is FamilyAgent or
// FamilyWorker.
func Blob(family, tenant, agent, blobID string) string {
	return join(family, tenant, agent, VerbBlob, blobID)
}

// Fetch asks the files service for a chunk of a spilled body.
func Fetch(family, tenant, agent, blobID string) string {
	return join(family, tenant, agent, VerbFetch, blobID)
}

// StoredBlob is the subject under which TOOLBUS_BLOBS keeps a blob's chunks,
// whichever family published them.
func StoredBlob(tenant, agent, blobID string) string {
	return join(VerbBlob, tenant, agent, blobID)
}

// InstanceLoad is where workers say for which tools they have free slots.
func InstanceLoad() string { return join(FamilyInstance, "load") }

// InstanceCall is where a full worker hands a call on to this instance.
func InstanceCall(workerID string) string { return join(FamilyInstance, workerID, VerbCall) }

// ToolState is an op of the scratch pad.
func ToolState(tenant, op string) string { return join(FamilyToolState, tenant, op) }

// Store is an op of the durable store of one tool of one agent.
func Store(tenant, agent, tool, op string) string {
	return join(FamilyStore, tenant, agent, tool, op)
}

// Files is an op of a tenant's file area.
func Files(tenant, op string) string { return join(FamilyFiles, tenant, op) }

// FilesChunk is where a chunk of an upload is published; the tenant's object
// store captures it and acknowledges to the publisher's inbox.
func FilesChunk(tenant, uploadID string) string {
	return join(FamilyFiles, tenant, "chunk", uploadID)
}

// Registry is an op on a tenant's agent configuration.
func Registry(tenant, op string) string { return join(FamilyRegistry, tenant, op) }

// Catalogue is an op on the tool catalogue.
func Catalogue(op string) string { return join(FamilyCatalogue, op) }

// ChangesAgent is the event that an agent's configuration changed.
func ChangesAgent(tenant, agent string) string {
	return join(FamilyChanges, "agent", tenant, agent)
}

// ChangesAgents matches the change events of every tenant: an agent's
// configuration, or (without the agent) a tenant's own settings.
func ChangesAgents() string { return join(FamilyChanges, "agent", ">") }

// ParseChangesAgent parses an event of ChangesAgents; agent is "" when the
// tenant's own settings changed.
func ParseChangesAgent(s string) (tenant, agent string, err error) {
	t, err := tokens(s, 3, 4)
	if err == nil && (t[0] != FamilyChanges || t[1] != "agent") {
		err = errcode.New(errcode.InvalidRequest, "subject %q is not a change of an agent", s)
	}
	if err == nil {
		err = CheckTenant(t[2])
	}
	if err == nil && len(t) == 4 {
		agent, err = t[3], CheckName("agent", t[3])
	}
	if err != nil {
		return "", "", err
	}
	return t[2], agent, nil
}

// ChangesTool is the event that a worker's offer of a tool changed.
func ChangesTool(tool, workerID string) string { return join(FamilyChanges, "tool", tool, workerID) }

// ChangesToolState is the event that a ToolState document changed.
func ChangesToolState(tenant, namespace, chatToken string) string {
	return join(FamilyChanges, "toolstate", tenant, namespace, chatToken)
}

// ChangesFile is the event that a file of a tenant changed; pathToken is the path
// in URL-safe base64, padded. See PathToken.
func ChangesFile(tenant, pathToken string) string {
	return join(FamilyChanges, "files", tenant, pathToken)
}

// PathToken is a file's path as a subject token. It is not checked: an event
// may also tell of a file that nothing of Toolbus wrote.
func PathToken(path string) string { return base64.URLEncoding.EncodeToString([]byte(path)) }

// ParseChangesFile parses an event of ChangesFile. Check the path before it is
// used.
func ParseChangesFile(s string) (tenant, path string, err error) {
	t, err := tokens(s, 4, 4)
	if err == nil && (t[0] != FamilyChanges || t[1] != "files") {
		err = errcode.New(errcode.InvalidRequest, "subject %q is not a change of a file", s)
	}
	if err == nil {
		err = CheckTenant(t[2])
	}
	var raw []byte
	if err == nil {
		raw, err = base64.URLEncoding.Strict().DecodeString(t[3])
	}
	if err != nil {
		return "", "", errcode.Wrap(errcode.InvalidRequest, err, "subject %q is not a change of a file: %v", s, err)
	}
	return t[2], string(raw), nil
}

// ChangesResult is the event that a call's result was recorded; callToken is the
// escaped call id. The event is empty: ask for the result.
func ChangesResult(tenant, agent, callToken string) string {
	return join(FamilyChanges, "result", tenant, agent, callToken)
}

// ParseChangesResult parses an event of ChangesResult.
func ParseChangesResult(s string) (tenant, agent, callID string, err error) {
	t, err := tokens(s, 5, 5)
	if err == nil && (t[0] != FamilyChanges || t[1] != "result") {
		err = errcode.New(errcode.InvalidRequest, "subject %q is not a change of a result", s)
	}
	if err == nil {
		err = CheckTenant(t[2])
	}
	if err == nil {
		err = CheckName("agent", t[3])
	}
	if err == nil {
		callID, err = Unescape(t[4])
	}
	if err == nil {
		err = CheckName("callId", callID)
	}
	if err != nil {
		return "", "", "", err
	}
	return t[2], t[3], callID, nil
}

// Event is where an entry of the audit trail is published; TOOLBUS_EVENTS captures
// it. Any part may be "*" to subscribe.
func Event(tenant, agent, kind string) string { return join(FamilyEvent, tenant, agent, kind) }

// Events is an op on a tenant's audit trail.
func Events(tenant, op string) string { return join(FamilyEvents, tenant, op) }

// ResultKey is a call's key in BucketResults and BucketClaims.
func ResultKey(tenant, agent, callID string) string {
	return tenant + "." + agent + "." + Escape(callID)
}

// KeyedResultKey is a key in BucketResults and BucketClaims for a call with an
// idempotency key, which may be any text; digest is that of the key.
func KeyedResultKey(tenant, agent, tool, digest string) string {
	return tenant + "." + agent + "." + tool + "." + digest
}

// DeadResultKey is a key in BucketResults for a submitted call that could not be
// served; "*" stands for any.
func DeadResultKey(tenant, agent, callID string) string {
	return tenant + "." + agent + ".dead.call." + callID
}

// ParseDeadResultKey parses a DeadResultKey.
func ParseDeadResultKey(key string) (agent, callID string, ok bool) {
	t := strings.Split(key, ".")
	if len(t) != 5 || t[2] != "dead" || t[3] != "call" {
		return "", "", false
	}
	return t[1], t[4], true
}

// AgentKey is an agent's key in BucketAgents; the tenant's own settings stand
// under the tenant's name alone.
func AgentKey(tenant, agent string) string { return tenant + "." + agent }

// ToolStateKey is a document's key in BucketToolState.
func ToolStateKey(tenant, namespace, chat string) string {
	return tenant + "." + namespace + "." + Escape(chat)
}

// StoreKey is a value's key in BucketStore.
func StoreKey(tenant, agent, tool, key string) string {
	return tenant + "." + agent + "." + tool + "." + Escape(key)
}

// CallQueue is the queue group of the workers that host a tool.
func CallQueue(tool string) string { return tool }

// Agent is a parsed subject of the agent or worker family.
type Agent struct {
	Family string // FamilyAgent or FamilyWorker
	Tenant string
	Agent  string
	Verb   string
	ID     string // tool, call id or blob id; "" for verbs without one
}

// ParseAgent parses agent.<tenant>.<agent>.<verb>[.<id>] and the same of the
// worker family.
func ParseAgent(s string) (Agent, error) {
	t, err := tokens(s, 4, 5)
	if err != nil {
		return Agent{}, err
	}
	a := Agent{Family: t[0], Tenant: t[1], Agent: t[2], Verb: t[3]}
	if a.Family != FamilyAgent && a.Family != FamilyWorker {
		return Agent{}, errcode.New(errcode.InvalidRequest, "subject %q is not of an agent or worker", s)
	}
	if err := CheckTenant(a.Tenant); err != nil {
		return Agent{}, err
	}
	if err := CheckName("agent", a.Agent); err != nil {
		return Agent{}, err
	}
	if len(t) == 5 {
		a.ID = t[4]
		field := "callId"
		switch a.Verb {
		case VerbCall, VerbSubmit, VerbJob:
			field = "tool"
		case VerbBlob, VerbFetch:
			field = "blobId"
		}
		if err := CheckName(field, a.ID); err != nil {
			return Agent{}, err
		}
	}
	return a, nil
}

// ParseTenantOp parses <family>.<tenant>.<op>. Reserved tenants pass when
// reserved is true.
func ParseTenantOp(family, s string, reserved bool) (tenant, op string, err error) {
	t, err := tokens(s, 3, 3)
	if err != nil {
		return "", "", err
	}
	if t[0] != family {
		return "", "", errcode.New(errcode.InvalidRequest, "subject %q is not of %s", s, family)
	}
	if reserved {
		err = CheckName("tenant", t[1])
	} else {
		err = CheckTenant(t[1])
	}
	return t[1], t[2], err
}

// ParseStore parses store.<tenant>.<agent>.<tool>.<op>.
func ParseStore(s string) (tenant, agent, tool, op string, err error) {
	t, err := tokens(s, 5, 5)
	if err == nil && t[0] != FamilyStore {
		err = errcode.New(errcode.InvalidRequest, "subject %q is not of the store", s)
	}
	if err == nil {
		err = CheckTenant(t[1])
	}
	if err == nil {
		err = CheckName("agent", t[2])
	}
	if err == nil {
		err = CheckName("tool", t[3])
	}
	if err != nil {
		return "", "", "", "", err
	}
	return t[1], t[2], t[3], t[4], nil
}

// ParseToolStateKey splits a key of BucketToolState.
func ParseToolStateKey(key string) (tenant, namespace, chat string, err error) {
	p := strings.Split(key, ".")
	if len(p) != 3 {
		return "", "", "", errcode.New(errcode.InvalidRequest, "%q is not a ToolState key", key)
	}
	chat, err = Unescape(p[2])
	return p[0], p[1], chat, err
}

func tokens(s string, least, most int) ([]string, error) {
	rest, ok := strings.CutPrefix(s, Prefix)
	t := strings.Split(rest, ".")
	if !ok || len(t) < least || len(t) > most {
		return nil, errcode.New(errcode.InvalidRequest, "subject %q has the wrong shape", s)
	}
	return t, nil
}
