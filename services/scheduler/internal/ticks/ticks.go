// Package ticks acts on ticks: it runs what an entry says, once per slot, and
// writes down how each slot ended.
//
// A tick is delivered until it is acknowledged, and a replica may die at any
// point. So each step can be done again, and the order of the steps is what
// makes the whole happen once:
//
//  1. claim the run in the entry's record: no other run of the entry begins;
//  2. run: make the schedule's wake, or ask a worker for the job's check;
//  3. commit the check's store writes together with its wake, in one step;
//  4. put the wake into the agent's mailbox, under an id that is the same each
//     time; for a job, settle the commit;
//  5. record how the slot ended, and give the claim up;
//  6. arm the timer of the next slot;
//  7. acknowledge.
//
// A claim that was not given up tells whoever comes next that a run ended badly;
// what it had committed is finished before anything runs again.
package ticks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/scheduler/internal/configs"
	"github.com/toolbus/toolbus/services/scheduler/internal/entry"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
	"github.com/toolbus/toolbus/services/scheduler/internal/plan"
	"github.com/toolbus/toolbus/services/scheduler/internal/timers"
)

// Mailboxes is where wakes go.
type Mailboxes interface {
	// Put is without effect for a wake that is there, or was accepted.
	Put(ctx context.Context, tenant, agent string, w message.Wake) error
}

// Options say how a Runner works.
type Options struct {
	Wait       time.Duration // after which a tick whose taker is silent goes to another
	JobTimeout time.Duration // of one run of a tool's check
	Grace      time.Duration // by which a slot may be late and is not missed
	CatchUp    int           // missed slots made up for at once: of schedules, and of jobs
	Checks     int           // checks of one tool that run at once
}

// Runner acts on ticks. It is safe for concurrent use.
type Runner struct {
	nc      *nats.Conn
	configs *configs.Configs
	jobs    *jobs.Bucket
	planner *plan.Planner
	mail    Mailboxes
	opts    Options
	log     telemetry.Logger
	metrics Metrics
	overdue map[string]*lane // missed slots being made up for, by kind of entry
	checks  *lanes

	at func(step, entry string) // tests end a run at a step; nil otherwise
}

// New makes a Runner.
func New(nc *nats.Conn, c *configs.Configs, j *jobs.Bucket, p *plan.Planner, mail Mailboxes, opts Options, log telemetry.Logger, m Metrics) *Runner {
	return &Runner{
		nc: nc, configs: c, jobs: j, planner: p, mail: mail, opts: opts, log: log, metrics: m,
		overdue: map[string]*lane{
			entry.KindSchedule: newLane(opts.CatchUp, share(opts.CatchUp), 0),
			entry.KindToolJob:  newLane(opts.CatchUp, share(opts.CatchUp), 0),
		},
		checks: newLanes(opts.Checks),
	}
}

// step tells tests where a run is.
func (r *Runner) step(name, entry string) {
	if r.at != nil {
		r.at(name, entry)
	}
}

// later is returned when a tick must come again.
type later struct {
	in  time.Duration
	why error
}

func (l *later) Error() string { return fmt.Sprintf("again in %s: %v", l.in, l.why) }

const (
	troublePause = time.Second            // before a tick that met trouble of ours comes again
	fullPause    = time.Second            // before a tick that found no room comes again, and up to twice that later
	lanePatience = 5 * time.Second        // of a check that waits for others of its tool
	runningPause = 300 * time.Millisecond // before a tick that met a run of the same job comes again
)

// Handle acts on one tick and acknowledges it, or lets it come again. It calls
// yield before it waits for others than the scheduler's own, workers above all:
// however many of them hang, other ticks are acted on.
func (r *Runner) Handle(ctx context.Context, msg jetstream.Msg, yield func()) {
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go r.beat(beating, msg)
	defer func() {
		if p := recover(); p != nil { // the tick comes again after Wait
			r.log.Error("tick panicked", "subject", msg.Subject(), "panic", p, "stack", string(debug.Stack()))
		}
	}()
	parts, err := subject.ParseTick(msg.Subject())
	var body timers.Body
	if err == nil {
		err = json.Unmarshal(msg.Data(), &body)
	}
	if err != nil {
		r.log.Error("tick not understood", "subject", msg.Subject(), "err", err)
		_ = msg.Term()
		return
	}
	if body.Cause == timers.CauseWake {
		err = r.wake(ctx, parts, body)
	} else {
		err = r.tick(ctx, parts, body, yield)
	}
	stop()
	var l *later
	switch {
	case err == nil:
		err = msg.Ack()
	case ctx.Err() != nil:
		err = msg.Nak() // another replica goes on
	case errors.As(err, &l):
		r.log.Debug("tick comes again", "subject", msg.Subject(), "in", l.in, "why", l.why)
		err = msg.NakWithDelay(l.in)
	default:
		r.log.Warn("tick not finished", "subject", msg.Subject(), "err", err)
		err = msg.NakWithDelay(troublePause/2 + rand.N(troublePause))
	}
	if err != nil {
		r.log.Warn("tick not acknowledged", "subject", msg.Subject(), "err", err)
	}
}

// beat tells JetStream that the tick is worked on.
func (r *Runner) beat(ctx context.Context, msg jetstream.Msg) {
	t := time.NewTicker(r.opts.Wait / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			_ = msg.InProgress()
		}
	}
}

// wake puts a wake that was sent for later into its mailbox.
func (r *Runner) wake(ctx context.Context, p subject.TickParts, body timers.Body) error {
	var w message.Wake
	if err := json.Unmarshal(body.Wake, &w); err != nil {
		r.log.Error("wake not understood", "tenant", p.Tenant, "agent", p.Agent, "err", err)
		return nil
	}
	return r.mail.Put(ctx, p.Tenant, p.Agent, w)
}

// tick acts on the tick of an entry; nil means that it is done with.
func (r *Runner) tick(ctx context.Context, p subject.TickParts, body timers.Body, yield func()) error {
	for try := 1; ; try++ {
		err := r.try(ctx, p, body, yield)
		if !errors.Is(err, errChanged) {
			return err
		}
		if try == changeTries {
			return &later{in: runningPause, why: err}
		}
	}
}

// A configuration, or who runs, may change while a tick is acted on.
var errChanged = errors.New("the entry has changed meanwhile")

const changeTries = 5

func (r *Runner) try(ctx context.Context, p subject.TickParts, body timers.Body, yield func()) error {
	e, rec, ok, err := r.current(ctx, p)
	if err != nil {
		return err
	}
	if !ok || e.Revision != p.Revision && !standsFor(e, body, r.planner.Now()) {
		return r.drop(ctx, p, rec)
	}
	finished, err := r.resume(ctx, e, rec)
	if err != nil {
		return err
	}
	ref := configs.Ref{Tenant: e.Tenant, Agent: e.Agent}
	if r.missed(e, body, r.planner.Now()) {
		overdue := r.overdue[e.Kind]
		if !overdue.enter(ctx, ref, 0) {
			return &later{in: fullPause + rand.N(2*fullPause), why: errors.New("too many are made up for at once")}
		}
		defer overdue.leave(ref)
	}
	if e.Kind == entry.KindToolJob {
		yield()
		leave, ok := r.checks.enter(ctx, e.Tool, ref, lanePatience)
		if !ok {
			return &later{in: fullPause + rand.N(2*fullPause), why: errors.New("too many checks of this tool run")}
		}
		defer leave()
	}
	run, err := r.begin(ctx, e, p, body, finished)
	if err != nil {
		return err
	}
	if run == nil { // it has ended before, or is not to run
		return r.arm(ctx, e)
	}
	r.metrics.Lateness.Observe(max(0, r.planner.Now().Sub(run.due).Seconds()))
	r.step("claimed", e.ID)
	end, err := r.perform(ctx, run)
	if err != nil {
		r.release(ctx, run)
		return err
	}
	if err := r.record(ctx, run, end); err != nil {
		return err
	}
	r.step("recorded", e.ID)
	return r.arm(ctx, e)
}

// standsFor tells whether a tick of an older definition is good for the one that
// runs now: its time is one of its slots too. Otherwise an entry whose definition
// is changed again and again would never run. What runs is the definition of now.
func standsFor(e entry.Entry, body timers.Body, now time.Time) bool {
	switch at := time.UnixMilli(body.At); body.Cause {
	case timers.CauseSlot:
		return e.After(at.Add(-time.Millisecond)).Equal(at) && !now.Before(e.Due(at))
	case timers.CauseTrigger:
		return true
	}
	return false
}

// current finds the entry a tick is for as it is now, and its record; ok is false
// when it is gone.
func (r *Runner) current(ctx context.Context, p subject.TickParts) (e entry.Entry, rec jobs.Record, ok bool, err error) {
	key := jobs.Key(p.Tenant, p.Agent, p.Entry)
	if rec, _, err = r.jobs.Record(ctx, key); err != nil {
		return e, rec, false, err
	}
	ref := configs.Ref{Tenant: p.Tenant, Agent: p.Agent}
	agent, err := r.configs.Agent(ctx, ref)
	if err != nil {
		return e, rec, false, err
	}
	e, ok = entry.Find(agent.Entries, p.Entry)
	if !ok || e.Revision != p.Revision || rec.Revision != p.Revision || rec.Config > agent.Revision {
		// One of the three is behind.
		if agent, err = r.configs.Fresh(ctx, ref); err != nil {
			return e, rec, false, err
		}
		if e, ok = entry.Find(agent.Entries, p.Entry); !ok {
			return e, rec, false, nil
		}
	}
	rec, stale, err := r.planner.Adopt(ctx, e, agent.Revision, rec)
	if err != nil {
		return e, rec, false, err
	}
	if stale {
		return e, rec, false, errChanged
	}
	return e, rec, true, nil
}

// drop is what becomes of a tick whose entry or definition is gone. What a run
// under it has committed is still finished.
func (r *Runner) drop(ctx context.Context, p subject.TickParts, rec jobs.Record) error {
	r.metrics.Ticks.WithLabelValues("dropped").Inc()
	if rec.Claim == nil || rec.Claim.Tool == "" {
		return nil
	}
	if rec.Running(time.Now()) {
		return &later{in: runningPause, why: errors.New("it is running")}
	}
	_, err := r.finishOutbox(ctx, entry.Entry{Tenant: p.Tenant, Agent: p.Agent, ID: p.Entry, Tool: rec.Claim.Tool})
	return err
}

// arm sets the timer of the next slot, of the definition that runs now.
func (r *Runner) arm(ctx context.Context, e entry.Entry) error {
	rec, _, err := r.jobs.Record(ctx, plan.Key(e))
	if err != nil {
		return err
	}
	if rec.Revision != e.Revision {
		return nil // whoever adopted the other arms it
	}
	if err := r.planner.Arm(ctx, e, rec); err != nil {
		return err
	}
	r.step("armed", e.ID)
	return nil
}

// run is one run under way.
type run struct {
	e      entry.Entry
	cause  string
	tickID string
	slot   time.Time // scheduled time
	due    time.Time
	claim  jobs.Claim
}

// errNothing ends a claim that is not needed.
var errNothing = errors.New("nothing to run")

// begin claims the run that a tick stands for; nil when there is none. finished is
// the owner of a claim that ended badly and has been looked after.
func (r *Runner) begin(ctx context.Context, e entry.Entry, p subject.TickParts, body timers.Body, finished string) (*run, error) {
	var out *run
	_, err := r.jobs.Update(ctx, plan.Key(e), func(rec *jobs.Record) error {
		out = nil
		now, clock := r.planner.Now(), time.Now()
		if rec.Revision != e.Revision {
			return errChanged
		}
		n, skipped := r.choose(rec, e, p, body, now)
		if n == nil && !skipped {
			return errNothing
		}
		if rec.Running(clock) {
			return &later{in: runningPause, why: errors.New("it is running")}
		}
		if c := rec.Claim; c != nil && c.Owner != finished {
			return errChanged // it has just ended badly
		}
		if n == nil {
			return nil // the record says what was skipped
		}
		n.claim = jobs.Claim{
			TickID: n.tickID, Attempt: 1, Owner: uuid.NewString(), Tool: e.Tool, Cause: n.cause, Slot: n.slot.UnixMilli(),
			Since: now.UnixMilli(), Until: clock.Add(r.opts.Wait).UnixMilli(),
		}
		if c := rec.Claim; c != nil && c.TickID == n.tickID {
			n.claim.Attempt, n.claim.Order, n.claim.Since = c.Attempt+1, c.Order, c.Since
		} else {
			rec.Order = max(n.claim.Slot, rec.Order+1)
			n.claim.Order = rec.Order
		}
		c := n.claim
		rec.Claim = &c
		out = n
		return nil
	})
	if errors.Is(err, errNothing) {
		r.metrics.Ticks.WithLabelValues("dropped").Inc()
		return nil, nil
	}
	return out, err
}

// choose finds what a tick makes run now. With nil, skipped says that the record
// was changed: slots were missed, and are left so.
func (r *Runner) choose(rec *jobs.Record, e entry.Entry, p subject.TickParts, body timers.Body, now time.Time) (n *run, skipped bool) {
	at := time.UnixMilli(body.At)
	switch body.Cause {
	case timers.CauseTrigger:
		id := timers.TriggerID(e, at)
		if rec.Ended(id) {
			return nil, false
		}
		return &run{e: e, cause: body.Cause, tickID: id, slot: at, due: at}, false
	case timers.CauseStart:
		if !rec.Runs() || rec.Started == r.planner.Start(e) || !r.planner.ThisStart(p) {
			return nil, false
		}
		return &run{e: e, cause: body.Cause, tickID: e.TickID("start-" + r.planner.Start(e)), slot: at, due: at}, false
	}
	if !rec.Runs() || rec.Done >= body.At {
		return nil, false
	}
	n = &run{e: e, cause: timers.CauseSlot, slot: at}
	if c := rec.Claim; c != nil && c.Cause == timers.CauseSlot && c.Slot > rec.Done {
		n.slot = time.UnixMilli(c.Slot) // begun before: this one, and no other in its place
	} else if r.missed(e, body, now) {
		if last, ok := e.Latest(rec.DoneAt(), now); ok {
			n.slot = last
		}
		if e.SkipMissed && now.Sub(e.Due(n.slot)) > r.opts.Grace {
			if rec.Running(time.Now()) {
				return nil, true
			}
			r.passed(rec, e, n.slot.Add(time.Millisecond), now, message.SlotMissed)
			return nil, true
		}
	}
	n.tickID, n.due = e.TickID(entry.Slot(n.slot)), e.Due(n.slot)
	return n, false
}

// missed tells whether a tick comes so late that its slot, and perhaps others
// since, were missed.
func (r *Runner) missed(e entry.Entry, body timers.Body, now time.Time) bool {
	return body.Cause == timers.CauseSlot && now.Sub(e.Due(time.UnixMilli(body.At))) > r.opts.Grace
}

// passed is plan.Passed, and counts.
func (r *Runner) passed(rec *jobs.Record, e entry.Entry, end, now time.Time, outcome string) {
	if n := plan.Passed(rec, e, end, now, outcome); n > 0 {
		r.metrics.Ticks.WithLabelValues(outcome).Add(float64(n))
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// perform does the work of a run while it keeps the claim. An error means that it
// is to be tried again; how it ended otherwise is returned.
func (r *Runner) perform(ctx context.Context, n *run) (message.SlotEntry, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		r.keep(ctx, n, cancel)
	}()
	end, err := r.act(ctx, n)
	cancel(nil)
	<-kept
	end.TickID, end.ScheduledAt, end.EndedAt, end.Attempt = n.tickID, stamp(n.slot), stamp(r.planner.Now()), n.claim.Attempt
	return end, err
}

func (r *Runner) act(ctx context.Context, n *run) (message.SlotEntry, error) {
	if n.e.Kind == entry.KindToolJob {
		return r.job(ctx, n)
	}
	w := n.wake(n.e.Mode, n.e.Message, n.e.ChatID)
	if err := r.mail.Put(ctx, n.e.Tenant, n.e.Agent, w); err != nil {
		return r.trouble(ctx, n, err)
	}
	r.step("published", n.e.ID)
	return message.SlotEntry{Outcome: message.SlotRan, Action: actionOf(w), WakeID: w.WakeID}, nil
}

func actionOf(w message.Wake) string {
	if w.Mode == message.WakeStateless {
		return message.ActionWakeStateless
	}
	return message.ActionWake
}

// wake makes the run's wake; the same id each time.
func (n *run) wake(mode, text, chat string) message.Wake {
	kind := message.WakeSource{Kind: n.e.Kind, ID: n.e.ID, Tool: n.e.Tool}
	w := message.Wake{
		WakeID: n.e.WakeID(n.tickID), Mode: mode, Message: text, ChatID: chat, Source: kind,
		ScheduledAt: stamp(n.slot), CreatedAt: stamp(time.Now()),
	}
	if n.e.Expires > 0 {
		w.ExpiresAt = time.Now().Add(n.e.Expires).UTC().Format(time.RFC3339Nano) // a second cut off may be all there is
	}
	return w
}

// keep prolongs the claim until ctx ends, and ends the run when it is lost.
func (r *Runner) keep(ctx context.Context, n *run, lost context.CancelCauseFunc) {
	t := time.NewTicker(r.opts.Wait / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		err := r.claim(ctx, n, time.Now().Add(r.opts.Wait))
		if errors.Is(err, errNotOurs) {
			lost(err)
			return
		}
	}
}

var errNotOurs = errors.New("another replica has taken the run over")

// claim changes until when the run is claimed.
func (r *Runner) claim(ctx context.Context, n *run, until time.Time) error {
	_, err := r.jobs.Update(ctx, plan.Key(n.e), func(rec *jobs.Record) error {
		if rec.Claim == nil || rec.Claim.Owner != n.claim.Owner {
			return errNotOurs
		}
		rec.Claim.Until = until.UnixMilli()
		return nil
	})
	return err
}

// release lets another try begin at once, after one that ended badly.
func (r *Runner) release(ctx context.Context, n *run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), troublePause)
	defer cancel()
	_ = r.claim(ctx, n, time.Time{}) // otherwise it ends by itself
}

// record writes down how a run ended. Where another has taken it over, that one
// does.
func (r *Runner) record(ctx context.Context, n *run, end message.SlotEntry) error {
	return r.end(ctx, n.e, n.claim, end)
}

func (r *Runner) end(ctx context.Context, e entry.Entry, c jobs.Claim, end message.SlotEntry) error {
	_, err := r.jobs.Update(ctx, plan.Key(e), func(rec *jobs.Record) error {
		if rec.Claim == nil || rec.Claim.Owner != c.Owner {
			return errNotOurs
		}
		now := r.planner.Now()
		rec.Claim = nil
		rec.Unsettled = rec.Unsettled || end.Outcome == message.SlotFailed && c.Tool != ""
		slot := time.UnixMilli(c.Slot)
		mine := rec.Revision == e.Revision && rec.Runs()
		switch c.Cause {
		case timers.CauseSlot:
			if mine {
				r.passed(rec, e, slot, now, message.SlotMissed)
			}
			rec.Pass(slot)
		case timers.CauseStart:
			rec.Started = r.planner.Start(e)
		}
		rec.Remember(end)
		if c.Cause == timers.CauseTrigger {
			rec.Extra = c.TickID
		}
		if mine {
			r.catchUp(rec, e, time.UnixMilli(c.Since), now)
		}
		return nil
	})
	if errors.Is(err, errNotOurs) {
		return nil
	}
	if err == nil {
		r.metrics.Ticks.WithLabelValues(end.Outcome).Inc()
	}
	return err
}

// catchUp leaves one slot to do, the last, after a run of a job during which
// several came due. The others are skipped, for no job runs beside itself, and the
// next run of a check sees all that has happened since this one. After shorter
// runs, slots that wait are only late; and so are those of schedules, whose wakes
// are told apart.
func (r *Runner) catchUp(rec *jobs.Record, e entry.Entry, began, now time.Time) {
	if e.Kind != entry.KindToolJob {
		return
	}
	if last, ok := e.Latest(rec.DoneAt(), now); ok && e.Between(began, last).Count > 0 {
		r.passed(rec, e, last, now, message.SlotSkipped)
	}
}
