package tool

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// JobProvider is what a Tool may implement besides: background checks that run
// on a schedule without a model, and wake the agent only when something
// happened. An agent's configuration says which of them run, and when
// (toolJobs).
//
// ExecuteJob may be called from many goroutines at once, for different agents;
// never twice at once for one job of an agent. Its three ways to end:
//
//   - a JobResult: the check ran. What it wrote to Store is committed together
//     with the wake, or neither is.
//   - an error: the check failed. Nothing is written, nobody is woken, and the
//     run is repeated or given up, as the scheduler sees fit.
//   - ctx ends: return soon; what is returned after that is discarded.
//
// A run whose outcome was lost is repeated and then sees the store as it was
// before. So what a job does elsewhere than in its Store may happen twice.
type JobProvider interface {
	// Jobs lists the checks on offer; the same ones each time.
	Jobs() []JobDefinition
	// ExecuteJob runs the check call.JobTypeID once, one of those in Jobs.
	ExecuteJob(ctx context.Context, call *JobCall) (JobResult, error)
}

// JobDefinition describes a check to whoever configures it.
type JobDefinition struct {
	ID          string // unique within the tool; [A-Za-z0-9_-]{1,64}: the jobTypeId of a configuration
	Name        string // a short title
	Description string // what it looks for, and what it wakes the agent with
}

// JobFunc runs a check once; see JobProvider.
type JobFunc func(ctx context.Context, call *JobCall) (JobResult, error)

// Job adds a check to a tool made by New, which then is a JobProvider.
func Job(id, name, description string, fn JobFunc) Option {
	return func(o *options) {
		o.jobs = append(o.jobs, job{JobDefinition{id, name, description}, fn})
	}
}

type job struct {
	def JobDefinition
	fn  JobFunc
}

// JobsOf lists the checks a tool offers; none unless it is a JobProvider.
func JobsOf(t Tool) []JobDefinition {
	if p, ok := t.(JobProvider); ok {
		return p.Jobs()
	}
	return nil
}

// Validate checks what a tool says of itself, its checks included; the error
// names the field. Runtimes host no tool that fails it.
func Validate(t Tool) error {
	if err := t.Definition().Validate(); err != nil {
		return err
	}
	return validateJobs(JobsOf(t))
}

func validateJobs(defs []JobDefinition) error {
	seen := map[string]bool{}
	for _, d := range defs {
		if err := subject.CheckName("jobs.id", d.ID); err != nil {
			return err
		}
		switch {
		case seen[d.ID]:
			return errcode.Field("jobs.id", "two jobs are named %s", d.ID)
		case d.Name == "":
			return errcode.Field("jobs.name", "is required: it is %s's title", d.ID)
		case d.Description == "":
			return errcode.Field("jobs.description", "is required: it tells who configures %s what it looks for", d.ID)
		}
		seen[d.ID] = true
	}
	return nil
}

// FindJob returns the definition of a check; invalid_request naming jobTypeId
// when the tool has no such check.
func FindJob(t Tool, jobTypeID string) (JobDefinition, error) {
	var ids []string
	for _, d := range JobsOf(t) {
		if d.ID == jobTypeID {
			return d, nil
		}
		ids = append(ids, d.ID)
	}
	name := t.Definition().Name
	if ids == nil {
		return JobDefinition{}, errcode.Field("jobTypeId", "%q: %s has no jobs", jobTypeID, name)
	}
	return JobDefinition{}, errcode.Field("jobTypeId", "%q: %s has no such job, only %s", jobTypeID, name, strings.Join(ids, ", "))
}

// JobCall is one run of a check, and the capabilities it may use. It is valid
// until ExecuteJob returns. There is no chat, hence no scratch State.
type JobCall struct {
	Tenant     string // the customer
	Agent      string // the agent whose job runs
	InstanceID string // the worker process that runs it

	JobID       string    // the job in the agent's configuration
	JobTypeID   string    // which check
	TickID      string    // this slot of the job; the same when its run is repeated
	ScheduledAt time.Time // when the slot was due
	Attempt     int       // runs of this slot so far, from 1

	// Settings are those of this tool of this agent, as in a Call.
	Settings json.RawMessage

	// Log writes to the tool's own log module, Tool_<Name>.
	Log Logger

	env   JobEnv
	store *jobStore
}

// JobEnv is what a runtime gives a JobCall; every Env is one.
type JobEnv interface {
	Store() RevisionStore
	Files() Files
	CallTool(ctx context.Context, name string, arguments json.RawMessage) (Result, error)
	Now() time.Time
}

// WithEnv returns a copy of the call that uses env. For runtimes.
func (c JobCall) WithEnv(env JobEnv) *JobCall {
	c.env, c.store = env, newJobStore(env.Store())
	if c.Log == nil {
		c.Log = discard{}
	}
	return &c
}

// BindSettings decodes the tool's settings into v. What does not fit is the
// operator's mistake: invalid_request.
func (c *JobCall) BindSettings(v any) error { return bindSettings(c.Settings, v) }

// Store is the durable store of this tool of this agent. Reads see what this
// run wrote. Writes are only collected: they happen together with the wake,
// after the run, and not at all when it fails.
func (c *JobCall) Store() Store { return c.store }

// Files is the tenant's file area. What a job writes there happens at once, and
// again when its run is repeated.
func (c *JobCall) Files() Files { return c.env.Files() }

// Call calls another tool for the same agent, without a chat; see Call.Call.
func (c *JobCall) Call(ctx context.Context, name string, arguments any) (Result, error) {
	return callTool(ctx, c.env.CallTool, name, arguments)
}

// Now is the current time; tests can set it.
func (c *JobCall) Now() time.Time { return c.env.Now() }

// Writes ends the run's store and returns what was written to it: one write
// per key, the last, in the order of the keys' first writes. For runtimes.
func (c *JobCall) Writes() []message.StoreWrite { return c.store.end() }

// JobResult is what a check that ran has to say; make it with NoAction, Wake or
// WakeStateless. The zero value is NoAction().
type JobResult struct {
	Action  string // message.ActionNone (also ""), ActionWake or ActionWakeStateless
	Message string // what the agent is woken with
	Chat    string // the conversation to wake; "" for the one the configuration names
	Summary string // one line for the job's history and log; optional
}

// NoAction wakes nobody. A summary, if any, goes to the job's history and log.
func NoAction(summary ...string) JobResult {
	return JobResult{Action: message.ActionNone, Summary: strings.Join(summary, "; ")}
}

// Wake wakes the agent in a conversation, which it goes on with: for what is
// part of one, such as an answer that came in.
func Wake(msg string, opts ...WakeOption) JobResult {
	return wake(message.ActionWake, msg, opts)
}

// WakeStateless wakes the agent for an isolated run that knows no conversation:
// for what stands alone.
func WakeStateless(msg string, opts ...WakeOption) JobResult {
	return wake(message.ActionWakeStateless, msg, opts)
}

func wake(action, msg string, opts []WakeOption) JobResult {
	r := JobResult{Action: action, Message: msg}
	for _, f := range opts {
		f(&r)
	}
	return r
}

// WakeOption is a choice of Wake and WakeStateless.
type WakeOption func(*JobResult)

// LogSummary is one line for the job's history and log, formatted as by OK.
func LogSummary(format string, args ...any) WakeOption {
	return func(r *JobResult) { r.Summary = text(format, args) }
}

// WakeChat names the conversation to wake, in place of the one that the
// configuration names. A stateless wake has none.
func WakeChat(id string) WakeOption { return func(r *JobResult) { r.Chat = id } }

// Validate checks a result; what does not make sense is the tool's fault
// (internal). For runtimes.
func (r JobResult) Validate() error {
	switch r.Action {
	case "", message.ActionNone:
		if r.Message != "" || r.Chat != "" {
			return errcode.New(errcode.Internal, "the job has a wake message or chat, and wakes nobody")
		}
		return nil
	case message.ActionWake:
	case message.ActionWakeStateless:
		if r.Chat != "" {
			return errcode.New(errcode.Internal, "the job names a chat for a stateless wake")
		}
	default:
		return errcode.New(errcode.Internal, "the job's action %q is none of none, wake and wakeStateless", r.Action)
	}
	if strings.TrimSpace(r.Message) == "" {
		return errcode.New(errcode.Internal, "the job wakes the agent and does not say what for")
	}
	if r.Chat != "" {
		if err := subject.CheckFree("chat", r.Chat); err != nil {
			return errcode.Wrap(errcode.Internal, err, "the job's %s", errcode.From(err).Message)
		}
	}
	return nil
}

// Reply is the result on the wire, with the run's writes. For runtimes.
func (r JobResult) Reply(writes []message.StoreWrite) message.JobReply {
	out := message.JobReply{
		Action: r.Action, WakeMessage: strings.ToValidUTF8(r.Message, "\uFFFD"), ChatID: r.Chat,
		LogSummary: strings.ToValidUTF8(r.Summary, "\uFFFD"), StoreWrites: writes,
	}
	if out.Action == "" {
		out.Action = message.ActionNone
	}
	return out
}
