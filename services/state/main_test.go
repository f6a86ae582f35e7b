package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/state"
)

func TestMain(m *testing.M) {
	natstest.RunChild()
	// Each check is some thirty requests; the flag on the command line wins.
	if err := flag.Set("rapid.checks", "30"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// start starts one replica, which stops when the test ends.
func start(t testing.TB, ns *natstest.Server, mod ...func(*state.Config)) *state.Service {
	t.Helper()
	return startWith(t, append([]func(*state.Config){func(c *state.Config) { c.Bus = ns.Config() }}, mod...)...)
}

// startWith starts one replica with a configuration, which stops when the test
// ends.
func startWith(t testing.TB, mod ...func(*state.Config)) *state.Service {
	t.Helper()
	cfg := state.DefaultConfig()
	for _, m := range mod {
		m(&cfg)
	}
	s, err := state.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t testing.TB, s *state.Service) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// call sends body as it stands on the wire to toolstate.<tenant>.<op>.
func call[Out any](t testing.TB, nc *nats.Conn, tenant, op, body string) (Out, error) {
	t.Helper()
	var out Out
	err := bus.Request(t.Context(), nc, subject.ToolState(tenant, op), json.RawMessage(body), &out)
	return out, err
}

func must[Out any](t testing.TB, nc *nats.Conn, tenant, op, body string) Out {
	t.Helper()
	out, err := call[Out](t, nc, tenant, op, body)
	if err != nil {
		t.Fatalf("%s %s: %v", op, body, err)
	}
	return out
}

// eventually polls until ok, which is never a substitute for an event.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(8 * time.Second)
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
		t.Fatalf("error %v, want %s", err, code)
	}
	if field == "" {
		return
	}
	d := errcode.From(err).Details
	if d == nil || len(d.Fields) == 0 || d.Fields[0].Field != field {
		t.Fatalf("error %v with details %+v, want field %s", err, d, field)
	}
}

func stream(t testing.TB, nc *nats.Conn, name string) jetstream.Stream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return st
}
