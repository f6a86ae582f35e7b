package ticks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/scheduler/internal/entry"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
	"github.com/toolbus/toolbus/services/scheduler/internal/plan"
	"github.com/toolbus/toolbus/services/scheduler/internal/timers"
)

const (
	jobTries     = 6               // of one slot
	storeTimeout = 8 * time.Second // of one request to the state service, with its retries
	answerGrace  = time.Second     // beyond the time that a run may take
)

// job runs a tool's check and carries out what it decides.
func (r *Runner) job(ctx context.Context, n *run) (message.SlotEntry, error) {
	if n.claim.Attempt > jobTries {
		return r.failed(n, fmt.Errorf("given up after %d tries", n.claim.Attempt-1)), nil
	}
	reply, err := r.check(ctx, n)
	if err != nil {
		return r.trouble(ctx, n, err)
	}
	r.step("ran", n.e.ID)
	if err := checkReply(reply); err != nil { // all of it or nothing: what it would write included
		return r.failed(n, err), nil
	}
	end := message.SlotEntry{Outcome: message.SlotRan, Action: reply.Action, Summary: reply.LogSummary}
	commit := message.StoreCommit{
		JobID: n.e.ID, TickID: n.tickID, Slot: n.claim.Order, Attempt: n.claim.Attempt, Writes: reply.StoreWrites,
	}
	switch reply.Action {
	case message.ActionNone:
	case message.ActionWake, message.ActionWakeStateless:
		w := n.wake(modeOf(reply.Action, n.e.Mode), reply.WakeMessage, reply.ChatID)
		if w.ChatID == "" {
			w.ChatID = n.e.ChatID
		}
		commit.Wake, end.WakeID, end.Action = &w, w.WakeID, actionOf(w)
	}
	if commit.Wake == nil && len(commit.Writes) == 0 {
		return end, nil
	}
	superseded, err := r.commit(ctx, n, commit)
	switch {
	case err == nil && superseded:
		end = message.SlotEntry{Outcome: message.SlotSkipped, Summary: "a later run has committed"}
		return end, nil
	case err == nil:
		return end, nil
	case ctx.Err() != nil, errcode.From(err).Retryable:
		return end, &later{in: troublePause/2 + rand.N(troublePause), why: err} // however often: it may be committed
	}
	return r.failed(n, err), nil
}

// checkReply refuses what a worker of whatever make should not have answered. What
// it wants written, the store checks.
func checkReply(r message.JobReply) error {
	switch r.Action {
	case message.ActionNone:
		return nil
	case message.ActionWake, message.ActionWakeStateless:
	default:
		return fmt.Errorf("the worker answered with the unknown action %.64q", r.Action)
	}
	if strings.TrimSpace(r.WakeMessage) == "" {
		return errors.New("the worker wants to wake the agent without a wakeMessage")
	}
	if r.ChatID != "" {
		if err := subject.CheckFree("chatId", r.ChatID); err != nil {
			return fmt.Errorf("the worker's answer: %w", err)
		}
	}
	return nil
}

// modeOf is what the check decides, unless the configuration does.
func modeOf(action, configured string) string {
	switch {
	case configured != "":
		return configured
	case action == message.ActionWakeStateless:
		return message.WakeStateless
	}
	return message.WakeChat
}

// check asks a worker for one run.
func (r *Runner) check(ctx context.Context, n *run) (message.JobReply, error) {
	var reply message.JobReply
	// A worker that ends a run for its length says so itself, a little later.
	ctx, cancel := context.WithTimeout(ctx, r.opts.JobTimeout+answerGrace)
	defer cancel()
	msg, err := bus.NewMsg(subject.WorkerJob(n.e.Tenant, n.e.Agent, n.e.Tool), message.JobRequest{
		TickID: n.tickID, JobID: n.e.ID, JobTypeID: n.e.JobType, ScheduledAt: stamp(n.slot), Attempt: n.claim.Attempt,
		TimeoutMs: r.opts.JobTimeout.Milliseconds(),
	})
	if err != nil {
		return reply, err
	}
	ctx, stop, err := r.hearBeats(ctx, n, msg)
	if err != nil {
		return reply, err
	}
	defer stop()
	m, err := bus.RequestMsg(ctx, r.nc, msg)
	switch {
	case err == nil:
		err = bus.DecodeReply(m.Data, &reply)
	case errors.Is(context.Cause(ctx), errcode.WorkerLost):
		err = context.Cause(ctx)
	}
	return reply, err
}

// commit carries out what a check decided, in this order: writes and wake into
// the store, the wake into the mailbox, the store's record of it settled.
// superseded is true when a later run has committed already.
func (r *Runner) commit(ctx context.Context, n *run, c message.StoreCommit) (superseded bool, err error) {
	var out message.StoreCommitted
	for try := 0; ; try++ {
		err = r.store(ctx, n.e, "commit", c, &out)
		if !errors.Is(err, errcode.Conflict) || try > 0 {
			break
		}
		// The wake of a tick before this one is not settled.
		if _, err := r.finishOutbox(ctx, n.e); err != nil {
			return false, err
		}
	}
	if err != nil {
		return false, err
	}
	r.step("committed", n.e.ID)
	if !out.Committed { // by an earlier try of ours, or a later run
		o, err := r.finishOutbox(ctx, n.e)
		return err == nil && o.TickID != n.tickID, err
	}
	if c.Wake == nil {
		return false, nil
	}
	return false, r.deliver(ctx, n.e, c.TickID, *c.Wake)
}

// deliver puts a committed wake into the mailbox and settles it.
func (r *Runner) deliver(ctx context.Context, e entry.Entry, tickID string, w message.Wake) error {
	if err := r.mail.Put(ctx, e.Tenant, e.Agent, w); err != nil {
		return err
	}
	r.step("published", e.ID)
	if err := r.store(ctx, e, "settle", message.StoreSettle{JobID: e.ID, TickID: tickID}, nil); err != nil {
		return err
	}
	r.step("settled", e.ID)
	return nil
}

// finishOutbox finishes what a job has committed, and returns the record of it.
func (r *Runner) finishOutbox(ctx context.Context, e entry.Entry) (message.StoreOutboxRecord, error) {
	var o message.StoreOutboxRecord
	if err := r.store(ctx, e, "outbox", message.StoreOutbox{JobID: e.ID}, &o); err != nil {
		return o, err
	}
	if o.Wake == nil {
		return o, nil
	}
	return o, r.deliver(ctx, e, o.TickID, *o.Wake)
}

func (r *Runner) store(ctx context.Context, e entry.Entry, op string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return bus.Retry(ctx, r.nc, subject.Store(e.Tenant, e.Agent, e.Tool, op), in, out)
}

// resume finishes what an earlier run left, that of the claim in the record: one
// that has committed has run. It returns the owner of that claim, "" for none.
func (r *Runner) resume(ctx context.Context, e entry.Entry, rec jobs.Record) (owner string, err error) {
	c := rec.Claim
	if c == nil && !rec.Unsettled || rec.Running(time.Now()) {
		return "", nil
	}
	was := e
	if c != nil {
		owner, was.Tool = c.Owner, c.Tool
	}
	if was.Tool == "" { // a schedule: its wake's id makes a repeat harmless
		return owner, nil
	}
	o, err := r.finishOutbox(ctx, was)
	if err != nil {
		return "", err
	}
	if c != nil && o.TickID == c.TickID {
		end := message.SlotEntry{
			TickID: c.TickID, ScheduledAt: stamp(time.UnixMilli(c.Slot)), EndedAt: stamp(r.planner.Now()), Attempt: c.Attempt,
			Outcome: message.SlotRan, Action: message.ActionNone, Summary: "finished after an interruption",
		}
		if o.Wake != nil {
			end.Action, end.WakeID = actionOf(*o.Wake), o.Wake.WakeID
		}
		if err := r.end(ctx, e, *c, end); err != nil {
			return "", err
		}
		r.step("resumed", e.ID)
	}
	if !rec.Unsettled {
		return owner, nil
	}
	_, err = r.jobs.Update(ctx, plan.Key(e), func(rec *jobs.Record) error {
		if !rec.Unsettled {
			return jobs.Keep
		}
		rec.Unsettled = false
		return nil
	})
	return owner, err
}

// trouble decides what becomes of a run that did not come to its end: another try
// within the slot, or none.
func (r *Runner) trouble(ctx context.Context, n *run, err error) (message.SlotEntry, error) {
	if ctx.Err() != nil {
		return message.SlotEntry{}, errors.Join(context.Cause(ctx), err)
	}
	pause := time.Second << min(n.claim.Attempt-1, 5)
	again := r.planner.Now().Add(pause)
	next := n.e.After(n.slot)
	within := n.cause != timers.CauseSlot || next.IsZero() || n.e.Due(next).After(again)
	if errcode.From(err).Retryable && (n.e.Kind == entry.KindSchedule || n.claim.Attempt < jobTries && within) {
		r.metrics.Ticks.WithLabelValues("retried").Inc()
		return message.SlotEntry{}, &later{in: pause, why: err}
	}
	return r.failed(n, err), nil
}

// failed is the end of a slot whose run did not succeed.
func (r *Runner) failed(n *run, err error) message.SlotEntry {
	r.log.Warn("run failed", "tenant", n.e.Tenant, "agent", n.e.Agent, "entry", n.e.ID, "tool", n.e.Tool,
		"jobType", n.e.JobType, "tick", n.tickID, "attempt", n.claim.Attempt, "err", err)
	return message.SlotEntry{Outcome: message.SlotFailed, Error: err.Error()}
}
