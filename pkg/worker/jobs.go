package worker

import (
	"context"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/tool"
)

// serveJob answers one run of a tool's background check. Its store writes are
// not executed here: they are part of the answer, and whoever asked commits
// them together with the wake.
func (w *Worker) serveJob(ctx context.Context, h *hosted, in *bus.Incoming) (any, error) {
	start := time.Now()
	who, err := subject.ParseAgent(in.Subject)
	if err != nil {
		return nil, err
	}
	var req message.JobRequest
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	due, err := checkJob(req)
	if err != nil {
		return nil, err
	}
	if _, err := tool.FindJob(h.tool, req.JobTypeID); err != nil {
		return nil, err
	}
	if id := in.Header.Get(message.HeaderCallID); in.Header.Get(message.HeaderBeats) == "1" && subject.CheckName("callId", id) == nil {
		stop := startBeats(w.nc, subject.AgentProgress(who.Tenant, who.Agent, id), firstBeat(in.Header))
		defer stop()
	}
	reply, err := w.job(ctx, h, who, req, due)
	w.metrics.ranJob(h.def.Name, req.JobTypeID, reply.Action, err, start)
	if err != nil {
		in.Answer(nil, err)
	} else {
		in.Answer(reply, nil)
	}
	w.audit(who, h, checked(req, reply, err, start), nil)
	return bus.Later, nil
}

// checkJob finds every fault of a request; due is its parsed ScheduledAt.
func checkJob(req message.JobRequest) (due time.Time, err error) {
	var faults []errcode.FieldFault
	add := func(err error) {
		if err != nil {
			faults = append(faults, errcode.From(err).Details.Fields...)
		}
	}
	add(subject.CheckFree("tickId", req.TickID))
	add(subject.CheckName("jobId", req.JobID))
	add(subject.CheckName("jobTypeId", req.JobTypeID))
	if due, err = time.Parse(time.RFC3339Nano, req.ScheduledAt); err != nil {
		add(errcode.Field("scheduledAt", "%q is not an RFC 3339 time", req.ScheduledAt))
	}
	if req.Attempt < 1 {
		add(errcode.Field("attempt", "must be at least 1"))
	}
	if req.TimeoutMs < 0 {
		add(errcode.Field("timeoutMs", "must not be negative"))
	}
	if faults != nil {
		return due, errcode.Fields(errcode.InvalidRequest, faults...)
	}
	return due, nil
}

func (w *Worker) job(ctx context.Context, h *hosted, who subject.Agent, req message.JobRequest, due time.Time) (message.JobReply, error) {
	// A job runs for an agent that has the tool in its configuration: an
	// internal tool must be listed too.
	owner := who
	owner.Family = subject.FamilyAgent
	entry, err := w.grants.entry(ctx, owner, h.def)
	if err != nil {
		return message.JobReply{}, err
	}
	settings, redact, err := w.settings(h, entry)
	if err != nil {
		return message.JobReply{}, err
	}
	// Whoever asked has another run made when this one takes longer than it says.
	limit := h.timeout
	if entry.Limit > 0 {
		limit = min(limit, entry.Limit)
	}
	ctx, done := h.limit(ctx, shorter(limit, req.TimeoutMs))
	defer done()
	call := tool.JobCall{
		Tenant: who.Tenant, Agent: who.Agent, InstanceID: w.id,
		JobID: req.JobID, JobTypeID: req.JobTypeID, TickID: req.TickID, ScheduledAt: due, Attempt: req.Attempt,
		Settings: settings,
		Log:      redact.logger(h.log.With("tenant", who.Tenant, "agent", who.Agent, "job", req.JobID, "tick", req.TickID)),
	}.WithEnv(&env{w: w, who: who, tool: h.def.Name})
	deadline, _ := ctx.Deadline()
	slot := claim{tool: h.slots, tenant: who.Tenant, agent: who.Agent, most: entry.MaxConcurrent}
	if err := w.slots.acquire(ctx, slot, deadline); err != nil {
		return message.JobReply{}, err
	}
	res, err := run(ctx, w, h, slot, req.TickID, redact, func() (tool.JobResult, error) { return h.jobs.ExecuteJob(ctx, call) })
	writes := call.Writes() // also of a run that failed: it writes no more
	if err == nil {
		err = res.Validate()
	}
	if err != nil {
		return message.JobReply{}, err
	}
	// Both end in places that outlive the run.
	res.Message, res.Summary = redact.text(res.Message), redact.text(res.Summary)
	return res.Reply(writes), nil
}
