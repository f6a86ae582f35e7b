// Package limits knows what the registry says single tenants may have. It asks
// once per tenant and keeps the answer, until the registry says that it changed.
//
// Files are written while the registry is away, too: then what was last known
// counts, or what holds for tenants of which nothing is known.
package limits

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files/internal/area"
)

const (
	maxAge   = 5 * time.Second // a change event may get lost
	askLimit = 2 * time.Second
	retryAge = time.Second // after the registry did not answer

	againEvery = 5 * time.Millisecond
)

// Tenants is the limits of all tenants that were asked for. It implements what
// the file area asks.
type Tenants struct {
	nc  *nats.Conn
	log telemetry.Logger
	now func() time.Time

	mu    sync.Mutex
	known map[string]*entry
}

type entry struct {
	files   *message.TenantFiles // nil: nothing is configured, or nothing is known
	until   time.Time            // ask again after that
	unsure  bool                 // what is known is not to be used while an answer is awaited
	version int                  // counts changes
	asking  chan struct{}        // closed when the answer is there; nil: nobody asks
	used    time.Time
	asked   time.Time
}

// New makes Tenants that learn of changes until the connection closes.
func New(nc *nats.Conn, log telemetry.Logger) (*Tenants, error) {
	t := &Tenants{nc: nc, log: log, now: time.Now, known: map[string]*entry{}}
	_, err := nc.Subscribe(subject.ChangesAgents(), func(m *nats.Msg) {
		if tenant, agent, err := subject.ParseChangesAgent(m.Subject); err == nil && agent == "" {
			t.changed(tenant)
		}
	})
	return t, err
}

func (t *Tenants) changed(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.known[tenant]; e != nil {
		e.version++
		e.unsure, e.until = true, time.Time{}
	}
}

// Of returns a tenant's limits; otherwise is what counts where nothing is
// configured. It waits for the registry's answer when it knows nothing yet, or
// knows that something changed.
func (t *Tenants) Of(ctx context.Context, tenant string, otherwise area.Limits) area.Limits {
	t.mu.Lock()
	e := t.known[tenant]
	if e == nil {
		e = &entry{unsure: true}
		t.known[tenant] = e
	}
	e.used = t.now()
	defer t.mu.Unlock()
	for t.now().After(e.until) && ctx.Err() == nil {
		if e.asking == nil {
			e.asking = make(chan struct{})
			go t.ask(tenant, e)
		}
		if !e.unsure {
			break
		}
		asking := e.asking
		t.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
		}
		t.mu.Lock()
	}
	return apply(e.files, otherwise)
}

// Again is Of as the registry answers from now on: the event of a change may be late.
// One tenant's calls ask it only now and then, and wait for their turn.
func (t *Tenants) Again(ctx context.Context, tenant string, otherwise area.Limits) area.Limits {
	t.mu.Lock()
	var wait time.Duration
	if e := t.known[tenant]; e != nil {
		wait = againEvery - t.now().Sub(e.asked)
	}
	t.mu.Unlock()
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	t.changed(tenant)
	return t.Of(ctx, tenant, otherwise)
}

func apply(f *message.TenantFiles, l area.Limits) area.Limits {
	if f != nil && f.QuotaBytes != nil {
		l.Bytes = *f.QuotaBytes
	}
	if f != nil && f.MaxFiles != nil {
		l.Files = *f.MaxFiles
	}
	if f != nil && f.Versions != nil {
		l.Versions = *f.Versions
	}
	return l
}

func (t *Tenants) ask(tenant string, e *entry) {
	t.mu.Lock()
	version := e.version
	e.asked = t.now()
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	var r message.RegistryTenantConfig
	err := bus.Request(ctx, t.nc, subject.Registry(tenant, "tenant"), nil, &r)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		t.log.Debug("the registry does not say what a tenant may have", "tenant", tenant, "err", err)
		e.until = t.now().Add(retryAge)
	default:
		e.files = nil
		if r.Tenant != nil {
			e.files = r.Tenant.Files
		}
		e.until = t.now().Add(maxAge)
	}
	e.unsure = false
	if e.version != version { // changed while we asked: the answer may be the old one
		e.unsure, e.until = true, time.Time{}
	}
	close(e.asking)
	e.asking = nil
	t.forget()
}

// forget drops tenants that nobody has asked for in a while. Called with mu.
func (t *Tenants) forget() {
	const most = 1000
	if len(t.known) <= most {
		return
	}
	old := t.now().Add(-time.Minute)
	for tenant, e := range t.known {
		if e.used.Before(old) && e.asking == nil {
			delete(t.known, tenant)
		}
	}
}
