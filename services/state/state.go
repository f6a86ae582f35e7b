// Package state is the service that owns ToolState, the durable store, submitted
// calls and their results. Any number of replicas may run: they share nothing but
// the buckets, whose every write is a compare-and-set, and the stream of
// submitted calls.
package state

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/state/internal/document"
	"github.com/toolbus/toolbus/services/state/internal/oplog"
	"github.com/toolbus/toolbus/services/state/internal/opstats"
	"github.com/toolbus/toolbus/services/state/internal/results"
	"github.com/toolbus/toolbus/services/state/internal/store"
	"github.com/toolbus/toolbus/services/state/internal/submits"
	"github.com/toolbus/toolbus/services/state/internal/toolstate"
)

const version = "0.1.0"

// Config is the service's configuration.
type Config struct {
	Bus      bus.Config
	Replicas int // of the buckets: 1 embedded, 3 in a cluster

	DocumentLimit int64         // bytes of a stored ToolState document
	KeysLimit     int           // keys of a ToolState document
	DefaultTTL    time.Duration // life of a document whose write names none
	MinTTL        time.Duration // shortest life a write may ask for
	MaxTTL        time.Duration // longest life a write may ask for
	ValueLimit    int64         // bytes of a store value, and of a wake in a job's outbox

	DeadKeep      time.Duration // how long a submitted call is kept that could not be served
	ResultKeep    time.Duration // how long the result of a submitted call is kept
	ResultWaiters int           // requests that wait for a result at once
	SubmitBytes   int64         // bytes of all submitted calls that wait, which NATS reserves
	SubmitPending int64         // submitted calls of one agent to one tool that wait
}

// DefaultConfig is a single server with the documented limits.
func DefaultConfig() Config {
	return Config{
		Bus:           bus.Config{Server: bus.DefaultServer, Wait: 30 * time.Second},
		Replicas:      1,
		DocumentLimit: 64 << 10,
		KeysLimit:     1024,
		DefaultTTL:    24 * time.Hour,
		MinTTL:        time.Second,
		MaxTTL:        30 * 24 * time.Hour,
		ValueLimit:    256 << 10,
		ResultKeep:    24 * time.Hour,
		DeadKeep:      30 * 24 * time.Hour,
		ResultWaiters: 50_000,
		SubmitBytes:   256 << 20,
		SubmitPending: 10_000,
	}
}

// RegisterFlags registers the configuration's flags, with the documented
// defaults.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	d := DefaultConfig()
	c.Bus.RegisterFlags(f)
	f.IntVar(&c.Replicas, "replicas", d.Replicas, "`number` of replicas of the buckets")
	f.Int64Var(&c.DocumentLimit, "toolstate-document-limit", d.DocumentLimit, "largest ToolState document in `bytes`")
	f.IntVar(&c.KeysLimit, "toolstate-keys-limit", d.KeysLimit, "largest `number` of keys of a ToolState document")
	f.DurationVar(&c.DefaultTTL, "toolstate-ttl", d.DefaultTTL, "life of a ToolState document whose write names none")
	f.DurationVar(&c.MinTTL, "toolstate-min-ttl", d.MinTTL, "shortest life a write may ask for")
	f.DurationVar(&c.MaxTTL, "toolstate-max-ttl", d.MaxTTL, "longest life a write may ask for")
	f.Int64Var(&c.ValueLimit, "store-value-limit", d.ValueLimit, "largest store value in `bytes`")
	f.DurationVar(&c.ResultKeep, "result-keep", d.ResultKeep, "how long the result of a submitted call is kept")
	f.DurationVar(&c.DeadKeep, "dead-keep", d.DeadKeep, "how long a submitted call is kept that could not be served")
	f.IntVar(&c.ResultWaiters, "result-waiters", d.ResultWaiters, "largest `number` of requests that wait for a result at once")
	f.Int64Var(&c.SubmitBytes, "submit-bytes", d.SubmitBytes, "`bytes` of all submitted calls that wait, which NATS reserves")
	f.Int64Var(&c.SubmitPending, "submit-pending", d.SubmitPending, "largest `number` of submitted calls of one agent to one tool that wait")
}

// Validate reports every wrong setting.
func (c Config) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Replicas >= 1 && c.Replicas <= 5 && c.Replicas%2 == 1, "replicas %d: must be 1, 3 or 5", c.Replicas)
	bad(c.DocumentLimit >= 1<<10, "toolstate-document-limit %d: must be at least 1024", c.DocumentLimit)
	bad(c.KeysLimit >= 1, "toolstate-keys-limit %d: must be at least 1", c.KeysLimit)
	bad(c.ValueLimit >= 1<<10, "store-value-limit %d: must be at least 1024", c.ValueLimit)
	bad(c.MinTTL >= time.Millisecond, "toolstate-min-ttl %s: must be at least 1ms", c.MinTTL)
	bad(c.MinTTL <= c.DefaultTTL && c.DefaultTTL <= c.MaxTTL, "toolstate-ttl %s: must be from %s to %s", c.DefaultTTL, c.MinTTL, c.MaxTTL)
	bad(c.ResultKeep >= time.Second, "result-keep %s: must be at least 1s", c.ResultKeep)
	bad(c.DeadKeep >= time.Second, "dead-keep %s: must be at least 1s", c.DeadKeep)
	bad(c.ResultWaiters >= 1, "result-waiters %d: must be at least 1", c.ResultWaiters)
	bad(c.SubmitBytes >= 1<<20, "submit-bytes %d: must be at least 1 MiB", c.SubmitBytes)
	bad(c.SubmitPending >= 1, "submit-pending %d: must be at least 1", c.SubmitPending)
	return errors.Join(errs...)
}

// Service answers toolstate.<tenant>.<op>, store.<tenant>.<agent>.<tool>.<op>,
// result.<tenant>.<agent>.<op> and agent.<tenant>.<agent>.result.<callId>.
type Service struct {
	cfg   Config
	log   telemetry.Logger
	reg   prometheus.Registerer
	stats *opstats.Stats

	mu    sync.Mutex
	nc    *nats.Conn
	stack lifecycle.Stack
}

// New makes the service. It does nothing yet.
func New(cfg Config, log telemetry.Logger, reg prometheus.Registerer) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, log: log, reg: reg, stats: opstats.New(reg)}, nil
}

// Start connects, makes the buckets and answers requests.
func (s *Service) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nc != nil {
		return errors.New("state: started already")
	}
	if err := s.start(ctx); err != nil {
		return errors.Join(err, s.stop(ctx))
	}
	return nil
}

func (s *Service) start(ctx context.Context) error {
	nc, err := bus.Connect(ctx, s.cfg.Bus, "toolbus-state")
	if err != nil {
		return err
	}
	s.nc = nc
	s.stack.Push("connection", func(context.Context) error { nc.Close(); return nil })
	if room := bus.MaxBody(nc) - oplog.MaxHeader; s.cfg.DocumentLimit > room || s.cfg.ValueLimit > room {
		return fmt.Errorf("the server's max_payload leaves room for values of %d bytes; document limit %d, value limit %d",
			room, s.cfg.DocumentLimit, s.cfg.ValueLimit)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	scratch, err := toolstate.Open(ctx, js, s.cfg.Replicas, toolstate.Limits{
		Limits:     document.Limits{Bytes: s.cfg.DocumentLimit, Keys: s.cfg.KeysLimit},
		DefaultTTL: s.cfg.DefaultTTL, MinTTL: s.cfg.MinTTL, MaxTTL: s.cfg.MaxTTL,
	}, time.Now, s.stats)
	if err != nil {
		return err
	}
	s.stack.Push("toolstate", func(context.Context) error { scratch.Close(); return nil })
	durable, err := store.Open(ctx, js, s.cfg.Replicas, s.cfg.ValueLimit, s.stats)
	if err != nil {
		return err
	}
	s.stack.Push("store", func(context.Context) error { durable.Close(); return nil })
	waiting, err := submits.Open(ctx, js, s.cfg.Replicas, submits.Limits{
		Bytes: s.cfg.SubmitBytes, PerSubject: s.cfg.SubmitPending, MsgSize: int32(min(nc.MaxPayload(), math.MaxInt32)),
	})
	if err != nil {
		return err
	}
	ends, err := results.Open(ctx, js, s.cfg.Replicas, results.Limits{
		Keep: s.cfg.ResultKeep, KeepDead: s.cfg.DeadKeep, Waiters: s.cfg.ResultWaiters,
	}, waiting, s.stats, s.log)
	if err != nil {
		return err
	}
	s.stack.Push("results", func(context.Context) error { ends.Close(); return nil })
	srv, err := bus.NewServer(nc, bus.ServerConfig{
		Name: "state", Version: version, Description: "ToolState, the durable store, submitted calls and their results",
	}, s.log, s.reg)
	if err != nil {
		return err
	}
	s.stack.Push("server", srv.Stop)
	for _, e := range []bus.Endpoint{
		{Name: "toolstate", Subject: subject.ToolState("*", "*"), Handler: scratch.Serve},
		{Name: "store", Subject: subject.Store("*", "*", "*", "*"), Handler: durable.Serve},
		{Name: "result", Subject: subject.Result("*", "*", "*"), Handler: ends.ServeWorker},
		{Name: "submits", Subject: subject.Submits("*", "*"), Handler: ends.ServeSubmits},
		{Name: "agent-result", Subject: subject.AgentResult("*", "*", "*"), Handler: ends.ServeAgent},
	} {
		if err := srv.Handle(e); err != nil {
			return err
		}
	}
	return nc.FlushTimeout(5 * time.Second) // from here on requests find us
}

// Stop answers what was taken, then closes everything.
func (s *Service) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(ctx)
}

func (s *Service) stop(ctx context.Context) error {
	s.nc = nil
	return s.stack.Close(ctx)
}

// Ready reports whether the service can answer now.
func (s *Service) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.nc == nil:
		return errors.New("not started")
	case !s.nc.IsConnected():
		return errors.New("not connected to NATS")
	}
	return nil
}
