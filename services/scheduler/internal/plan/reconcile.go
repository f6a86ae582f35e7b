package plan

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/scheduler/internal/configs"
	"github.com/toolbus/toolbus/services/scheduler/internal/entry"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
	"github.com/toolbus/toolbus/services/scheduler/internal/timers"
)

const (
	every     = time.Minute // between looks at everything
	retry     = time.Second // after one that failed, doubled up to every
	maxBehind = 10_000      // agents whose change is noted; with more, everything is looked at
)

// Reconciler keeps the timers as the configurations want them: at the start, when
// a configuration changes, and every minute. Every replica runs one; what they do
// is the same.
type Reconciler struct {
	planner *Planner
	configs *configs.Configs
	log     telemetry.Logger

	mu      sync.Mutex
	changed map[configs.Ref]struct{}
	all     bool
	wake    chan struct{}
}

// NewReconciler makes a Reconciler, which begins with Run.
func NewReconciler(p *Planner, c *configs.Configs, log telemetry.Logger) *Reconciler {
	return &Reconciler{planner: p, configs: c, log: log, changed: map[configs.Ref]struct{}{}, all: true, wake: make(chan struct{}, 1)}
}

// Changed says that an agent's configuration has changed.
func (r *Reconciler) Changed(ref configs.Ref) {
	r.mu.Lock()
	if len(r.changed) < maxBehind {
		r.changed[ref] = struct{}{}
	} else {
		r.all = true
	}
	r.mu.Unlock()
	r.ring()
}

// Everything asks for a look at everything.
func (r *Reconciler) Everything() {
	r.mu.Lock()
	r.all = true
	r.mu.Unlock()
	r.ring()
}

func (r *Reconciler) ring() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	again := retry
	for ctx.Err() == nil {
		r.mu.Lock()
		all, changed := r.all, r.changed
		r.all, r.changed = false, map[configs.Ref]struct{}{}
		r.mu.Unlock()
		pause := every*3/4 + rand.N(every/2)
		var err error
		if all {
			err = r.everything(ctx)
		} else {
			for ref := range changed {
				if e := r.agent(ctx, ref); e != nil {
					err = e
					r.mu.Lock()
					r.changed[ref] = struct{}{}
					r.mu.Unlock()
				}
			}
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("timers not reconciled", "err", err, "again", again)
			pause = again
			again = min(2*again, every)
			if all {
				r.mu.Lock()
				r.all = true
				r.mu.Unlock()
			}
		} else {
			again = retry
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-time.After(pause):
			if err == nil {
				r.mu.Lock()
				r.all = true
				r.mu.Unlock()
			}
		}
	}
}

func (r *Reconciler) everything(ctx context.Context) error {
	tenants, err := r.configs.Tenants(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, tenant := range tenants {
		errs = append(errs, r.tenant(ctx, tenant))
	}
	return errors.Join(errs...)
}

// tenant reconciles all agents of a tenant with a few large reads.
func (r *Reconciler) tenant(ctx context.Context, tenant string) error {
	// Configurations are read last: what stands may be behind them, never ahead
	// without being known as such.
	stands, err := r.standing(ctx, tenant, "")
	if err != nil {
		return err
	}
	agents, err := r.configs.Agents(ctx, tenant)
	if err != nil {
		return err
	}
	known := map[string]configs.Agent{}
	for _, a := range agents {
		known[a.Agent] = a
	}
	for name := range stands {
		if _, ok := known[name]; !ok {
			known[name] = configs.Agent{Ref: configs.Ref{Tenant: tenant, Agent: name}}
		}
	}
	var errs []error
	for name, a := range known {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		errs = append(errs, r.reconcile(ctx, a, stands[name]))
	}
	return errors.Join(errs...)
}

func (r *Reconciler) agent(ctx context.Context, ref configs.Ref) error {
	stands, err := r.standing(ctx, ref.Tenant, ref.Agent)
	if err != nil {
		return err
	}
	a, err := r.configs.Fresh(ctx, ref)
	if err != nil {
		return err
	}
	return r.reconcile(ctx, a, stands[ref.Agent])
}

// stand is what stands of one agent.
type stand struct {
	records map[string]jobs.Record         // by entry
	timers  map[string]map[string]struct{} // entry → revision
	slots   map[slotOf]bool
}

type slotOf struct{ entry, revision, slot string }

// standing reads what stands of a tenant's agents, or of one.
func (r *Reconciler) standing(ctx context.Context, tenant, agent string) (map[string]*stand, error) {
	out := map[string]*stand{}
	of := func(agent string) *stand {
		s := out[agent]
		if s == nil {
			s = &stand{records: map[string]jobs.Record{}, timers: map[string]map[string]struct{}{}, slots: map[slotOf]bool{}}
			out[agent] = s
		}
		return s
	}
	records, err := r.planner.jobs.Records(ctx, tenant, agent)
	if err != nil {
		return nil, err
	}
	for key, rec := range records {
		p := strings.Split(key, ".")
		of(p[1]).records[p[2]] = rec
	}
	list, err := r.planner.timers.Standing(ctx, tenant, agent)
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.Revision == timers.RevisionWake {
			continue
		}
		s := of(p.Agent)
		if s.timers[p.Entry] == nil {
			s.timers[p.Entry] = map[string]struct{}{}
		}
		s.timers[p.Entry][p.Revision] = struct{}{}
		s.slots[slotOf{p.Entry, p.Revision, p.Slot}] = true
	}
	return out, nil
}

// reconcile makes an agent's timers what its configuration wants.
func (r *Reconciler) reconcile(ctx context.Context, a configs.Agent, s *stand) error {
	if s == nil {
		s = &stand{}
	}
	var errs []error
	for _, e := range a.Entries {
		rec, stale, err := r.planner.Adopt(ctx, e, a.Revision, s.records[e.ID])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if stale {
			r.Changed(a.Ref) // there is a later configuration than the one read
			return errors.Join(errs...)
		}
		if next := Next(e, rec); !next.IsZero() && !s.slots[slotOf{e.ID, e.Revision, entry.Slot(next)}] {
			errs = append(errs, r.planner.Arm(ctx, e, rec))
		}
		errs = append(errs, r.planner.FireStart(ctx, e, rec))
		for revision := range s.timers[e.ID] {
			if revision != e.Revision || !rec.Runs() {
				errs = append(errs, r.planner.timers.Disarm(ctx, e.Tenant, e.Agent, e.ID, revision))
			}
		}
	}
	for id, rec := range s.records {
		if _, ok := entry.Find(a.Entries, id); !ok && !rec.Gone {
			errs = append(errs, r.planner.Retire(ctx, jobs.Key(a.Tenant, a.Agent, id), a.Revision))
		}
	}
	for id, revisions := range s.timers {
		if _, ok := entry.Find(a.Entries, id); ok {
			continue
		}
		for revision := range revisions {
			errs = append(errs, r.planner.timers.Disarm(ctx, a.Tenant, a.Agent, id, revision))
		}
	}
	return errors.Join(errs...)
}
