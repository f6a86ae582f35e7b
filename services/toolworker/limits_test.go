package toolworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
)

// An agent's configuration shortens a tool's time and limits its calls at once; a
// tenant has a limit of its own. Whoever has a slot is not asked who waits for one.
func TestLimitsOfAgentsAndTenants(t *testing.T) {
	s := start(t)
	begun, end := make(chan string, 100), make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(end) }) }
	defer release()
	slow := fn("slow", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		begun <- c.Tenant + "/" + c.Agent
		<-end
		return tool.OK("done"), nil
	})
	s.worker(func(c *worker.Config) { c.MaxPerTenant = 2 }, slow)
	s.apply("acme", `{"agents":[{"agentId":"bot","tools":{"slow":{"maxConcurrent":1}}},{"agentId":"hasty","tools":{"slow":{"timeout":"50ms"}}},{"agentId":"free","tools":{"slow":{}}}]}`)
	s.apply("other", grantAll(slow))
	results := make(chan error, 100)
	call := func(tenant, name string, opts ...agent.Option) {
		a := s.agent(tenant, name)
		go func() {
			_, err := a.Call(t.Context(), "slow", nil, opts...)
			results <- err
		}()
	}
	starts := func(want string) {
		t.Helper()
		select {
		case got := <-begun:
			if got != want {
				t.Fatalf("%s began, want %s", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s did not begin", want)
		}
	}
	ends := func(code errcode.Code) {
		t.Helper()
		select {
		case err := <-results:
			if errcode.Of(err) != code && !(err == nil && code == "") {
				t.Fatalf("got %v, want %s", err, code)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no answer, want %s", code)
		}
	}
	call("acme", "bot")
	starts("acme/bot")
	call("acme", "bot", agent.Timeout(100*time.Millisecond)) // the agent's second
	ends(errcode.Overloaded)
	call("acme", "hasty")
	starts("acme/hasty")
	ends(errcode.Timeout) // its tool runs on, and holds its slot
	call("acme", "free", agent.Timeout(100*time.Millisecond))
	ends(errcode.Overloaded) // the tenant's third
	call("other", "bot")
	starts("other/bot")
	release()
	ends("")
	ends("")
	call("acme", "free")
	starts("acme/free")
	ends("")
}

// Pinned arguments are neither seen nor given by whoever calls.
func TestPinnedArguments(t *testing.T) {
	s := start(t)
	type args struct {
		Customer string `json:"customer"`
		Note     string `json:"note" default:"none"`
	}
	echo := tool.New("echo", "Answers with its arguments.", func(_ context.Context, c *tool.Call, _ args) (tool.Result, error) {
		return tool.Result{Success: true, Data: c.Arguments}, nil
	})
	s.worker(nil, echo)
	s.apply("acme", `{"agentId":"bot","tools":{"echo":{"pinned":{"customer":"42"}}}}`)
	a := s.agent("acme", "bot")
	r, err := a.Call(t.Context(), "echo", map[string]string{"note": "x"})
	if err != nil || r.Content != `{"customer":"42","note":"x"}` {
		t.Fatalf("%s, %v", r.Content, err)
	}
	if r, err = a.Call(t.Context(), "echo", nil); err != nil || r.Content != `{"customer":"42","note":"none"}` {
		t.Errorf("%s, %v", r.Content, err)
	}
	for _, given := range []string{`{"customer":"43"}`, `{"customer":"42"}`, `{"customer":null,"note":"x"}`} {
		_, err := a.Call(t.Context(), "echo", json.RawMessage(given))
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.InvalidArguments || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != "customer" {
			t.Errorf("%s: %v", given, err)
		}
	}
	tools, err := a.Tools(t.Context())
	if err != nil || len(tools.Tools) != 1 {
		t.Fatalf("%+v, %v", tools, err)
	}
	var schema struct {
		Properties map[string]any `json:"properties"`
		Required   []string       `json:"required"`
	}
	if err := json.Unmarshal(tools.Tools[0].InputSchema, &schema); err != nil || schema.Properties["customer"] != nil || schema.Properties["note"] == nil || len(schema.Required) > 0 {
		t.Errorf("the agent sees %s, %v", tools.Tools[0].InputSchema, err)
	}
}

// Progress is published a few times a second at most, in order, and the last one before
// the answer.
func TestProgressIsThrottled(t *testing.T) {
	s := start(t)
	const said = 500
	work := fn("work", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		for i := range said {
			c.Progress(map[string]int{"step": i})
			if i == said/2 {
				select {
				case <-time.After(300 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		}
		return tool.OK("done"), nil
	})
	s.worker(nil, work)
	s.apply("acme", grantAll(work))
	sub, err := s.nc.SubscribeSync(subject.AgentProgress("acme", "bot", "*"))
	if err == nil {
		err = s.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r, err := s.agent("acme", "bot").Call(t.Context(), "work", nil)
	took := time.Since(begin)
	var heard []int
	for { // what came before the answer is there
		m, err := sub.NextMsg(0)
		if err != nil {
			break
		}
		var v struct{ Progress struct{ Step *int } }
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Error(err)
		}
		if v.Progress.Step != nil {
			heard = append(heard, *v.Progress.Step)
		}
	}
	if err != nil || r.Content != "done" {
		t.Fatalf("%+v, %v", r, err)
	}
	if most := int(took/(100*time.Millisecond)) + 2; len(heard) > most || len(heard) < 3 {
		t.Errorf("heard %d times in %s: %v", len(heard), took, heard)
	}
	if !slices.IsSorted(heard) || heard[0] != 0 || !slices.Contains(heard, said/2) || heard[len(heard)-1] != said-1 {
		t.Errorf("heard %v", heard)
	}
}

// A tool learns within seconds that the worker of another tool that it calls is gone, and one
// that takes long is not taken for lost.
func TestAToolLearnsOfALostWorker(t *testing.T) {
	s := start(t)
	began := make(chan struct{}, 4)
	inner := fn("inner", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		began <- struct{}{}
		select {
		case <-time.After(7 * time.Second):
			return tool.OK("late"), nil
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		}
	})
	outer := fn("outer", func(ctx context.Context, c *tool.Call) (tool.Result, error) { return c.Call(ctx, "inner", none{}) })
	s.worker(nil, outer)
	s.apply("acme", grantAll(inner, outer))
	proxy := newProxy(t, s.nats.URL())
	lost, err := worker.New(func() worker.Config {
		c := worker.DefaultConfig()
		c.Bus = bus.Config{Server: proxy.url}
		return c
	}(), []tool.Tool{inner}, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		_ = lost.Stop(ctx) // it cannot say goodbye
	}()
	a := s.agent("acme", "bot")
	if r, err := a.Call(t.Context(), "outer", nil); err != nil || r.Content != "late" {
		t.Fatalf("%+v, %v", r, err)
	}
	<-began
	answer := make(chan error, 1)
	go func() { _, err := a.Call(t.Context(), "outer", nil); answer <- err }()
	<-began
	proxy.cut()
	cut := time.Now()
	if err := <-answer; !errors.Is(err, errcode.WorkerLost) || time.Since(cut) > 10*time.Second {
		t.Errorf("got %v after %s", err, time.Since(cut))
	}
}
