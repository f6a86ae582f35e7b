package scheduler_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/registry"
	"github.com/toolbus/toolbus/services/scheduler"
	"github.com/toolbus/toolbus/services/state"
)

func TestMain(m *testing.M) {
	// The tests wait for JetStream's timers more than they work.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

type service interface {
	Start(context.Context) error
	Stop(context.Context) error
}

func start(t testing.TB, s service, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
}

func stop(t testing.TB, s service) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func logger(t testing.TB) telemetry.Logger {
	if !testing.Verbose() {
		return telemetry.Discard()
	}
	l, _, err := telemetry.NewLogger(os.Stderr, telemetry.Config{LogLevel: "debug"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startScheduler starts one replica.
func startScheduler(t testing.TB, ns *natstest.Server, mod ...func(*scheduler.Config)) *scheduler.Service {
	t.Helper()
	return startWithClock(t, ns, &scheduler.Clock{}, mod...)
}

// startWithClock starts one replica whose slots are due by a clock.
func startWithClock(t testing.TB, ns *natstest.Server, clock *scheduler.Clock, mod ...func(*scheduler.Config)) *scheduler.Service {
	t.Helper()
	cfg := scheduler.DefaultConfig()
	cfg.Bus = ns.Config()
	cfg.TickWait, cfg.LeaseTTL = 3*time.Second, 3*time.Second
	for _, m := range mod {
		m(&cfg)
	}
	s, err := scheduler.New(cfg, logger(t), prometheus.NewRegistry())
	if err == nil {
		s.UseClock(clock)
	}
	start(t, s, err)
	return s
}

func startRegistry(t testing.TB, ns *natstest.Server) *registry.Service {
	t.Helper()
	cfg := registry.DefaultConfig()
	cfg.Bus = ns.Config()
	s, err := registry.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	start(t, s, err)
	return s
}

func startState(t testing.TB, ns *natstest.Server) *state.Service {
	t.Helper()
	cfg := state.DefaultConfig()
	cfg.Bus = ns.Config()
	s, err := state.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	start(t, s, err)
	return s
}

// system is NATS, registry and state, on which schedulers run.
type system struct {
	t  testing.TB
	ns *natstest.Server
	nc *nats.Conn
}

func newSystem(t testing.TB, mod ...func(*server.Options)) *system {
	t.Helper()
	ns := natstest.Start(t, mod...)
	startRegistry(t, ns)
	return &system{t: t, ns: ns, nc: ns.Connect()}
}

const tenant = "acme"

func (s *system) apply(agents ...message.AgentConfig) {
	s.t.Helper()
	raw, err := json.Marshal(message.Config{Agents: agents})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := bus.Retry(s.t.Context(), s.nc, subject.Registry(tenant, "apply"), message.RegistryApply{Config: raw}, nil); err != nil {
		s.t.Fatal(err)
	}
}

func call[Out any](s *system, op string, in any) (Out, error) {
	s.t.Helper()
	var out Out
	err := bus.Request(s.t.Context(), s.nc, subject.Scheduler(tenant, op), in, &out)
	return out, err
}

func must[Out any](s *system, op string, in any) Out {
	s.t.Helper()
	out, err := call[Out](s, op, in)
	if err != nil {
		s.t.Fatalf("%s %+v: %v", op, in, err)
	}
	return out
}

func (s *system) history(agent, entry string) []message.SlotEntry {
	s.t.Helper()
	return must[message.SchedulerHistory](s, "history", message.SchedulerEntryRef{AgentID: agent, EntryID: entry}).Slots
}

// agent is an agent that answers wakes.
type agent struct {
	sub *nats.Subscription

	mu    sync.Mutex
	wakes []message.Wake
	calls int
}

// accept answers every wake with true.
func accept(message.Wake, func(message.WakeReply)) *message.WakeReply {
	return &message.WakeReply{Accepted: true}
}

// listen makes an agent that listens and says so. answer returns the final reply,
// nil for none; interim sends another before.
func (s *system) listen(name string, answer func(w message.Wake, interim func(message.WakeReply)) *message.WakeReply) *agent {
	s.t.Helper()
	a := &agent{}
	respond := func(m *nats.Msg, r message.WakeReply) {
		b, _ := json.Marshal(r)
		_ = m.Respond(b)
	}
	var err error
	a.sub, err = s.nc.QueueSubscribe(subject.AgentWake(tenant, name), name, func(m *nats.Msg) {
		var w message.Wake
		if err := json.Unmarshal(m.Data, &w); err != nil {
			s.t.Errorf("wake %s: %v", m.Data, err)
			return
		}
		a.mu.Lock()
		a.calls++
		a.mu.Unlock()
		go func() { // a slow answer holds back no other
			r := answer(w, func(r message.WakeReply) { respond(m, r) })
			if r == nil {
				return
			}
			if r.Accepted {
				a.mu.Lock()
				a.wakes = append(a.wakes, w)
				a.mu.Unlock()
			}
			respond(m, *r)
		}()
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.nc.Publish(subject.AgentReady(tenant, name), nil); err != nil {
		s.t.Fatal(err)
	}
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (a *agent) leave() { _ = a.sub.Unsubscribe() }

func (a *agent) accepted() []message.Wake {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]message.Wake(nil), a.wakes...)
}

func (a *agent) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}

// eventually polls until ok, which is never a substitute for an event.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(40 * time.Second) // for machines that stall
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func wantCode(t testing.TB, err error, code errcode.Code, field string) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("error %v, want %s", err, code)
		return
	}
	if field == "" {
		return
	}
	d := errcode.From(err).Details
	if d == nil {
		t.Errorf("error %v, want field %s", err, field)
		return
	}
	for _, f := range d.Fields {
		if f.Field == field {
			return
		}
	}
	t.Errorf("error %v with %+v, want field %s", err, d.Fields, field)
}

func errcodeOf(s string) errcode.Code { return errcode.Code(s) }
