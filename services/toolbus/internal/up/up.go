package up

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files"
	"github.com/toolbus/toolbus/services/registry"
)

// Up is the whole of Toolbus in one process.
type Up struct {
	cfg  Config
	log  telemetry.Logger
	reg  prometheus.Registerer
	stop lifecycle.Stack

	mu    sync.Mutex
	nats  *natsServer
	parts []part
}

// New checks the configuration; nothing runs yet.
func New(cfg Config, log telemetry.Logger, reg prometheus.Registerer) (*Up, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Up{cfg: cfg, log: log, reg: reg}, nil
}

// Start returns when every service answers. After an error call Stop.
//
// A data folder that another process uses is a conflict, a port in use
// unavailable.
func (u *Up) Start(ctx context.Context) error {
	begin := time.Now()
	if err := prepareData(u.cfg.Data); err != nil {
		return err
	}
	lock, err := lockData(u.cfg.Data)
	if err != nil {
		return err
	}
	u.stop.Push("lock", func(context.Context) error { return lock.Close() })
	if host, _, _ := u.cfg.hostPort(); exposed(host) {
		u.log.Warn("other machines can reach this server, and it asks nobody for a password", "listen", u.cfg.Listen)
	}
	srv, err := startNATS(ctx, u.cfg, files.DefaultConfig().BlobBytes+registry.DefaultConfig().EventsBytes, u.log)
	if err != nil {
		return err
	}
	u.stop.Push("nats-server", srv.stop)
	u.mu.Lock()
	u.nats = srv
	u.mu.Unlock()
	all, err := stages(u.cfg, bus.Config{Server: srv.url, Wait: 5 * time.Second, InProcess: srv}, u.log, u.reg)
	if err != nil {
		return err
	}
	for _, stage := range all {
		u.stop.Push("services", func(ctx context.Context) error { return stopStage(ctx, stage) })
		if err := startStage(ctx, stage); err != nil {
			return err
		}
		u.mu.Lock()
		u.parts = append(u.parts, stage...)
		u.mu.Unlock()
	}
	u.log.Info("ready", "nats", srv.url, "data", u.cfg.Data, "sync", u.cfg.Sync, "took", time.Since(begin).Round(time.Millisecond))
	return nil
}

// Stop drains the services, then stops the server, then frees the data folder.
// Safe before Start, after a failed one, and twice.
func (u *Up) Stop(ctx context.Context) error {
	u.mu.Lock()
	u.parts = nil
	u.mu.Unlock()
	return u.stop.Close(ctx)
}

// Ready asks every service.
func (u *Up) Ready(ctx context.Context) error {
	u.mu.Lock()
	parts := u.parts
	u.mu.Unlock()
	if len(parts) == 0 {
		return errcode.New(errcode.Unavailable, "not started")
	}
	var errs []error
	for _, p := range parts {
		if err := p.Ready(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// URL is where clients connect; "" before Start.
func (u *Up) URL() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.nats == nil {
		return ""
	}
	return u.nats.url
}
