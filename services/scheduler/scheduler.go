// Package scheduler is the service that wakes agents and runs their tools'
// background checks on time, and that keeps wakes until their agents have
// accepted them. Any number of replicas may run, without a leader: timers are
// messages that JetStream hands to one of them, and every write is a
// compare-and-set.
package scheduler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/scheduler/internal/api"
	"github.com/toolbus/toolbus/services/scheduler/internal/configs"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
	"github.com/toolbus/toolbus/services/scheduler/internal/mailbox"
	"github.com/toolbus/toolbus/services/scheduler/internal/plan"
	"github.com/toolbus/toolbus/services/scheduler/internal/presence"
	"github.com/toolbus/toolbus/services/scheduler/internal/ticks"
	"github.com/toolbus/toolbus/services/scheduler/internal/timers"
)

const (
	name    = "scheduler" // of the service and its queue group
	version = "0.1.0"
)

// Config of the service.
type Config struct {
	Bus      bus.Config
	Replicas int // of the streams: 1, or 3 or 5 in a cluster

	Parallel    int           // ticks acted on at once; and checks of one tool
	CatchUp     int           // of schedules, and of jobs, that make up for missed times at once
	JobTimeout  time.Duration // of one run of a tool's check
	MissedAfter time.Duration // how late a run may begin before its time counts as missed
	TickWait    time.Duration // how long a replica may be silent before its ticks go to another
	LeaseTTL    time.Duration // the same for the agents it delivers wakes to; whole seconds
	WakeSilence time.Duration // how long an agent may say nothing about a wake
	WakeTries   int           // failed deliveries after which a wake is given up
}

// DefaultConfig is for one NATS server on this machine.
func DefaultConfig() Config {
	return Config{
		Bus: bus.Config{Server: bus.DefaultServer, Wait: 30 * time.Second}, Replicas: 1,
		Parallel: 64, CatchUp: 16, JobTimeout: time.Minute, MissedAfter: time.Minute,
		TickWait: 10 * time.Second, LeaseTTL: 10 * time.Second, WakeSilence: 30 * time.Second, WakeTries: 10,
	}
}

// RegisterFlags registers the configuration's flags; their defaults are
// DefaultConfig's.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	d := DefaultConfig()
	c.Bus.RegisterFlags(f)
	f.IntVar(&c.Replicas, "replicas", d.Replicas, "JetStream `replicas` of the streams: 1, or 3 or 5 in a cluster")
	f.IntVar(&c.Parallel, "parallel", d.Parallel, "largest `number` of schedules that run at once, and of jobs of one tool; one agent's jobs take a quarter at most")
	f.IntVar(&c.CatchUp, "catch-up", d.CatchUp, "largest `number` of schedules, and of jobs, that make up for missed times at once")
	f.DurationVar(&c.JobTimeout, "job-timeout", d.JobTimeout, "how long one run of a tool's check may take")
	f.DurationVar(&c.MissedAfter, "missed-after", d.MissedAfter, "how late a run may begin before its time counts as missed")
	f.DurationVar(&c.TickWait, "tick-wait", d.TickWait, "how long a replica may be silent before another takes its runs over")
	f.DurationVar(&c.LeaseTTL, "lease-ttl", d.LeaseTTL, "how long a replica may be silent before another delivers its wakes; whole seconds")
	f.DurationVar(&c.WakeSilence, "wake-silence", d.WakeSilence, "how long an agent may say nothing about a wake before it is sent again")
	f.IntVar(&c.WakeTries, "wake-tries", d.WakeTries, "`number` of failed deliveries after which a wake is given up")
}

// Validate checks the configuration; the error names every wrong field.
func (c Config) Validate() error {
	var faults []errcode.FieldFault
	need := func(ok bool, field, text string) {
		if !ok {
			faults = append(faults, errcode.FieldFault{Field: field, Message: text})
		}
	}
	need(c.Replicas >= 1 && c.Replicas <= 5, "replicas", "must be 1 to 5")
	need(c.Parallel >= 1, "parallel", "must be at least 1")
	need(c.CatchUp >= 1, "catch-up", "must be at least 1")
	need(c.JobTimeout > 0, "job-timeout", "must be positive")
	need(c.MissedAfter >= time.Second, "missed-after", "must be at least 1s")
	need(c.TickWait >= time.Second, "tick-wait", "must be at least 1s")
	need(c.LeaseTTL >= time.Second && c.LeaseTTL%time.Second == 0, "lease-ttl", "must be whole seconds, at least 1s")
	need(c.WakeSilence > 0, "wake-silence", "must be positive")
	need(c.WakeTries >= 1, "wake-tries", "must be at least 1")
	if len(faults) > 0 {
		return errcode.Fields(errcode.InvalidRequest, faults...)
	}
	return nil
}

const (
	lookEvery   = 20 * time.Second // at mailboxes that nobody rang
	wakeBackoff = time.Minute      // the longest pause between deliveries of a wake
)

// Service is the running scheduler.
type Service struct {
	cfg Config
	log telemetry.Logger
	reg prometheus.Registerer
	now func() time.Time // by which slots are due

	mu      sync.Mutex
	nc      *nats.Conn // nil unless started
	cleanup lifecycle.Stack
}

// New checks the configuration; nothing runs yet.
func New(cfg Config, log telemetry.Logger, reg prometheus.Registerer) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, log: log, reg: reg, now: time.Now}, nil
}

// Start connects, makes the streams, and works when it returns. A registry that
// is not there yet is waited for. A service that failed to start holds nothing.
func (s *Service) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nc != nil {
		return errors.New("scheduler: started already")
	}
	nc, err := s.start(ctx)
	if err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return fmt.Errorf("scheduler: %w", errors.Join(err, s.cleanup.Close(stopCtx)))
	}
	s.nc = nc
	return nil
}

func (s *Service) start(ctx context.Context) (*nats.Conn, error) {
	back := make(chan struct{}, 1) // the connection was away
	nc, err := bus.Connect(ctx, s.cfg.Bus, "toolbus-"+name, nats.ReconnectHandler(func(*nats.Conn) {
		select {
		case back <- struct{}{}:
		default:
		}
	}))
	if err != nil {
		return nil, err
	}
	s.cleanup.Push("connection", func(context.Context) error { nc.Close(); return nil })
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	bucket, err := jobs.Open(ctx, js, s.cfg.Replicas)
	if err != nil {
		return nil, err
	}
	armed := telemetry.Register(s.reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "toolbus_scheduler_timers_armed_total", Help: "Timers set.",
	}))
	tm, err := timers.Open(ctx, js, s.cfg.Replicas, s.cfg.TickWait, armed)
	if err != nil {
		return nil, err
	}
	mail, err := mailbox.Open(ctx, js, s.cfg.Replicas, bucket)
	if err != nil {
		return nil, err
	}
	here, err := presence.Join(ctx, bucket, s.cfg.LeaseTTL, s.log)
	if err != nil {
		return nil, err
	}
	cfgs := configs.New(nc, s.log)
	planner := plan.New(bucket, tm, here.Epoch(), s.now)
	reconciler := plan.NewReconciler(planner, cfgs, s.log)
	if err := cfgs.Watch(reconciler.Changed); err != nil {
		return nil, err
	}
	delivery, err := s.delivery(nc, mail)
	if err != nil {
		return nil, err
	}
	runner := ticks.New(nc, cfgs, bucket, planner, mail, ticks.Options{
		Wait: s.cfg.TickWait, JobTimeout: s.cfg.JobTimeout, Grace: s.cfg.MissedAfter, CatchUp: s.cfg.CatchUp,
		Checks: s.cfg.Parallel,
	}, s.log, ticks.NewMetrics(s.reg))

	base := context.WithoutCancel(ctx)
	s.background(base, "presence", func(ctx context.Context) { here.Run(ctx, delivery.Serve) })
	s.background(base, "reconciler", reconciler.Run)
	s.consume(base, tm, runner)
	s.background(base, "reconnects", func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-back: // events were missed
				tm.PullAgain()
				cfgs.Drop()
				reconciler.Everything()
				delivery.Look(ctx)
			}
		}
	})

	srv, err := bus.NewServer(nc, bus.ServerConfig{
		Name: name, Version: version, Description: "Schedules, jobs and wakes",
	}, s.log, s.reg)
	if err != nil {
		return nil, err
	}
	s.cleanup.Push("server", srv.Stop)
	for _, e := range api.New(nc, cfgs, bucket, planner, tm, mail).Endpoints() {
		if err := srv.Handle(e); err != nil {
			return nil, err
		}
	}
	// Subscriptions are at the server when this returns.
	return nc, flush(ctx, nc)
}

func (s *Service) delivery(nc *nats.Conn, mail *mailbox.Store) (*mailbox.Delivery, error) {
	wakes := telemetry.Register(s.reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolbus_scheduler_wakes_total",
		Help: "Deliveries of wakes by outcome: accepted, busy, absent, failed, expired, dead, repeated.",
	}, []string{"outcome"}))
	parked := telemetry.Register(s.reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "toolbus_scheduler_mailboxes_parked", Help: "Mailboxes with wakes whose agent is absent.",
	}))
	return mailbox.NewDelivery(nc, mail, presence.Partitions, mailbox.Options{
		Silence: s.cfg.WakeSilence, Attempts: s.cfg.WakeTries, Backoff: wakeBackoff, Look: lookEvery,
	}, s.log, wakes, parked)
}

// background runs f until the service stops, and waits then until it has ended.
func (s *Service) background(base context.Context, what string, f func(context.Context)) {
	ctx, cancel := context.WithCancel(base)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	s.cleanup.Push(what, func(context.Context) error {
		cancel()
		<-done
		return nil
	})
}

// consume acts on ticks. A stop takes no more, and lets those under way end as
// long as it may.
func (s *Service) consume(base context.Context, tm *timers.Stream, runner *ticks.Runner) {
	taking, stopTaking := context.WithCancel(base)
	acting, stopActing := context.WithCancel(base)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tm.Consume(taking, s.cfg.Parallel, func(m jetstream.Msg, yield func()) { runner.Handle(acting, m, yield) })
	}()
	s.cleanup.Push("ticks", func(ctx context.Context) error {
		stopTaking()
		select {
		case <-done:
		case <-ctx.Done():
		}
		stopActing()
		<-done
		return nil
	})
}

// Stop takes no more, finishes what runs, gives its share to the other replicas,
// and closes the connection. Safe before Start, and twice.
func (s *Service) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nc = nil
	return s.cleanup.Close(ctx)
}

// Ready reports why the service cannot serve now, or nil.
func (s *Service) Ready(ctx context.Context) error {
	s.mu.Lock()
	nc := s.nc
	s.mu.Unlock()
	if nc == nil {
		return errors.New("scheduler: not started")
	}
	if err := flush(ctx, nc); err != nil {
		return fmt.Errorf("scheduler: NATS does not answer: %w", err)
	}
	return nil
}

// flush makes a round trip to the server.
func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return nc.FlushWithContext(ctx)
}
