package mailbox

import (
	"context"
	"hash/fnv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// Options say how patient delivery is.
type Options struct {
	Silence  time.Duration // for how long an agent may say nothing about a wake
	Attempts int           // deliveries that fail before a wake is given up
	Backoff  time.Duration // the longest pause between them
	Look     time.Duration // how often mailboxes are looked at without being rung
}

// Delivery hands the wakes of this replica's partitions to their agents.
type Delivery struct {
	store *Store
	asker *asker
	opts  Options
	log   telemetry.Logger
	wakes *prometheus.CounterVec // by outcome

	parked prometheus.Gauge
	parts  int

	mu     sync.Mutex
	served map[int]*part
}

// part is a partition that is served.
type part struct {
	ctx   context.Context
	boxes map[Ref]*box
	wg    sync.WaitGroup
}

// NewDelivery makes a Delivery of agents in so many partitions. It listens on nc
// until that closes; deliveries begin with Serve.
func NewDelivery(nc *nats.Conn, s *Store, partitions int, opts Options, log telemetry.Logger,
	wakes *prometheus.CounterVec, parked prometheus.Gauge,
) (*Delivery, error) {
	d := &Delivery{store: s, opts: opts, log: log, wakes: wakes, parked: parked, parts: partitions, served: map[int]*part{}}
	var err error
	if d.asker, err = newAsker(nc); err != nil {
		return nil, err
	}
	if _, err := nc.Subscribe(subject.ChangesMailbox("*", "*"), func(m *nats.Msg) {
		if tenant, agent, err := subject.ParseChangesMailbox(m.Subject); err == nil {
			d.ring(Ref{tenant, agent}, false)
		}
	}); err != nil {
		return nil, err
	}
	if _, err := nc.Subscribe(subject.AgentReady("*", "*"), func(m *nats.Msg) {
		if a, err := subject.ParseAgent(m.Subject); err == nil {
			d.ring(Ref{a.Tenant, a.Agent}, true)
		}
	}); err != nil {
		return nil, err
	}
	return d, nil
}

// partition is the part that an agent belongs to.
func (d *Delivery) partition(r Ref) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Tenant + "." + r.Agent))
	return int(h.Sum32() % uint32(d.parts))
}

// Serve delivers the wakes of a partition until ctx ends; then it returns soon.
// Only one replica may serve a partition at a time, or wakes of one chat may be
// out together.
func (d *Delivery) Serve(ctx context.Context, partition int) {
	p := &part{ctx: ctx, boxes: map[Ref]*box{}}
	d.mu.Lock()
	d.served[partition] = p
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.served, partition)
		d.mu.Unlock()
		p.wg.Wait()
	}()
	// An agent may have said that it listens while nobody served it.
	pause := d.look(ctx, partition)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			pause = d.look(ctx, partition)
		}
	}
}

// look tries every mailbox of a partition, and returns when to do so again.
func (d *Delivery) look(ctx context.Context, partition int) time.Duration {
	refs, err := d.store.waiting(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("mailboxes not listed", "err", err)
		}
		return min(d.opts.Look, time.Second)
	}
	for _, r := range refs {
		if d.partition(r) == partition {
			d.ring(r, true)
		}
	}
	return d.opts.Look
}

// Look tries every mailbox served, absent agents' too.
func (d *Delivery) Look(ctx context.Context) {
	d.mu.Lock()
	served := make([]int, 0, len(d.served))
	for n := range d.served {
		served = append(served, n)
	}
	d.mu.Unlock()
	for _, n := range served {
		d.look(ctx, n)
	}
}

// ring makes a mailbox of a partition served here look for wakes; with listens
// the agent may be there, so one that is parked is tried.
func (d *Delivery) ring(r Ref, listens bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.served[d.partition(r)]
	if p == nil || p.ctx.Err() != nil {
		return
	}
	b := p.boxes[r]
	if b == nil {
		b = newBox(d, r)
		p.boxes[r] = b
		p.wg.Go(func() {
			b.run(p.ctx, func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				if len(b.kick) > 0 {
					return false // rung since it looked
				}
				delete(p.boxes, r)
				return true
			})
		})
	}
	if listens {
		b.ready.Add(1)
	}
	b.ring()
}

// finish does the last step of a wake until it is done: what the agent has
// answered must not be lost because JetStream is away for a while.
func (d *Delivery) finish(ctx context.Context, w message.Wake, what string, do func() error) result {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := do()
		if err == nil {
			d.wakes.WithLabelValues(what).Inc()
			return result{what: gone}
		}
		d.log.Warn("wake not taken off the mailbox", "wake", w.WakeID, "outcome", what, "err", err)
		select {
		case <-ctx.Done():
			return result{what: waits, pause: lookAgain}
		case <-time.After(pause):
		}
	}
}

// audit tells the audit trail of a wake that was accepted, best effort.
func (d *Delivery) audit(s Stored) {
	data, err := message.Marshal(message.Event{
		Kind: message.EventWake, Time: time.Now().UTC().Format(time.RFC3339Nano), AgentID: s.Agent, Outcome: message.OutcomeAccepted,
		WakeID: s.Wake.WakeID, ChatID: s.Wake.ChatID, Tool: s.Wake.Source.Tool,
	})
	if err == nil {
		_ = d.asker.nc.Publish(subject.Event(s.Tenant, s.Agent, message.EventWake), data)
	}
}
