// Package files is the files service: the tenants' file areas, and the bodies
// of tool calls that are too large for one message.
//
// Any number of replicas may run; they share nothing but NATS.
package files

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files/internal/api"
	"github.com/toolbus/toolbus/services/files/internal/area"
	"github.com/toolbus/toolbus/services/files/internal/blobs"
	"github.com/toolbus/toolbus/services/files/internal/limits"
)

// Config is the service's configuration.
type Config struct {
	Bus          bus.Config
	Replicas     int           // of the streams
	MaxFileSize  int64         // bytes of one file
	QuotaBytes   int64         // bytes of all files of one tenant; 0: no limit
	MaxFiles     int64         // files of one tenant; 0: no limit
	ReserveQuota bool          // also give each tenant's stream a size limit, which NATS reserves on disk
	BlobAge      time.Duration // how long spilled arguments and results can be fetched
	BlobBytes    int64         // bytes of all of them, which NATS reserves; the oldest go first
	SweepEvery   time.Duration // how often what crashes left behind is looked for
}

// DefaultConfig is a configuration for one server on this machine.
func DefaultConfig() Config {
	return Config{
		Bus: bus.Config{Server: bus.DefaultServer, Wait: 30 * time.Second}, Replicas: 1,
		MaxFileSize: 4 << 30, QuotaBytes: 10 << 30, MaxFiles: 100_000,
		BlobAge: time.Hour, BlobBytes: 1 << 30, SweepEvery: time.Hour,
	}
}

// RegisterFlags registers the service's flags; their defaults are c's values.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	c.Bus.RegisterFlags(f)
	f.IntVar(&c.Replicas, "replicas", c.Replicas, "`replicas` of the service's streams: 1, 3 or 5")
	f.Int64Var(&c.MaxFileSize, "max-file-size", c.MaxFileSize, "largest file, in `bytes`")
	f.Int64Var(&c.QuotaBytes, "quota", c.QuotaBytes, "`bytes` of all files of a tenant whose configuration says nothing else; 0 for no limit")
	f.Int64Var(&c.MaxFiles, "max-files", c.MaxFiles, "how many `files` such a tenant may have; 0 for no limit")
	f.BoolVar(&c.ReserveQuota, "reserve-quota", c.ReserveQuota,
		"limit each tenant's stream to its quota plus one file in the server too, as the hard stop; NATS reserves that space at once")
	f.DurationVar(&c.BlobAge, "blob-age", c.BlobAge, "how long large arguments and results can be fetched")
	f.Int64Var(&c.BlobBytes, "blob-bytes", c.BlobBytes, "`bytes` of all large arguments and results; the oldest go first")
	f.DurationVar(&c.SweepEvery, "sweep-every", c.SweepEvery, "how often to look for what crashes left behind")
}

// Validate checks the configuration; the error names the field.
func (c Config) Validate() error {
	switch {
	case c.Replicas < 1 || c.Replicas > 5:
		return errcode.Field("replicas", "must be 1 to 5")
	case c.MaxFileSize < 1:
		return errcode.Field("max-file-size", "must be positive")
	case c.QuotaBytes < 0:
		return errcode.Field("quota", "must not be negative")
	case c.MaxFiles < 0:
		return errcode.Field("max-files", "must not be negative")
	case c.ReserveQuota && c.QuotaBytes == 0:
		return errcode.Field("reserve-quota", "needs a quota")
	case c.BlobAge < time.Second:
		return errcode.Field("blob-age", "must be at least 1s")
	case c.BlobBytes < 1<<20:
		return errcode.Field("blob-bytes", "must be at least 1 MiB")
	case c.SweepEvery < time.Second:
		return errcode.Field("sweep-every", "must be at least 1s")
	}
	return nil
}

// Service is one replica.
type Service struct {
	cfg   Config
	log   telemetry.Logger
	reg   prometheus.Registerer
	stack lifecycle.Stack

	mu sync.Mutex
	nc *nats.Conn // set while the service serves
}

// New makes a service; it does nothing before Start.
func New(cfg Config, log telemetry.Logger, reg prometheus.Registerer) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, log: log, reg: reg}, nil
}

// Start connects, makes the streams and answers requests from then on. After an
// error call Stop.
func (s *Service) Start(ctx context.Context) error {
	nc, err := bus.Connect(ctx, s.cfg.Bus, "toolbus-files")
	if err != nil {
		return err
	}
	s.stack.Push("connection", func(context.Context) error { nc.Close(); return nil })
	tenants, err := limits.New(nc, s.log)
	if err != nil {
		return err
	}
	a, err := area.New(nc, area.Config{
		Replicas: s.cfg.Replicas, MaxFileSize: s.cfg.MaxFileSize,
		Default: area.Limits{Bytes: s.cfg.QuotaBytes, Files: s.cfg.MaxFiles}, Limits: tenants,
		ReserveQuota: s.cfg.ReserveQuota, OrphanAge: area.DefaultOrphanAge, UploadAge: area.DefaultUploadAge,
		CompactChunks: area.DefaultCompactChunks,
	}, s.log)
	if err != nil {
		return err
	}
	s.stack.Push("file area", func(ctx context.Context) error { a.Close(ctx); return nil })
	b, err := blobs.New(ctx, nc, blobs.Config{Replicas: s.cfg.Replicas, Age: s.cfg.BlobAge, MaxBytes: s.cfg.BlobBytes})
	if err != nil {
		return err
	}
	srv, err := bus.NewServer(nc, bus.ServerConfig{
		Name: "files", Version: "0.1.0", Description: "Toolbus tenant files and large call bodies",
	}, s.log, s.reg)
	if err != nil {
		return err
	}
	s.stack.Push("requests", srv.Stop)
	for _, e := range api.Endpoints(a, b) {
		if err := srv.Handle(e); err != nil {
			return err
		}
	}
	if err := nc.FlushTimeout(5 * time.Second); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "NATS does not answer: %v", err)
	}
	s.sweepInBackground(a, b)
	s.setConn(nc)
	return nil
}

// sweepInBackground sweeps at once and then regularly, replicas not all at the
// same moment.
func (s *Service) sweepInBackground(a *area.Area, b *blobs.Blobs) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.stack.Push("sweep", func(context.Context) error { cancel(); <-done; return nil })
	go func() {
		defer close(done)
		for {
			if err := a.Sweep(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("sweep not finished", "err", err)
			}
			b.Expire(s.cfg.BlobAge)
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.cfg.SweepEvery + rand.N(s.cfg.SweepEvery/10)):
			}
		}
	}()
}

// Stop answers what was asked before, until ctx ends, and disconnects.
func (s *Service) Stop(ctx context.Context) error {
	s.setConn(nil)
	return s.stack.Close(ctx)
}

// Ready reports why the service cannot serve now, or nil.
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

func (s *Service) setConn(nc *nats.Conn) {
	s.mu.Lock()
	s.nc = nc
	s.mu.Unlock()
}
