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
	FamilyChanges   = "changes"   // change events
)

// Verbs of the agent and worker families.
const (
	VerbCall     = "call"
	VerbCancel   = "cancel"
	VerbProgress = "progress"
	VerbTools    = "tools"
	VerbBlob     = "blob"
	VerbFetch    = "fetch"
)

// Streams and buckets. Only the owning service touches them.
const (
	StreamBlobs     = "TOOLBUS_BLOBS"     // files: spilled arguments and results
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
		case VerbCall:
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
