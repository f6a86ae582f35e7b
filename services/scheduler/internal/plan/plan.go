// Package plan decides what is next for an entry: which definition of it runs,
// and which timer must stand. The reconciler and whoever has finished a run both
// go through it, so that all replicas come to the same answer.
package plan

import (
	"context"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/scheduler/internal/entry"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
	"github.com/toolbus/toolbus/services/scheduler/internal/timers"
)

// Planner is safe for concurrent use.
type Planner struct {
	jobs   *jobs.Bucket
	timers *timers.Stream
	epoch  string // of the system's start
	now    func() time.Time
}

// New makes a Planner. now is the clock by which slots are due; claims and leases
// are kept by the machine's own, whatever it is.
func New(j *jobs.Bucket, t *timers.Stream, epoch string, now func() time.Time) *Planner {
	return &Planner{jobs: j, timers: t, epoch: epoch, now: now}
}

// Now is the time by which slots are due.
func (p *Planner) Now() time.Time { return p.now() }

// fires is when a timer of JetStream, which knows its own clock only, must fire to
// be due at t.
func (p *Planner) fires(t time.Time) time.Time {
	return t.Add(time.Until(p.now()).Round(time.Second) * -1)
}

// Key is an entry's key in the bucket.
func Key(e entry.Entry) string { return jobs.Key(e.Tenant, e.Agent, e.ID) }

// Adopt makes an entry's definition, as of a revision of its agent's
// configuration, the one that runs, and returns its record. stale is true when a
// later configuration has been adopted already, which then stands.
func (p *Planner) Adopt(ctx context.Context, e entry.Entry, config uint64, known jobs.Record) (r jobs.Record, stale bool, err error) {
	if changed, stale := adopt(&known, e, config, p.now()); !changed {
		return known, stale, nil
	}
	r, err = p.jobs.Update(ctx, Key(e), func(r *jobs.Record) error {
		var changed bool
		if changed, stale = adopt(r, e, config, p.now()); !changed {
			return jobs.Keep
		}
		return nil
	})
	return r, stale, err
}

func adopt(r *jobs.Record, e entry.Entry, config uint64, now time.Time) (changed, stale bool) {
	if r.Revision == e.Revision && r.Enabled == e.Enabled && r.Tool == e.Tool && !r.Gone {
		return false, false
	}
	if r.Config > config {
		return false, true
	}
	// A definition has no slots before it runs. Where only what the entry does
	// has changed, its times go on: none is lost or comes twice.
	if r.Timing != e.Timing || r.Gone || !r.Enabled {
		r.Pass(now)
	}
	r.Revision, r.Timing, r.Tool, r.Config, r.Enabled, r.Gone = e.Revision, e.Timing, e.Tool, config, e.Enabled, false
	return true, false
}

// Retire says that the configuration has an entry no more. config is the
// revision of the agent's configuration that says so; 0 when the agent is gone.
func (p *Planner) Retire(ctx context.Context, key string, config uint64) error {
	_, err := p.jobs.Update(ctx, key, func(r *jobs.Record) error {
		if r.Gone || r.Revision == "" || config != 0 && r.Config > config {
			return jobs.Keep
		}
		r.Gone, r.Enabled = true, false
		return nil
	})
	return err
}

// Next is the entry's next slot; the zero time when none comes.
func Next(e entry.Entry, r jobs.Record) time.Time {
	if !r.Runs() {
		return time.Time{}
	}
	return e.After(r.DoneAt())
}

// Parts are the parts of a slot's timer.
func Parts(e entry.Entry, slot string) subject.TickParts {
	return subject.TickParts{Tenant: e.Tenant, Agent: e.Agent, Entry: e.ID, Revision: e.Revision, Slot: slot}
}

// Arm sets the timer of the entry's next slot, unless it stands. r must be a
// record of e's revision.
func (p *Planner) Arm(ctx context.Context, e entry.Entry, r jobs.Record) error {
	slot := Next(e, r)
	if slot.IsZero() {
		return nil
	}
	body, err := message.Marshal(timers.Body{Cause: timers.CauseSlot, At: slot.UnixMilli()})
	if err != nil {
		return err
	}
	return p.timers.Arm(ctx, Parts(e, entry.Slot(slot)), p.fires(e.Due(slot)), body)
}

// Start names the start for which an entry with runOnStart runs once: that of the
// system and of this definition.
func (p *Planner) Start(e entry.Entry) string { return p.epoch + "-" + e.Revision }

// slotStart is the slot of a tick that runOnStart causes.
func (p *Planner) slotStart() string { return "start-" + p.epoch }

// ThisStart tells whether a tick that runOnStart caused is of the system's present
// start.
func (p *Planner) ThisStart(t subject.TickParts) bool { return t.Slot == p.slotStart() }

// FireStart runs an entry because of runOnStart, unless it has for this start.
func (p *Planner) FireStart(ctx context.Context, e entry.Entry, r jobs.Record) error {
	if !e.RunOnStart || !r.Runs() || r.Started == p.Start(e) {
		return nil
	}
	body, err := message.Marshal(timers.Body{Cause: timers.CauseStart, At: p.now().UnixMilli()})
	if err != nil {
		return err
	}
	_, err = p.timers.Fire(ctx, Parts(e, p.slotStart()), body)
	return err
}

// Passed notes that the slots that have not ended yet and are before end did not
// run, and returns their number.
func Passed(r *jobs.Record, e entry.Entry, end, now time.Time, outcome string) int {
	s := e.Between(r.DoneAt(), end)
	if s.Count == 0 {
		return 0
	}
	h := message.SlotEntry{TickID: e.TickID(entry.Slot(s.Last)), ScheduledAt: stamp(s.Last), EndedAt: stamp(now), Outcome: outcome}
	if s.Count > 1 {
		h.Slots, h.Since = s.Count, stamp(s.First)
	}
	r.Remember(h)
	r.Pass(end.Add(-time.Millisecond))
	return s.Count
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Entry is what the wire says of an entry.
func Entry(e entry.Entry, r jobs.Record) message.SchedulerEntry {
	out := message.SchedulerEntry{
		AgentID: e.Agent, EntryID: e.ID, Kind: e.Kind, Cron: e.Cron.String(), Timezone: e.Timezone,
		Enabled: e.Enabled, Paused: r.Paused, Tool: e.Tool, JobType: e.JobType,
	}
	if r.Revision == e.Revision {
		if next := Next(e, r); !next.IsZero() {
			out.Next = next.Format(time.RFC3339)
		}
	}
	if n := len(r.History); n > 0 {
		out.Last = &r.History[n-1]
	}
	return out
}
