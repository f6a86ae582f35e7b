package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// serve answers test.> on a connection of its own until the test ends. The
// handler is chosen by the subject's last token.
func serve(t *testing.T, ns *natstest.Server, cfg bus.ServerConfig, reg prometheus.Registerer, handlers map[string]bus.Handler) *bus.Server {
	t.Helper()
	nc := ns.Connect()
	cfg.Name, cfg.Version = "test", "0.1.0"
	srv, err := bus.NewServer(nc, cfg, telemetry.Discard(), reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Stop(ctx)
	})
	for name, h := range handlers {
		if err := srv.Handle(bus.Endpoint{Name: name, Subject: "test." + name, Handler: h}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return srv
}

type greeting struct {
	Name string `json:"name"`
	Text string `json:"text,omitempty"`
}

func greet(_ context.Context, in *bus.Incoming) (any, error) {
	var g greeting
	if err := in.Decode(&g); err != nil {
		return nil, err
	}
	g.Text = "hello <" + g.Name + ">"
	return g, nil
}

func TestRequestReply(t *testing.T) {
	ns := natstest.Start(t)
	reg := prometheus.NewRegistry()
	serve(t, ns, bus.ServerConfig{}, reg, map[string]bus.Handler{
		"greet":  greet,
		"none":   func(context.Context, *bus.Incoming) (any, error) { return nil, nil },
		"raw":    func(context.Context, *bus.Incoming) (any, error) { return bus.Raw{Data: []byte{0, 1, 2}}, nil },
		"silent": func(context.Context, *bus.Incoming) (any, error) { return bus.NoReply, nil },
	})
	nc := ns.Connect()

	var got greeting
	if err := bus.Request(t.Context(), nc, "test.greet", greeting{Name: "Ada"}, &got); err != nil || got.Text != "hello <Ada>" {
		t.Errorf("got %+v, %v", got, err)
	}
	// The same, without HTML escapes on the wire, for readers in any language.
	raw, err := nc.Request("test.greet", []byte(`{"name":"Ada"}`), 5*time.Second)
	if err != nil || string(raw.Data) != `{"name":"Ada","text":"hello <Ada>"}` {
		t.Errorf("got %s, %v", raw.Data, err)
	}
	// An empty body is an empty object.
	if raw, err = nc.Request("test.greet", nil, 5*time.Second); err != nil || string(raw.Data) != `{"name":"","text":"hello <>"}` {
		t.Errorf("got %s, %v", raw.Data, err)
	}
	if raw, err = nc.Request("test.none", nil, 5*time.Second); err != nil || string(raw.Data) != "{}" {
		t.Errorf("no value must be an empty object: %s, %v", raw.Data, err)
	}
	if err := bus.Request(t.Context(), nc, "test.none", nil, nil); err != nil {
		t.Errorf("out may be nil: %v", err)
	}
	if raw, err = nc.Request("test.raw", nil, 5*time.Second); err != nil || string(raw.Data) != "\x00\x01\x02" {
		t.Errorf("got %q, %v", raw.Data, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := bus.Request(ctx, nc, "test.silent", nil, nil); !errors.Is(err, errcode.Timeout) {
		t.Errorf("NoReply must send nothing: %v", err)
	}
	if n, err := testutil.GatherAndCount(reg, "toolbus_requests_total"); err != nil || n == 0 {
		t.Errorf("no requests counted: %d, %v", n, err)
	}
}

func TestErrorEnvelope(t *testing.T) {
	ns := natstest.Start(t)
	serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{
		"conflict": func(context.Context, *bus.Incoming) (any, error) {
			return nil, errcode.ConflictAt(7, "another\r\nrevision stands")
		},
		"plain":   func(context.Context, *bus.Incoming) (any, error) { return nil, errors.New("boom") },
		"decode":  greet,
		"panic":   func(context.Context, *bus.Incoming) (any, error) { panic("handler") },
		"nojson":  func(context.Context, *bus.Incoming) (any, error) { return math.NaN(), nil },
		"mpanic":  func(context.Context, *bus.Incoming) (any, error) { return panicky{}, nil },
		"big":     func(context.Context, *bus.Incoming) (any, error) { return strings.Repeat("x", 2<<20), nil },
		"bigfail": func(context.Context, *bus.Incoming) (any, error) { return nil, hugeFault() },
	})
	nc := ns.Connect()

	raw, err := nc.Request("test.conflict", nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if c, d := raw.Header.Get("Nats-Service-Error-Code"), raw.Header.Get("Nats-Service-Error"); c != "409" || !strings.Contains(d, "conflict") || strings.ContainsAny(d, "\r\n") {
		t.Errorf("micro headers %q, %q", c, d)
	}
	var body errcode.Body
	if err := json.Unmarshal(raw.Data, &body); err != nil || body.Error.Code != errcode.Conflict || *body.Error.Details.Revision != 7 || body.Error.Retryable {
		t.Errorf("body %s, %v", raw.Data, err)
	}

	for _, c := range []struct {
		endpoint, body string
		code           errcode.Code
		text           string
	}{
		{"conflict", "", errcode.Conflict, "revision stands"},
		{"plain", "", errcode.Internal, "boom"},
		{"decode", `{"name":5}`, errcode.InvalidRequest, "name: must be string"},
		{"panic", "", errcode.Internal, "the service failed"},
		{"nojson", "", errcode.Internal, "no JSON form"},
		{"mpanic", "", errcode.Internal, "the service failed"},
		{"big", "", errcode.TooLarge, "the reply is"},
		{"bigfail", "", errcode.InvalidArguments, "wrong"},
		// The server lives on after all of this.
		{"conflict", "", errcode.Conflict, ""},
	} {
		err := bus.Request(t.Context(), nc, "test."+c.endpoint, []byte(c.body), nil)
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %s …%s…", c.endpoint, err, c.code, c.text)
		}
		if strings.Contains(err.Error(), "handler") {
			t.Errorf("%s: a panic's text must stay on the server: %v", c.endpoint, err)
		}
	}
}

type panicky struct{}

func (panicky) MarshalJSON() ([]byte, error) { panic("handler's value") }

func hugeFault() error {
	faults := make([]errcode.FieldFault, 50_000)
	for i := range faults {
		faults[i] = errcode.FieldFault{Field: "field", Message: "is wrong, quite wrong"}
	}
	return errcode.Fields(errcode.InvalidArguments, faults...)
}

func TestClientErrors(t *testing.T) {
	ns := natstest.Start(t)
	started, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{
		"slow": func(context.Context, *bus.Incoming) (any, error) {
			started <- struct{}{}
			<-release
			return nil, nil
		},
	})
	nc := ns.Connect()

	if err := bus.Request(t.Context(), nc, "test.nobody", nil, nil); !errors.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), "test.nobody") {
		t.Errorf("no responders: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	if err := bus.Request(ctx, nc, "test.slow", nil, nil); !errors.Is(err, errcode.Timeout) {
		t.Errorf("timeout: %v", err)
	}
	cancel()
	<-started
	ctx, cancel = context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if err := bus.Request(ctx, nc, "test.slow", nil, nil); !errors.Is(err, errcode.Cancelled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := bus.Request(t.Context(), nc, "test.slow", strings.Repeat("x", 2<<20), nil); !errors.Is(err, errcode.TooLarge) {
		t.Errorf("oversize: %v", err)
	} else if d := errcode.From(err).Details; d == nil || *d.Limit != bus.MaxBody(nc) || *d.Actual <= 2<<20 {
		t.Errorf("the limit is not named: %+v", d)
	}
	big := nats.NewMsg("test.slow")
	big.Header.Set("Big", strings.Repeat("x", 2<<20))
	if _, err := bus.RequestMsg(t.Context(), nc, big); !errors.Is(err, errcode.TooLarge) {
		t.Errorf("oversize header: %v", err)
	}
	if err := bus.Request(t.Context(), nc, "test.slow", func() {}, nil); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("no JSON form: %v", err)
	}
	if err := bus.Request(t.Context(), nc, "test. space", nil, nil); err == nil {
		t.Error("a bad subject must be refused")
	}
	nc.Close()
	if err := bus.Request(t.Context(), nc, "test.slow", nil, nil); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("closed: %v", err)
	}
}

func TestOverload(t *testing.T) {
	ns := natstest.Start(t)
	release, started := make(chan struct{}), make(chan struct{}, 2)
	srv := serve(t, ns, bus.ServerConfig{MaxInFlight: 2}, nil, map[string]bus.Handler{
		"wait": func(context.Context, *bus.Incoming) (any, error) {
			started <- struct{}{}
			<-release
			return nil, nil
		},
	})
	nc := ns.Connect()
	results := make(chan error, 2)
	for range 2 {
		go func() { results <- bus.Request(t.Context(), nc, "test.wait", nil, nil) }()
		<-started
	}
	if n := srv.InFlight(); n != 2 {
		t.Errorf("%d in flight", n)
	}
	err := bus.Request(t.Context(), nc, "test.wait", nil, nil)
	if !errors.Is(err, errcode.Overloaded) || errcode.From(err).Details.RetryAfter == "" || !errcode.From(err).Retryable {
		t.Errorf("got %v", err)
	}
	close(release)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	// A slot is free a moment after its reply was sent: a stop waits for the last
	// to leave, and the reply must be out by then.
	if err := bus.Retry(t.Context(), nc, "test.wait", nil, nil); err != nil {
		t.Errorf("a slot came free: %v", err)
	}
}

func TestDiscovery(t *testing.T) {
	ns := natstest.Start(t)
	serve(t, ns, bus.ServerConfig{Description: "says hello"}, nil, map[string]bus.Handler{"greet": greet})
	raw, err := ns.Connect().Request("$SRV.INFO.test", nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(raw.Data, &info); err != nil {
		t.Fatal(err)
	}
	if info.Name != "test" || info.Version != "0.1.0" || info.Description != "says hello" || len(info.Endpoints) != 1 ||
		info.Endpoints[0].Subject != "test.greet" || info.Endpoints[0].QueueGroup != "test" {
		t.Errorf("%s", raw.Data)
	}
}

func TestTraceTravels(t *testing.T) {
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	ns := natstest.Start(t)
	inner := ns.Connect()
	serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{
		"outer": func(ctx context.Context, _ *bus.Incoming) (any, error) {
			var v any
			return v, bus.Request(ctx, inner, "test.inner", nil, &v)
		},
		"inner": func(ctx context.Context, in *bus.Incoming) (any, error) {
			if got := in.Header.Get(message.HeaderTrace); got != trace || bus.Trace(ctx) != trace {
				return nil, errcode.New(errcode.Internal, "header %q, context %q", got, bus.Trace(ctx))
			}
			return nil, nil
		},
	})
	nc := ns.Connect()
	if err := bus.Request(bus.WithTrace(t.Context(), trace), nc, "test.outer", nil, nil); err != nil {
		t.Error(err)
	}
	if err := bus.Request(t.Context(), nc, "test.outer", nil, nil); !errors.Is(err, errcode.Internal) {
		t.Errorf("without a trace none must be made up: %v", err)
	}
}

// A service that gave a reason once and then falls silent: the reason is the
// error.
func TestRetryKeepsTheReason(t *testing.T) {
	ns := natstest.Start(t)
	first := true
	serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{
		"full": func(ctx context.Context, _ *bus.Incoming) (any, error) {
			if first {
				first = false
				return nil, errcode.New(errcode.Unavailable, "the disk is full")
			}
			return bus.NoReply, nil
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := bus.Retry(ctx, ns.Connect(), "test.full", nil, nil)
	if !errors.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("got %v", err)
	}
}

func TestRetry(t *testing.T) {
	ns := natstest.Start(t)
	failures := 3
	serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{
		"flaky": func(context.Context, *bus.Incoming) (any, error) { // one caller at a time
			if failures > 0 {
				failures--
				return nil, errcode.New(errcode.Unavailable, "not yet")
			}
			return greeting{Text: "at last"}, nil
		},
		"never":    func(context.Context, *bus.Incoming) (any, error) { return nil, errcode.New(errcode.Overloaded, "busy") },
		"conflict": func(context.Context, *bus.Incoming) (any, error) { return nil, errcode.New(errcode.Conflict, "no") },
		"greet":    greet,
	})
	nc := ns.Connect()
	var got greeting
	if err := bus.Retry(t.Context(), nc, "test.flaky", nil, &got); err != nil || got.Text != "at last" {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := bus.Retry(t.Context(), nc, "test.conflict", nil, nil); !errors.Is(err, errcode.Conflict) {
		t.Errorf("what is not retryable must come back: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := bus.Retry(ctx, nc, "test.never", nil, nil); !errors.Is(err, errcode.Overloaded) {
		t.Errorf("the last failure must come back: %v", err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("went on for %v after ctx", d)
	}

	ns.Down()
	again := make(chan error, 1)
	go func() { again <- bus.Retry(t.Context(), nc, "test.greet", greeting{Name: "Ada"}, &got) }()
	ns.Up()
	if err := <-again; err != nil || got.Text != "hello <Ada>" {
		t.Errorf("after a restart of NATS: %+v, %v", got, err)
	}
}

func TestConnect(t *testing.T) {
	for _, server := range []string{"nats://user:s3cret@127.0.0.1:1", "user:s3cret@127.0.0.1:1", "nats://user:s3cret%zz@127.0.0.1:1", "nats://user:s3cret@", "nats://s3cret@h o s t:1"} {
		_, err := bus.Connect(t.Context(), bus.Config{Server: server}, "x")
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", server, err)
		}
		if c := errcode.Of(err); c != errcode.Unavailable && c != errcode.InvalidRequest {
			t.Errorf("%s: %s", server, c)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	if _, err := bus.Connect(ctx, bus.Config{Server: "nats://127.0.0.1:1", Wait: time.Hour}, "x"); !errors.Is(err, errcode.Unavailable) || time.Since(start) > 10*time.Second {
		t.Errorf("a cancelled connect: %v after %v", err, time.Since(start))
	}
}

func TestConnectWaitsForTheServer(t *testing.T) {
	ns := natstest.Start(t)
	cfg := ns.Config()
	cfg.Wait = 20 * time.Second
	ns.Down()
	type result struct {
		nc  *nats.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		nc, err := bus.Connect(t.Context(), cfg, "late")
		got <- result{nc, err}
	}()
	ns.Up()
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.nc.Close()
}
