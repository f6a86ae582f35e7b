package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

func stopWithin(t *testing.T, srv *bus.Server, d time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return srv.Stop(ctx)
}

func TestStopAnswersWhatWasTaken(t *testing.T) {
	ns := natstest.Start(t)
	release, started := make(chan struct{}), make(chan struct{})
	nc := ns.Connect()
	srv := serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{
		"wait": func(context.Context, *bus.Incoming) (any, error) {
			started <- struct{}{}
			<-release
			return greeting{Text: "done"}, nil
		},
	})
	result := make(chan error, 1)
	go func() {
		var g greeting
		err := bus.Request(t.Context(), nc, "test.wait", nil, &g)
		if err == nil && g.Text != "done" {
			err = fmt.Errorf("got %+v", g)
		}
		result <- err
	}()
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- stopWithin(t, srv, 10*time.Second) }()
	// From some moment on new requests find nobody; the one taken goes on.
	deadline := time.Now().Add(10 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := bus.Request(ctx, nc, "test.nosuch", nil, nil)
		if errors.Is(err, errcode.Unavailable) && bus.Request(ctx, nc, "$SRV.PING.test", nil, nil) != nil {
			cancel()
			break
		}
		cancel()
		if time.Now().After(deadline) {
			t.Fatal("the service does not leave")
		}
	}
	select {
	case err := <-stopped:
		t.Fatalf("stopped with a request in flight: %v", err)
	default:
	}
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := stopWithin(t, srv, time.Second); err != nil {
		t.Errorf("a second stop: %v", err)
	}
}

func TestStopCancelsWhatDoesNotEnd(t *testing.T) {
	ns := natstest.Start(t)
	nc := ns.Connect()
	started := make(chan struct{})
	srv := serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{
		"forever": func(ctx context.Context, _ *bus.Incoming) (any, error) {
			close(started)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
	})
	result := make(chan error, 1)
	go func() { result <- bus.Request(t.Context(), nc, "test.forever", nil, nil) }()
	<-started
	if err := stopWithin(t, srv, 50*time.Millisecond); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := <-result; !errors.Is(err, errcode.Unavailable) {
		t.Errorf("the caller got %v, want unavailable: it may try another", err)
	}
}

// A handler's own request makes a subscription on the server's connection
// while the server drains; Stop must not wait for that one.
func TestStopWhileAHandlerMakesItsFirstRequest(t *testing.T) {
	ns := natstest.Start(t)
	nc := ns.Connect()
	serve(t, ns, bus.ServerConfig{}, nil, map[string]bus.Handler{"greet": greet})
	own := ns.Connect()
	srv, err := bus.NewServer(own, bus.ServerConfig{Name: "outer", Version: "0.1.0"}, telemetry.Discard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	release, started := make(chan struct{}), make(chan struct{})
	if err := srv.Handle(bus.Endpoint{Name: "outer", Subject: "outer", Handler: func(ctx context.Context, in *bus.Incoming) (any, error) {
		close(started)
		<-release
		var g greeting
		return g, bus.Request(ctx, own, "test.greet", greeting{Name: "x"}, &g)
	}}); err != nil {
		t.Fatal(err)
	}
	if err := own.Flush(); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- bus.Request(t.Context(), nc, "outer", nil, nil) }()
	<-started
	stopped := make(chan error, 1)
	start := time.Now()
	go func() { stopped <- stopWithin(t, srv, 9*time.Second) }()
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
	if err := <-stopped; err != nil || time.Since(start) > 5*time.Second {
		t.Errorf("stopped after %v: %v", time.Since(start), err)
	}
}

func TestStopWithoutNATS(t *testing.T) {
	for name, cut := range map[string]func(*natstest.Server, func()){
		"closed connection": func(_ *natstest.Server, closeConn func()) { closeConn() },
		"server gone":       func(ns *natstest.Server, _ func()) { ns.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			ns := natstest.Start(t)
			nc := ns.Connect()
			srv, err := bus.NewServer(nc, bus.ServerConfig{Name: "test", Version: "0.1.0"}, telemetry.Discard(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := srv.Handle(bus.Endpoint{Name: "greet", Subject: "test.greet", Handler: greet}); err != nil {
				t.Fatal(err)
			}
			cut(ns, nc.Close)
			start := time.Now()
			if err := stopWithin(t, srv, 8*time.Second); err != nil {
				t.Errorf("stop: %v", err)
			}
			if d := time.Since(start); d > 7*time.Second {
				t.Errorf("stop took %v", d)
			}
		})
	}
}

// A rolling restart under load: two replicas of a queue group take turns to
// stop and come back; every request gets its answer, at the first try.
func TestRollingStopLosesNothing(t *testing.T) {
	ns := natstest.Start(t)
	start := func() (*bus.Server, func()) {
		nc, err := bus.Connect(t.Context(), ns.Config(), "replica")
		if err != nil {
			t.Fatal(err)
		}
		srv, err := bus.NewServer(nc, bus.ServerConfig{Name: "test", Version: "0.1.0"}, telemetry.Discard(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := srv.Handle(bus.Endpoint{Name: "greet", Subject: "test.greet", Handler: greet}); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		return srv, nc.Close
	}
	a, closeA := start()
	b, closeB := start()

	var sent, lost atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 16 {
		nc := ns.Connect()
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				var g greeting
				sent.Add(1)
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				err := bus.Request(ctx, nc, "test.greet", greeting{Name: fmt.Sprint(i)}, &g)
				cancel()
				if err != nil || g.Name != fmt.Sprint(i) {
					lost.Add(1)
					t.Errorf("request %d: %+v, %v", i, g, err)
					return
				}
			}
		})
	}
	for range 15 {
		for _, r := range []struct {
			srv *(*bus.Server)
			end *func()
		}{{&a, &closeA}, {&b, &closeB}} {
			if err := stopWithin(t, *r.srv, 10*time.Second); err != nil {
				t.Errorf("stop: %v", err)
			}
			if n := (*r.srv).InFlight(); n != 0 {
				t.Errorf("%d in flight after stop", n)
			}
			(*r.end)()
			*r.srv, *r.end = start()
		}
	}
	close(done)
	wg.Wait()
	if sent.Load() < 500 || lost.Load() > 0 {
		t.Errorf("%d sent, %d lost", sent.Load(), lost.Load())
	}
	for _, srv := range []*bus.Server{a, b} {
		if err := stopWithin(t, srv, 5*time.Second); err != nil {
			t.Error(err)
		}
	}
	closeA()
	closeB()
}
