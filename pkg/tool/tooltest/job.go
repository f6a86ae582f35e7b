package tooltest

import (
	"context"
	"fmt"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/tool"
)

// DefaultJob and the others are what a job run has unless its options say otherwise.
const DefaultJob = "job-1"

type jobOptions struct {
	id, tick  string
	scheduled time.Time
	attempt   int
	lost      bool
}

// JobID names the agent's job that runs.
func JobID(id string) Option { return func(o *callOptions) { o.job.id = id } }

// TickID names the slot that runs; by default runs are numbered.
func TickID(id string) Option { return func(o *callOptions) { o.job.tick = id } }

// ScheduledAt is when the slot was due; by default now.
func ScheduledAt(t time.Time) Option { return func(o *callOptions) { o.job.scheduled = t } }

// Attempt counts the runs of the slot, from 1.
func Attempt(n int) Option { return func(o *callOptions) { o.job.attempt = n } }

// OutcomeLost loses the run's outcome, as when a process dies before it is
// committed: nothing is written, and a scheduler would run the slot again.
func OutcomeLost() Option { return func(o *callOptions) { o.job.lost = true } }

// JobOutcome is what a run led to.
type JobOutcome struct {
	tool.JobResult
	Writes []message.StoreWrite // what it wrote to its store; committed, unless the outcome was lost
}

// Woke tells whether the run woke the agent.
func (o JobOutcome) Woke() bool {
	return o.Action == message.ActionWake || o.Action == message.ActionWakeStateless
}

// RunJob runs a check once, as scheduler and worker do: the tool's time limit
// applies, a panic is an internal error, a check that the tool does not have is
// invalid_request, and the store writes are committed when, and only when, the
// run succeeded. Tenant, Agent, Settings, and the options of jobs apply.
func (e *Env) RunJob(ctx context.Context, name, jobTypeID string, opts ...Option) (JobOutcome, error) {
	o := callOptions{tenant: DefaultTenant, agent: DefaultAgent, job: jobOptions{id: DefaultJob, attempt: 1}}
	for _, f := range opts {
		f(&o)
	}
	o.chat = "" // jobs have none
	if o.settingsErr != nil {
		return JobOutcome{}, errcode.Field("settings", "have no JSON form: %v", o.settingsErr)
	}
	if err := checkCaller(o); err != nil {
		return JobOutcome{}, err
	}
	if err := subject.CheckName("jobId", o.job.id); err != nil {
		return JobOutcome{}, err
	}
	h, ok := e.tools[name]
	if !ok {
		return JobOutcome{}, errcode.New(errcode.Unavailable, "no worker hosts the tool %q", name)
	}
	if _, err := tool.FindJob(h.tool, jobTypeID); err != nil {
		return JobOutcome{}, err
	}
	if err := ctx.Err(); err != nil {
		return JobOutcome{}, errcode.From(err)
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout())
	defer cancel()
	call := e.newJobCall(name, jobTypeID, o)
	res, err := result(ctx, startJob(ctx, h.tool.(tool.JobProvider), call))
	out := JobOutcome{JobResult: res, Writes: call.Writes()}
	if err == nil {
		err = res.Validate()
	} else if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return JobOutcome{}, errcode.From(err)
	}
	if out.Action == "" {
		out.Action = message.ActionNone
	}
	if !o.job.lost {
		e.stores.commit(o.tenant, o.agent, name, out.Writes)
	}
	return out, nil
}

func startJob(ctx context.Context, p tool.JobProvider, call *tool.JobCall) <-chan ending[tool.JobResult] {
	return launch(func() (tool.JobResult, error) { return p.ExecuteJob(ctx, call) })
}

func (e *Env) newJobCall(name, jobTypeID string, o callOptions) *tool.JobCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	if o.job.tick == "" {
		o.job.tick = fmt.Sprintf("tick-%d", e.calls)
	}
	if o.job.scheduled.IsZero() {
		o.job.scheduled = e.clock.now()
	}
	return tool.JobCall{
		Tenant: o.tenant, Agent: o.agent, InstanceID: "tooltest",
		JobID: o.job.id, JobTypeID: jobTypeID, TickID: o.job.tick, ScheduledAt: o.job.scheduled, Attempt: o.job.attempt,
		Settings: e.settingsOf(name, o), Log: e.record.logger(name, o.job.tick),
	}.WithEnv(&callEnv{env: e, tool: name, caller: o})
}
