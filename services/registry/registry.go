// Package registry is the service that owns agents' configurations and the
// catalogue of tools. Any number of replicas may run; none of them keeps
// anything that another would miss.
package registry

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
	"github.com/toolbus/toolbus/services/registry/internal/agents"
	"github.com/toolbus/toolbus/services/registry/internal/api"
	"github.com/toolbus/toolbus/services/registry/internal/catalogue"
	"github.com/toolbus/toolbus/services/registry/internal/config"
	"github.com/toolbus/toolbus/services/registry/internal/events"
)

const (
	name    = "registry" // of the service and its queue group
	version = "0.1.0"
)

// Config of the service.
type Config struct {
	Bus          bus.Config
	Replicas     int           // of the streams: 1, or 3 or 5 in a cluster
	CatalogueTTL time.Duration // how long a worker's announcement stands; whole seconds
	EventsAge    time.Duration // how long the audit trail is kept
	EventsBytes  int64         // of the audit trail, which NATS reserves; the oldest events go first
}

// DefaultConfig is for one NATS server on this machine.
func DefaultConfig() Config {
	return Config{Bus: bus.Config{Server: bus.DefaultServer, Wait: 30 * time.Second}, Replicas: 1, CatalogueTTL: 15 * time.Second,
		EventsAge: 7 * 24 * time.Hour, EventsBytes: 256 << 20}
}

// RegisterFlags registers the configuration's flags; their defaults are
// DefaultConfig's.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	d := DefaultConfig()
	c.Bus.RegisterFlags(f)
	f.IntVar(&c.Replicas, "replicas", d.Replicas, "JetStream `replicas` of the buckets: 1, or 3 or 5 in a cluster")
	f.DurationVar(&c.CatalogueTTL, "catalogue-ttl", d.CatalogueTTL, "how long a worker's announcement stands unless repeated; whole seconds")
	f.DurationVar(&c.EventsAge, "events-age", d.EventsAge, "how long the audit trail is kept")
	f.Int64Var(&c.EventsBytes, "events-bytes", d.EventsBytes, "`bytes` of the audit trail; the oldest events go first")
}

// Validate checks the configuration; the error names the field.
func (c Config) Validate() error {
	if c.Replicas < 1 || c.Replicas > 5 {
		return errcode.Field("replicas", "must be 1 to 5, not %d", c.Replicas)
	}
	if c.CatalogueTTL < catalogue.MinTTL || c.CatalogueTTL%time.Second != 0 {
		return errcode.Field("catalogue-ttl", "must be whole seconds, at least %s, not %s", catalogue.MinTTL, c.CatalogueTTL)
	}
	if c.EventsAge < time.Minute {
		return errcode.Field("events-age", "must be at least 1m, not %s", c.EventsAge)
	}
	if c.EventsBytes < 1<<20 {
		return errcode.Field("events-bytes", "must be at least %d, not %d", 1<<20, c.EventsBytes)
	}
	return nil
}

// Service is the running registry.
type Service struct {
	cfg    Config
	log    telemetry.Logger
	reg    prometheus.Registerer
	parser *config.Parser

	mu      sync.Mutex
	nc      *nats.Conn // nil unless started
	cleanup lifecycle.Stack
}

// New checks the configuration; nothing runs yet.
func New(cfg Config, log telemetry.Logger, reg prometheus.Registerer) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p, err := config.NewParser()
	if err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, log: log, reg: reg, parser: p}, nil
}

// Start connects, makes the buckets, and answers requests when it returns. A
// service that failed to start holds nothing.
func (s *Service) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nc != nil {
		return errors.New("registry: started already")
	}
	nc, err := s.start(ctx)
	if err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return fmt.Errorf("registry: %w", errors.Join(err, s.cleanup.Close(stopCtx)))
	}
	s.nc = nc
	return nil
}

func (s *Service) start(ctx context.Context) (*nats.Conn, error) {
	var onReconnect func() // set once the catalogue is there
	var mu sync.Mutex
	nc, err := bus.Connect(ctx, s.cfg.Bus, name, nats.ReconnectHandler(func(*nats.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if onReconnect != nil {
			onReconnect()
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
	store, err := agents.Open(ctx, js, s.cfg.Replicas)
	if err != nil {
		return nil, err
	}
	cat, err := catalogue.Open(ctx, js, s.cfg.Replicas, s.cfg.CatalogueTTL)
	if err != nil {
		return nil, err
	}
	trail, err := events.Open(ctx, nc, js, events.Config{Replicas: s.cfg.Replicas, MaxAge: s.cfg.EventsAge, MaxBytes: s.cfg.EventsBytes})
	if err != nil {
		return nil, err
	}
	mu.Lock()
	onReconnect = cat.Drop
	mu.Unlock()
	if _, err := cat.Watch(nc); err != nil { // ends with the connection
		return nil, err
	}
	srv, err := bus.NewServer(nc, bus.ServerConfig{
		Name: name, Version: version, Description: "Configuration of agents, catalogue of tools",
	}, s.log, s.reg)
	if err != nil {
		return nil, err
	}
	s.cleanup.Push("server", srv.Stop)
	for _, e := range api.New(nc, store, cat, trail, s.parser, s.log).Endpoints() {
		if err := srv.Handle(e); err != nil {
			return nil, err
		}
	}
	// Subscriptions are at the server when this returns.
	return nc, flush(ctx, nc)
}

// Stop answers what it has taken, then closes the connection. Safe before
// Start, and twice.
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
		return errors.New("registry: not started")
	}
	if err := flush(ctx, nc); err != nil {
		return fmt.Errorf("registry: NATS does not answer: %w", err)
	}
	return nil
}

// flush makes a round trip to the server.
func flush(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return nc.FlushWithContext(ctx)
}
