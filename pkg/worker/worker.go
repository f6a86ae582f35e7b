package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/internal/crew"
	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Worker hosts tools on a connection of its own.
type Worker struct {
	cfg   Config
	id    string
	log   telemetry.Logger
	reg   prometheus.Registerer
	tools map[string]*hosted

	mu      sync.Mutex
	nc      *nats.Conn
	server  *bus.Server
	cleanup lifecycle.Stack

	crew    *crew.Crew // runs the tools
	slots   *slots
	auditor *auditor
	peers   peers
	grants  *grants
	running running
	secrets secrets
	metrics metrics
}

// New makes a worker for tools given as values. Names must be unique and every
// definition valid; the error says which is not.
func New(cfg Config, tools []tool.Tool, log telemetry.Logger, reg prometheus.Registerer) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(tools) == 0 {
		return nil, errcode.New(errcode.InvalidRequest, "a worker needs at least one tool")
	}
	w := &Worker{
		cfg: cfg, id: newID(), log: log, reg: reg,
		tools:   make(map[string]*hosted, len(tools)),
		secrets: secrets{dir: cfg.SecretsDir, env: os.LookupEnv},
		metrics: newMetrics(reg),
		crew:    crew.New(maxIdle),
		slots:   newSlots(cfg.MaxCalls, cfg.MaxPerTenant),
	}
	for _, t := range tools {
		h, err := w.host(t)
		if err != nil {
			return nil, err
		}
		if w.tools[h.def.Name] != nil {
			return nil, errcode.Field("name", "two tools are named %s", h.def.Name)
		}
		w.tools[h.def.Name] = h
	}
	return w, nil
}

// ID names this worker process in the catalogue, and is the InstanceID of its
// tools' calls.
func (w *Worker) ID() string { return w.id }

// Start connects, subscribes the tools' subjects and announces the tools. It
// does not need the registry to be there: the announcement is repeated.
func (w *Worker) Start(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nc != nil {
		return errcode.New(errcode.InvalidRequest, "the worker is started already")
	}
	reconnected := make(chan struct{}, 1)
	nc, err := bus.Connect(ctx, w.cfg.Bus, w.cfg.Name+" "+w.id)
	if err != nil {
		return err
	}
	w.nc = nc
	w.cleanup.Push("tools", func(context.Context) error { w.crew.Close(); return nil })
	w.cleanup.Push("connection", func(context.Context) error { nc.Close(); return nil })
	w.auditor = newAuditor(w)
	w.cleanup.Push("audit", w.auditor.close)
	w.grants, err = newGrants(nc)
	if err != nil {
		return err
	}
	var pulls atomic.Pointer[submits]
	nc.SetReconnectHandler(func(*nats.Conn) {
		w.grants.drop() // changes may have been missed
		if s := pulls.Load(); s != nil {
			s.reconnected()
		}
		select {
		case reconnected <- struct{}{}:
		default:
		}
	})
	if err := w.subscribe(); err != nil {
		return err
	}
	s := startSubmits(w)
	pulls.Store(s)
	w.cleanup.Push("submitted calls", s.close)
	announcer := startAnnouncer(ctx, nc, w.id, w.definitions(), reconnected, w.log)
	// Leave the catalogue first, then finish what runs.
	w.cleanup.Push("announcer", announcer.stop)
	w.log.Info("hosting", "tools", strings.Join(w.names(), ","), "nats", nc.ConnectedUrlRedacted(), "worker", w.id)
	return nil
}

func (w *Worker) subscribe() error {
	var err error
	w.server, err = bus.NewServer(w.nc, bus.ServerConfig{
		Name: w.cfg.Name, Version: "0.1.0", Description: "Runs tools: " + strings.Join(w.names(), ", "),
		Metadata: map[string]string{"worker": w.id},
	}, w.log, w.reg)
	if err != nil {
		return err
	}
	w.cleanup.Push("calls", w.server.Stop)
	context.AfterFunc(w.server.Context(), func() { w.running.stop(context.Cause(w.server.Context())) })
	// A plain subscription, not a queue: any worker may be running the call.
	sub, err := w.nc.Subscribe(subject.AgentCancel("*", "*", "*"), func(m *nats.Msg) {
		if a, err := subject.ParseAgent(m.Subject); err == nil {
			w.running.cancel(callKey{a.Tenant, a.Agent, a.ID})
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe cancels: %w", err)
	}
	w.cleanup.Push("cancels", func(context.Context) error { return ignoreClosed(sub.Unsubscribe()) })
	t := startTeller(w)
	w.slots.changed = t.changed
	w.cleanup.Push("free slots", t.close)
	loads, err := w.hearLoads(t)
	if err != nil {
		return fmt.Errorf("subscribe loads: %w", err)
	}
	w.cleanup.Push("loads", func(context.Context) error { return ignoreClosed(loads.Unsubscribe()) })
	handed := bus.Endpoint{Name: "handed", Subject: subject.InstanceCall(w.id), Handler: w.serveHanded, Queue: w.id}
	if err := w.server.Handle(handed); err != nil {
		return err
	}
	for _, name := range w.names() {
		h := w.tools[name]
		call := func(ctx context.Context, in *bus.Incoming) (any, error) { return w.serve(ctx, h, in) }
		endpoints := []bus.Endpoint{
			{Name: "call-" + name, Subject: subject.AgentCall("*", "*", name), Handler: call},
			{Name: "toolcall-" + name, Subject: subject.WorkerCall("*", "*", name), Handler: call},
		}
		if h.jobs != nil {
			endpoints = append(endpoints, bus.Endpoint{
				Name: "job-" + name, Subject: subject.WorkerJob("*", "*", name),
				Handler: func(ctx context.Context, in *bus.Incoming) (any, error) { return w.serveJob(ctx, h, in) },
			})
		}
		for _, e := range endpoints {
			e.Queue = subject.CallQueue(name)
			if err := w.server.Handle(e); err != nil {
				return err
			}
		}
	}
	return w.nc.FlushTimeout(5 * time.Second)
}

// Stop leaves the catalogue, takes no more calls, and waits for those that run
// until ctx ends; then they are cancelled.
func (w *Worker) Stop(ctx context.Context) error { return w.cleanup.Close(ctx) }

// Ready reports why the worker cannot take calls now, or nil.
func (w *Worker) Ready(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nc == nil || !w.nc.IsConnected() {
		return errcode.New(errcode.Unavailable, "not connected to NATS")
	}
	return nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
		return nil
	}
	return err
}

// newID makes a readable id that is unique across restarts.
func newID() string {
	host, _ := os.Hostname()
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, host)
	if len(host) > 40 {
		host = host[:40]
	}
	if host == "" {
		host = "worker"
	}
	return host + "-" + uuid.NewString()[:13]
}
