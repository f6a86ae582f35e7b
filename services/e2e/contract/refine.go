package contract

import (
	"go.yaml.in/yaml/v2"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

const (
	namePattern     = "^[A-Za-z0-9_-]{1,64}$"
	tenantPattern   = "^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}$"
	durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
)

// refinement is what a Go type cannot say of a field.
type refinement struct {
	doc      string        // instead of the field's comment
	optional bool          // may be left out, though Go always writes it
	schema   yaml.MapSlice // instead of the derived one
	add      yaml.MapSlice // beside the derived one
}

func enum[T ~string](values ...T) yaml.MapSlice {
	var list []string
	for _, v := range values {
		list = append(list, string(v))
	}
	return yaml.MapSlice{{Key: "enum", Value: list}}
}

func atLeast(n int) yaml.MapSlice { return yaml.MapSlice{{Key: "minimum", Value: n}} }

var (
	name       = yaml.MapSlice{{Key: "pattern", Value: namePattern}}
	anObject   = yaml.MapSlice{{Key: "type", Value: "object"}}
	tools      = yaml.MapSlice{{Key: "type", Value: "object"}, {Key: "additionalProperties", Value: toolEntry}}
	toolEntry  = yaml.MapSlice{{Key: "$ref", Value: "#/components/schemas/ToolEntry"}}
	errorValue = yaml.MapSlice{{Key: "$ref", Value: "#/components/schemas/Error"}}
)

// open are the types that have fields of names that others choose, and what these
// are.
var open = map[string]string{"ToolEntry": "The tool's own settings."}

// refinements are keyed by "Type.field", or by "field" for every field of that
// name.
var refinements = map[string]refinement{
	"agentId":   {add: name},
	"toolName":  {add: name},
	"workerId":  {add: name},
	"callId":    {add: name},
	"wakeId":    {add: yaml.MapSlice{{Key: "minLength", Value: 1}}},
	"uploadId":  {add: name},
	"namespace": {add: name},
	"timeoutMs": {add: atLeast(0)},
	"ttlMs":     {add: atLeast(1)},
	"waitMs":    {add: yaml.MapSlice{{Key: "minimum", Value: 0}, {Key: "maximum", Value: 60000}}},
	"chunk":     {add: atLeast(0)},
	"chunks":    {add: atLeast(0)},
	"offset":    {add: atLeast(0)},
	"length":    {add: atLeast(0)},
	"size":      {add: atLeast(0)},
	"attempt":   {add: atLeast(0)},

	"ToolStateListing.cursor": {doc: "Set when there is more: the cursor of the next list request."},
	"StoreKeys.cursor":        {doc: "Set when a page was asked for and more keys follow."},
	"StoreList.limit":         {doc: "At most so many keys.", add: yaml.MapSlice{{Key: "minimum", Value: 0}, {Key: "maximum", Value: 1000}}},
	"Event.kind":              {doc: "What it tells of, as in the subject.", add: enum(message.EventKinds...)},
	"EventsList.kind":         {doc: "Only events of this kind.", add: enum(message.EventKinds...)},
	"Event.durationMs":        {add: atLeast(0)},
	"EventListing.events":     {doc: "The events, oldest first."},
	"TenantConfig.events":     {doc: "What the tenant's audit trail holds."},
	"FileListing.cursor":      {doc: "Set when there is more: the cursor of the next list request."},
	"RegistryListing.cursor":  {doc: "Set when a page was asked for and more agents follow."},

	"CallRequest.arguments":      {schema: anObject, doc: "The tool's arguments; they must fit its inputSchema. Left out: {}."},
	"CallRequest.idempotencyKey": {doc: "Retries with one key, within tenant, agent and tool, have one effect and get the first result, also while the first one runs; with other arguments they are a conflict. A worker that cannot promise that refuses it with invalid_request."},
	"CallReply.durationMs":       {doc: "How long the call took in the worker, in milliseconds.", add: atLeast(0)},
	"CallReply.success":          {doc: "Whether the tool could do it."},

	"ToolDefinition.name":           {doc: "The tool's name, unique on this Toolbus.", add: name},
	"CatalogueEntry.name":           {doc: "The tool's name, unique on this Toolbus.", add: name},
	"ToolDefinition.inputSchema":    {schema: anObject, doc: `JSON Schema 2020-12 of the arguments, with "type": "object" at its root.`},
	"ToolDefinition.settingsSchema": {schema: anObject, doc: `JSON Schema 2020-12 of the tool's settings in an agent's configuration; agents do not see it.`},
	"CatalogueEntry.settingsSchema": {schema: anObject, doc: `JSON Schema 2020-12 of the tool's settings in an agent's configuration.`},
	"CatalogueEntry.inputSchema":    {schema: anObject, doc: `JSON Schema 2020-12 of the arguments, with "type": "object" at its root.`},
	"CatalogueAnnounce.tools":       {doc: "Everything the worker hosts; empty when it leaves."},
	"AgentToolsReply.tools":         {doc: "The granted tools that some worker hosts, ordered by name."},

	"RegistryApply.config":     {schema: anObject, doc: "A Config, or a single AgentConfig object."},
	"AgentConfig.tools":        {schema: tools},
	"TenantConfig.settings":    {schema: anObject, doc: "Settings shared by all chats, any JSON."},
	"TenantConfig.files":       {doc: "What the tenant's file area may hold."},
	"Config.agents":            {doc: "The agents, each agentId once."},
	"RegistryListing.agents":   {doc: "The agents, ordered by agentId."},
	"RegistryApplied.agents":   {doc: "The outcome for each agent of the configuration."},
	"ScheduleEntry.wakeMode":   {add: enum(message.WakeChat, message.WakeStateless)},
	"ToolJob.wakeMode":         {doc: "chat (default) or stateless.", add: enum(message.WakeChat, message.WakeStateless)},
	"ScheduleEntry.missed":     {add: enum("once", "skip")},
	"ToolJob.missed":           {doc: "What happens to times that passed while nothing ran: once (default) or skip.", add: enum("once", "skip")},
	"ToolJob.jitter":           {doc: "Delays each run by a random time up to this, a Go duration."},
	"ToolJob.chatId":           {doc: "Which conversation to wake."},
	"ToolJob.expiresAfter":     {doc: "A wake not accepted within this time is dropped; a Go duration."},
	"Wake.mode":                {doc: "chat: go on in a conversation. stateless: an isolated run without history.", add: enum(message.WakeChat, message.WakeStateless)},
	"Wake.message":             {doc: "What the agent is told."},
	"Wake.source":              {doc: "What caused the wake."},
	"WakeSource.kind":          {doc: "What kind of thing caused it.", add: enum(message.SourceSchedule, message.SourceToolJob, message.SourceCall, message.SourceAPI)},
	"WakeSource.tool":          {doc: "The tool, when the source is a tool's job or call."},
	"WakeReply.accepted":       {doc: "True takes the wake off the agent's mailbox. In an interim reply it may be left out.", optional: true},
	"WakeReply.inProgress":     {doc: "True in an interim reply: I have it and am not done; the final reply follows on the same reply subject."},
	"WakeReply.retryAfter":     {doc: "With accepted false: busy, try again after this Go duration."},
	"JobReply.action":          {doc: "Whether to wake the agent, and how.", add: enum(message.ActionNone, message.ActionWake, message.ActionWakeStateless)},
	"JobReply.wakeMessage":     {doc: "What the agent is told; required to wake it."},
	"JobReply.chatId":          {doc: "Which conversation to wake; without it, the configuration's."},
	"JobReply.logSummary":      {doc: "One line for the job's history."},
	"JobReply.storeWrites":     {doc: "Writes to the tool's store, committed together with the wake."},
	"StoreWrite.value":         {doc: "The new value; null deletes the key."},
	"JobDefinition.id":         {doc: "The job's type id, which toolJobs[].jobTypeId of a configuration names.", add: name},
	"JobDefinition.name":       {doc: "A title for people."},
	"SchedulerEntry.kind":      {add: enum(message.SourceSchedule, message.SourceToolJob)},
	"SchedulerEntry.last":      {doc: "How the last slot ended."},
	"SlotEntry.outcome":        {doc: "How the slot ended.", add: enum(message.SlotRan, message.SlotMissed, message.SlotSkipped, message.SlotFailed)},
	"SchedulerWake.mode":       {add: enum(message.WakeChat, message.WakeStateless)},
	"SchedulerWakes.state":     {add: enum(message.WakesPending, message.WakesDead)},
	"SchedulerWake.message":    {doc: "What the agent is told."},
	"SchedulerHistory.slots":   {doc: "The slots, newest first."},
	"SchedulerWakeList.wakes":  {doc: "The wakes, oldest first."},
	"StoreOutboxRecord.wake":   {doc: "The wake, while it is not known to be in the mailbox."},
	"StoreCommit.wake":         {doc: "The wake to record with the writes."},
	"PendingWake.wake":         {doc: "The wake as it will be delivered."},
	"StoreCommitted.committed": {doc: "Whether this commit was applied."},
	"SchedulerPaused.paused":   {doc: "Whether the entry is paused now."},

	"ResultReply.state":           {doc: "pending or done.", add: enum(message.ResultPending, message.ResultDone)},
	"ResultReply.reply":           {doc: "The call's reply, when the tool ran."},
	"ResultReply.error":           {schema: errorValue, doc: "The error of a call that could not be served, as in an error reply."},
	"ResultClaim.runId":           {doc: "A name of this run, made by the worker.", add: name},
	"ResultClaimed.leaseMs":       {doc: "How long a granted claim stands that is not renewed, in milliseconds.", add: atLeast(1)},
	"ResultClaimed.state":         {doc: "granted: run it. running: another run of the same message is under way, ask again after a second. duplicate: the call was submitted twice and the other message is under way, acknowledge this one. done: it has ended, acknowledge the message. released: answers release.", add: enum(message.ClaimGranted, message.ClaimRunning, message.ClaimDuplicate, message.ClaimDone, message.ClaimReleased)},
	"ResultComplete.reply":        {doc: "The call's reply, when the tool ran."},
	"ResultComplete.error":        {schema: errorValue, doc: "The error of a call that could not be served, as in an error reply."},
	"ResultComplete.replyBlob":    {doc: "Holds the JSON of a reply too large for a message."},
	"ResultCompleted.recorded":    {doc: "Whether this end was recorded."},
	"ResultClaim.submit":          {doc: "The stream sequence of the message that submitted it; 0 for a call that was not submitted.", optional: true},
	"ResultClaim.error":           {schema: errorValue, doc: "With release: why the run has failed; the call is to run again."},
	"ResultSettle.request":        {schema: anObject, doc: "The call's body, for running it again by hand; left out when it is too large."},
	"ResultSettled.settled":       {doc: "Always true."},
	"SubmitEntry.error":           {schema: errorValue, doc: "Why a dead one could not be served."},
	"SubmitList.state":            {doc: "waiting (default) or dead.", add: enum(message.SubmitsWaiting, message.SubmitsDead)},
	"SubmitListing.submits":       {doc: "The calls, oldest first."},
	"SubmitAck.stream":            {optional: true},
	"SubmitAck.seq":               {doc: "The message's number in the stream.", optional: true},
	"SubmitAck.error":             {schema: anObject, doc: "Why it was not stored; then it was not. Its description says more."},
	"SubmitsConsumer.durable":     {doc: "The consumer's name."},
	"SchedulerEntries.entries":    {doc: "The entries, ordered by agent and entry."},
	"SchedulerTriggered.tickId":   {doc: "The id of the run."},
	"SchedulerWakeSent.wakeId":    {doc: "The wake's id."},
	"StoreOutboxRecord.found":     {doc: "Whether a tick of the job was ever committed."},
	"ToolStateValue.found":        {doc: "Whether the key has a value."},
	"ToolStateData.found":         {doc: "Whether there is a document."},
	"StoreValue.found":            {doc: "Whether the key has a value."},
	"ToolStateDocument.data":      {doc: "The keys and their values, any JSON."},
	"ToolStateData.data":          {doc: "The keys and their values, any JSON; {} when there is no document."},
	"ToolStateUpdate.set":         {doc: "Keys and their new values, any JSON."},
	"ToolStateUpdate.delete":      {doc: "Keys to remove."},
	"ToolStateIncrement.by":       {doc: "What to add: any JSON number."},
	"ToolStateIncremented.value":  {doc: "The new number."},
	"ToolStateAppended.length":    {doc: "How many elements the array has now."},
	"ToolStateAppend.values":      {doc: "The values to add, any JSON."},
	"ToolStateAppend.unique":      {doc: "Leave out values that are there already."},
	"ToolStateEntry.keys":         {doc: "How many keys the document has."},
	"ToolStateListing.documents":  {doc: "The documents."},
	"ToolStateDeleted.deleted":    {doc: "False when there was nothing."},
	"StoreDeleted.deleted":        {doc: "False when there was nothing."},
	"FileMove.to":                 {doc: "The new path; like path, and another one."},
	"FileMove.ifRevision":         {doc: "Compare-and-set: move it only if this is the current revision of the file at path. A miss is a conflict with the current revision in details.revision."},
	"FileMove.overwrite":          {doc: "Replace what stands at to; otherwise that is a conflict."},
	"FileMoved.path":              {doc: "Where the file stands now."},
	"FileVersionList.versions":    {doc: "The versions, newest first; the first is the current one."},
	"FileDeleted.deleted":         {doc: "False when there was nothing."},
	"RegistryDeleted.deleted":     {doc: "False when there was none."},
	"ToolStateCleared.cleared":    {doc: "False when there was nothing."},
	"StoreKeys.keys":              {doc: "The keys, sorted."},
	"FileListing.files":           {doc: "The files, in the order of their paths."},
	"FileWrite.content":           {doc: "What to write, in the given encoding; empty when upload is set.", optional: true},
	"FileWrite.encoding":          {add: enum(message.EncodingUTF8, message.EncodingBase64)},
	"FileWrite.mode":              {doc: "overwrite (default), append, or create (conflict when the file exists).", add: enum(message.ModeOverwrite, message.ModeAppend, message.ModeCreate)},
	"FileWritten.mode":            {doc: "The mode that was used.", add: enum(message.ModeOverwrite, message.ModeAppend, message.ModeCreate)},
	"FileWrite.upload":            {doc: "The chunks that were published before, instead of content."},
	"FileRead.encoding":           {add: enum(message.EncodingUTF8, message.EncodingBase64)},
	"FileContent.encoding":        {add: enum(message.EncodingUTF8, message.EncodingBase64)},
	"FileRead.offset":             {doc: "Where to begin, in bytes."},
	"FileRead.revision":           {doc: "Read this version only, the current one or one that is kept; a version that is gone is a conflict."},
	"FileContent.content":         {doc: "The content in the given encoding; null for a missing file."},
	"FileContent.offset":          {doc: "Where content begins, in bytes."},
	"FileContent.exists":          {doc: "False for a missing file, which is no error."},
	"FileInfo.exists":             {doc: "False for a missing file, which is no error."},
	"FileWritten.bytesWritten":    {doc: "Bytes this write wrote.", add: atLeast(0)},
	"Blob.id":                     {doc: "The blob's id, made by the sender: part of the subjects of its chunks.", add: name},
	"FetchRequest.chunk":          {doc: "Which chunk, from 0."},
	"ProgressEvent.beat":          {doc: "True: the call is alive."},
	"AgentEntry.config":           {doc: "The agent's configuration."},
	"AgentApplied.changed":        {doc: "Whether the configuration differs from the one before."},
	"CatalogueTools.tools":        {doc: "Every tool, ordered by name."},
	"CatalogueAnnounced.ttlMs":    {doc: "How long the offer stands, in milliseconds; repeat it after a third of that."},
	"CatalogueEntry.workers":      {doc: "The ids of the workers that host it."},
	"RegistryTenants.tenants":     {doc: "The tenants."},
	"AgentToolsReply.unavailable": {doc: "Names of granted tools that no worker hosts now."},
	"RegistryApply.dryRun":        {doc: "Check and compare only; change nothing."},
	"RegistryApply.prune":         {doc: "Remove the tenant's agents that the configuration does not name."},

	"Error.code":       {doc: "What kind of failure it is. The list grows, never changes: match by code, and treat an unknown one as internal.", add: enum(errcode.All()...)},
	"Error.message":    {doc: "For people and models. Its wording may change."},
	"Error.retryable":  {doc: "Whether the same request may succeed later without being changed. It does not promise that the first try had no effect."},
	"Error.details":    {doc: "Particulars for programs."},
	"ErrorReply.error": {doc: "What went wrong."},
}

// descriptions of fields that mean the same wherever they stand and have no
// comment of their own.
var descriptions = map[string]string{
	"agentId":     "The agent.",
	"attempt":     "Which try of the same thing this is, from 1.",
	"callId":      "The call's id, unique within the agent.",
	"chatId":      "The conversation: any text of 1 to 256 bytes without control characters.",
	"cron":        "Five fields (minute, hour, day of month, month, day of week), or six with seconds in front; or @hourly, @daily, @every 90s.",
	"cursor":      "Where to go on: the cursor of the reply before.",
	"waitMs":      "How long to wait for a result that is not there yet, in milliseconds; at most 60000.",
	"slots":       "How many slots in a row this stands for, when more than one.",
	"slot":        "The tick's time, Unix milliseconds.",
	"description": "What it does, for people and models.",
	"encoding":    "utf8 (default), or base64 (standard alphabet, padded) for other content.",
	"entryId":     "The schedule's or job's id.",
	"error":       "What went wrong.",
	"expiresAt":   "When the document expires, RFC 3339.",
	"ifRevision":  "Compare-and-set: change it only if this is its current revision; 0: only if it does not exist. A miss is a conflict with the current revision in details.revision.",
	"jobId":       "The job's id.",
	"jobTypeId":   "Which of the tool's checks.",
	"key":         "The key, 1 to 256 bytes without control characters.",
	"limit":       "At most so many.",
	"namespace":   "Which document of the chat; by custom the name of a tool or tool family.",
	"opId":        "An id of your choice for this change. A retry with the same opId has one effect and gets the first answer.",
	"path":        "Relative, segments separated by /, NFC, at most 1024 bytes; no empty, . or .. segment, no backslash.",
	"paused":      "Whether it is paused.",
	"prefix":      "Only what begins with this.",
	"revision":    "The version that stands, to compare with; 0 when there is none.",
	"runOnStart":  "Also run once when the system starts and when the entry is deployed.",
	"size":        "Size in bytes.",
	"summary":     "One line about the run.",
	"stream":      "The stream's name.",
	"taskMessage": "What the agent is told to do.",
	"tickId":      "The run's id, the same in every attempt: entry and scheduled time.",
	"timeoutMs":   "The limit of one call, in milliseconds.",
	"timezone":    "An IANA time zone name; default: the agent's, else UTC.",
	"tool":        "The tool.",
	"toolName":    "The tool whose check runs; one of the agent's tools.",
	"ttl":         "How long the whole document lives from now: such as 24h, 1h30m or +24 hours; by default 24 hours.",
	"uploadId":    "The upload's id.",
	"value":       "The value.",
	"version":     "The version, for people.",
	"wakeId":      "The wake's id, the same in every delivery.",
	"workerId":    "An id that this worker process made at its start.",
	"writes":      "Writes to the tool's store.",
	"modified":    "When it was last changed, RFC 3339, UTC.",
	"scheduler":   "Wakes the agent at certain times, always.",
	"toolJobs":    "Runs a tool's background check at certain times; the check may wake the agent.",
	"tenant":      "What the tenant's agents share.",
	"enabled":     "Whether it runs.",
	"chunks":      "How many chunks there are.",
}
