package toolworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
	"github.com/toolbus/toolbus/services/files"
	"github.com/toolbus/toolbus/services/registry"
	"github.com/toolbus/toolbus/services/state"
	"github.com/toolbus/toolbus/services/toolworker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// system is a whole Toolbus in this process, on a real NATS server.
type system struct {
	t    *testing.T
	nats *natstest.Server
	nc   *nats.Conn
}

func start(t *testing.T) *system {
	t.Helper()
	s := &system{t: t, nats: natstest.Start(t)}
	stateCfg, filesCfg, regCfg, workCfg := state.DefaultConfig(), files.DefaultConfig(), registry.DefaultConfig(), toolworker.DefaultConfig()
	stateCfg.Bus, filesCfg.Bus, regCfg.Bus, workCfg.Bus = s.nats.Config(), s.nats.Config(), s.nats.Config(), s.nats.Config()
	log, reg := telemetry.Discard(), prometheus.NewRegistry()
	add := func(svc lifecycle.Service, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		s.run(svc)
	}
	add(registry.New(regCfg, log, reg))
	add(state.New(stateCfg, log, reg))
	add(files.New(filesCfg, log, reg))
	add(toolworker.New(workCfg, log, reg))
	s.nc = s.nats.Connect()
	return s
}

func (s *system) run(svc lifecycle.Service) {
	s.t.Helper()
	if err := svc.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := svc.Stop(ctx); err != nil {
			s.t.Errorf("stop: %v", err)
		}
	})
}

func (s *system) worker(mod func(*worker.Config), tools ...tool.Tool) *worker.Worker {
	s.t.Helper()
	cfg := worker.DefaultConfig()
	cfg.Bus = s.nats.Config()
	if mod != nil {
		mod(&cfg)
	}
	w, err := worker.New(cfg, tools, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		s.t.Fatal(err)
	}
	s.run(w)
	return w
}

func (s *system) apply(tenant, config string) {
	s.t.Helper()
	err := bus.Request(s.t.Context(), s.nc, subject.Registry(tenant, "apply"), message.RegistryApply{Config: json.RawMessage(config)}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) agent(tenant, name string) *agent.Client {
	s.t.Helper()
	a, err := agent.New(s.nc, tenant, name)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = a.Close() })
	return a
}

type none = struct{}

func fn(name string, f func(context.Context, *tool.Call) (tool.Result, error), opts ...tool.Option) tool.Tool {
	return tool.New(name, "Tests "+name+".", func(ctx context.Context, c *tool.Call, _ none) (tool.Result, error) { return f(ctx, c) }, opts...)
}

func grantAll(tools ...tool.Tool) string {
	m := map[string]any{}
	for _, t := range tools {
		m[t.Definition().Name] = none{}
	}
	b, _ := json.Marshal(map[string]any{"agentId": "bot", "tools": m})
	return string(b)
}

func TestWhateverAToolDoesTheCallerGetsOneAnswerAndTheWorkerLives(t *testing.T) {
	s := start(t)
	release := make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	tools := []tool.Tool{
		fn("ok", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("fine"), nil }),
		fn("fails", func(context.Context, *tool.Call) (tool.Result, error) { return tool.Fail("no such order"), nil }),
		fn("failsSilently", func(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{}, nil }),
		fn("dataOnly", func(context.Context, *tool.Call) (tool.Result, error) {
			return tool.Result{Success: true, Data: json.RawMessage(`{ "d": "DHL->DPD" }`)}, nil
		}),
		fn("errs", func(context.Context, *tool.Call) (tool.Result, error) {
			return tool.Result{}, fmt.Errorf("db: %w", errcode.New(errcode.QuotaExceeded, "full"))
		}),
		fn("errsPlain", func(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{}, errors.New("boom") }),
		fn("panics", func(context.Context, *tool.Call) (tool.Result, error) { panic("ouch") }),
		fn("exits", func(context.Context, *tool.Call) (tool.Result, error) { runtime.Goexit(); return tool.OK(""), nil }),
		fn("badText", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("a\xffb"), nil }),
		fn("badData", func(context.Context, *tool.Call) (tool.Result, error) {
			return tool.Result{Success: true, Data: json.RawMessage("{")}, nil
		}),
		fn("slow", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		}, tool.Timeout(100*time.Millisecond)),
		fn("deaf", func(context.Context, *tool.Call) (tool.Result, error) { <-release; return tool.OK("late"), nil }, tool.Timeout(100*time.Millisecond)),
	}
	s.worker(nil, tools...)
	s.apply("acme", grantAll(tools...))
	a := s.agent("acme", "bot")
	for _, c := range []struct {
		tool    string
		code    errcode.Code
		success bool
		text    string // in content, errorMessage or the error
	}{
		{"ok", "", true, "fine"},
		{"fails", "", false, "no such order"},
		{"failsSilently", "", false, "did not say why"},
		{"dataOnly", "", true, `{"d":"DHL->DPD"}`},
		{"errs", errcode.QuotaExceeded, false, "full"},
		{"errsPlain", errcode.Internal, false, "boom"},
		{"panics", errcode.Internal, false, "panicked"},
		{"exits", errcode.Internal, false, "without an answer"},
		{"badText", "", true, "a\uFFFDb"},
		{"badData", errcode.Internal, false, "not valid JSON"},
		{"slow", errcode.Timeout, false, "100ms"},
		{"deaf", errcode.Timeout, false, "100ms"},
		{"ok", "", true, "fine"}, // after all of them
	} {
		r, err := a.Call(t.Context(), c.tool, nil, agent.Timeout(20*time.Second))
		if errcode.Of(err) != c.code || r.Success != c.success {
			t.Errorf("%s: got %+v, %v", c.tool, r, err)
			continue
		}
		got := r.Content + r.ErrorMessage
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.text) {
			t.Errorf("%s: got %q, want %q in it", c.tool, got, c.text)
		}
	}
	once.Do(func() { close(release) })
}

func TestWhoMayCallWhat(t *testing.T) {
	s := start(t)
	public := fn("public", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("p"), nil })
	hidden := fn("hidden", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("h"), nil }, tool.Internal())
	caller := tool.New("caller", "Calls another tool.", func(ctx context.Context, c *tool.Call, in struct {
		Tool string `json:"tool"`
	}) (tool.Result, error) {
		return c.Call(ctx, in.Tool, none{})
	})
	circle := fn("circle", func(ctx context.Context, c *tool.Call) (tool.Result, error) { return c.Call(ctx, "circle", none{}) }, tool.Internal())
	s.worker(nil, public, hidden, caller, circle)
	s.apply("acme", `{"agents":[{"agentId":"one","tools":{"caller":{},"ghost":{}}},{"agentId":"two","tools":{"public":{},"hidden":{}}}]}`)
	one, two, nobody, foreign := s.agent("acme", "one"), s.agent("acme", "two"), s.agent("acme", "nobody"), s.agent("other", "one")
	arg := func(name string) any { return map[string]string{"tool": name} }
	for _, c := range []struct {
		what string
		a    *agent.Client
		tool string
		args any
		want errcode.Code
	}{
		{"granted", two, "public", nil, ""},
		{"an internal tool the configuration lists", two, "hidden", nil, ""},
		{"not granted", one, "public", nil, errcode.NotAllowed},
		{"internal, not listed", one, "hidden", nil, errcode.NotAllowed},
		{"internal, through a tool", one, "caller", arg("hidden"), ""},
		{"not granted, through a tool", one, "caller", arg("public"), errcode.NotAllowed},
		{"nobody hosts it", one, "ghost", nil, errcode.Unavailable},
		{"nobody hosts it, through a tool", one, "caller", arg("ghost"), errcode.Unavailable},
		{"a bad name, through a tool", one, "caller", arg("a.*"), errcode.InvalidRequest},
		{"tools in a circle", one, "caller", arg("circle"), errcode.InvalidRequest},
		{"unknown agent", nobody, "public", nil, errcode.NotFound},
		{"another tenant's agent", foreign, "caller", arg("hidden"), errcode.NotFound},
		{"bad tool name", one, "a.b", nil, errcode.InvalidRequest},
		{"wrong arguments", one, "caller", map[string]int{"tol": 1}, errcode.InvalidArguments},
	} {
		if _, err := c.a.Call(t.Context(), c.tool, c.args, agent.Timeout(20*time.Second)); errcode.Of(err) != c.want {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
	}
	// A grant counts from the moment apply has answered, and so does its end.
	for range 20 {
		s.apply("acme", `{"agentId":"one","tools":{"public":{}}}`)
		if _, err := one.Call(t.Context(), "public", nil); err != nil {
			t.Fatalf("after the grant: %v", err)
		}
		s.apply("acme", `{"agentId":"one","tools":{}}`)
		deadline := time.Now().Add(5 * time.Second)
		for {
			_, err := one.Call(t.Context(), "public", nil)
			if errors.Is(err, errcode.NotAllowed) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("5 s after the grant's end: %v", err)
			}
		}
	}
}

func TestSettingsAreThisToolsOfThisAgent(t *testing.T) {
	s := start(t)
	show := func(name string) tool.Tool {
		return fn(name, func(_ context.Context, c *tool.Call) (tool.Result, error) {
			if strings.Contains(string(c.Settings), "leak") {
				return tool.Result{}, errors.New("cannot reach " + string(c.Settings))
			}
			return tool.OK(string(c.Settings)), nil
		})
	}
	s.worker(func(c *worker.Config) { c.SecretsDir = t.TempDir() }, show("A"), show("B"))
	t.Setenv("TOOLBUS_SECRET_DSN", "top-s3cret")
	s.apply("acme", `{"agents":[
		{"agentId":"x","tools":{"A":{"v":"ax"},"B":{"v":"bx"}}},
		{"agentId":"y","tools":{"A":{"v":"ay"},"B":{"leak":{"$secret":"dsn"}}}},
		{"agentId":"z","tools":{"A":{"v":{"$secret":"missing"}},"B":{}}}]}`)
	for _, c := range []struct{ agent, tool, want string }{
		{"x", "A", `{"v":"ax"}`}, {"x", "B", `{"v":"bx"}`}, {"y", "A", `{"v":"ay"}`}, {"z", "B", `{}`},
	} {
		if r, err := s.agent("acme", c.agent).Call(t.Context(), c.tool, nil); err != nil || r.Content != c.want {
			t.Errorf("%s %s: got %q, %v", c.agent, c.tool, r.Content, err)
		}
	}
	_, err := s.agent("acme", "y").Call(t.Context(), "B", nil)
	if err == nil || strings.Contains(err.Error(), "top-s3cret") || !strings.Contains(err.Error(), "redacted") {
		t.Errorf("a secret in a tool's error: %v", err)
	}
	if _, err := s.agent("acme", "z").Call(t.Context(), "A", nil); !errors.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a missing secret: %v", err)
	}
}

func TestCapabilities(t *testing.T) {
	s := start(t)
	tl := fn("all", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		if err := c.Store().Set(ctx, "offset", "7"); err != nil {
			return tool.Result{}, err
		}
		off, _, err := c.Store().Get(ctx, "offset")
		if err != nil {
			return tool.Result{}, err
		}
		if _, err := c.Files().Append(ctx, "logs/x.log", []byte("line\n")); err != nil {
			return tool.Result{}, err
		}
		content, _, _, err := c.Files().Read(ctx, "logs/x.log")
		if err != nil {
			return tool.Result{}, err
		}
		n, err := c.State("ns").Append(ctx, "codes", "c")
		if err != nil {
			return tool.Result{}, err
		}
		c.Progress(map[string]int{"done": n})
		w, err := c.Call(ctx, "writeFile", map[string]string{"path": "a.txt", "content": "ä"})
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Data(map[string]any{"offset": off, "content": string(content), "n": n, "write": w.Data,
			"who": strings.Join([]string{c.Tenant, c.Agent, c.Chat}, "/"), "now": time.Since(c.Now()) < time.Minute}), nil
	})
	s.worker(nil, tl)
	s.apply("acme", grantAll(tl))
	a := s.agent("acme", "bot")
	var progress atomic.Int64
	r, err := a.Call(t.Context(), "all", nil, agent.Chat("chat 1"), agent.OnProgress(func(json.RawMessage) { progress.Add(1) }))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"content":"line\n","n":1,"now":true,"offset":"7","who":"acme/bot/chat 1","write":{"success":true,"path":"a.txt","mode":"overwrite","bytes_written":2,"size":2}}`
	if r.Content != want {
		t.Errorf("got  %s\nwant %s", r.Content, want)
	}
	if progress.Load() != 1 {
		t.Errorf("%d progress events", progress.Load())
	}
	if _, err := a.Call(t.Context(), "all", nil); !errors.Is(err, errcode.InvalidRequest) || !strings.Contains(err.Error(), "chatId") {
		t.Errorf("ToolState without a chat: %v", err)
	}
}

func TestLargeBodiesArrive(t *testing.T) {
	s := start(t)
	type in struct {
		Text string `json:"text"`
	}
	echo := tool.New("echo", "Says what it got.", func(_ context.Context, _ *tool.Call, in in) (tool.Result, error) { return tool.OK(in.Text), nil })
	relay := tool.New("relay", "Asks echo.", func(ctx context.Context, c *tool.Call, in in) (tool.Result, error) { return c.Call(ctx, "echo", in) })
	data := tool.New("data", "Says it as data.", func(_ context.Context, _ *tool.Call, in in) (tool.Result, error) { return tool.Data(in), nil })
	huge := fn("huge", func(context.Context, *tool.Call) (tool.Result, error) {
		return tool.OK(strings.Repeat("x", 17<<20)), nil
	})
	s.worker(nil, echo, relay, data, huge)
	s.apply("acme", grantAll(echo, relay, data, huge))
	a := s.agent("acme", "bot")
	for _, size := range []int{0, 1 << 10, 1<<20 - 9<<10, 1 << 20, 2 << 20} {
		text := strings.Repeat("ä", size/2)
		for _, name := range []string{"echo", "relay"} {
			r, err := a.Call(t.Context(), name, in{text})
			if err != nil || r.Content != text {
				t.Errorf("%s with %d bytes: %d bytes back, %v", name, size, len(r.Content), err)
			}
		}
	}
	// Data is not sent twice, once as content: 10 MB of it fit the 16 MiB limit.
	text := strings.Repeat("x", 10<<20)
	if r, err := a.Call(t.Context(), "data", in{text}); err != nil || r.Content != string(r.Data) || len(r.Data) != len(text)+len(`{"text":""}`) {
		t.Errorf("data: %d bytes of data, %d of content, %v", len(r.Data), len(r.Content), err)
	}
	if _, err := a.Call(t.Context(), "echo", in{strings.Repeat("x", 17<<20)}); !errors.Is(err, errcode.TooLarge) {
		t.Errorf("arguments over the limit: %v", err)
	}
	if _, err := a.Call(t.Context(), "huge", nil); !errors.Is(err, errcode.TooLarge) {
		t.Errorf("a result over the limit: %v", err)
	}
}

func TestCancelReachesTheToolFromWhereverTheCallerIs(t *testing.T) {
	s := start(t)
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	wait := fn("wait", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return tool.Result{}, ctx.Err()
	})
	s.worker(nil, wait)
	s.worker(nil, wait) // whichever runs it must hear the cancel
	s.apply("acme", grantAll(wait))
	a := s.agent("acme", "bot")
	t.Run("the caller's ctx", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-began; cancel() }()
		if _, err := a.Call(ctx, "wait", nil); !errors.Is(err, errcode.Cancelled) {
			t.Errorf("got %v", err)
		}
		if err := <-ended; !errors.Is(err, errcode.Cancelled) {
			t.Errorf("the tool's ctx: %v", err)
		}
	})
	t.Run("another connection", func(t *testing.T) {
		other := s.nats.Connect()
		go func() {
			<-began
			_ = other.Publish(subject.AgentCancel("other", "bot", "c1"), nil) // not this one's
			_ = other.Publish(subject.AgentCancel("acme", "bot", "c1"), nil)
		}()
		if _, err := a.Call(t.Context(), "wait", nil, agent.CallID("c1")); !errors.Is(err, errcode.Cancelled) {
			t.Errorf("got %v", err)
		}
		<-ended
	})
	t.Run("the caller's deadline", func(t *testing.T) {
		go func() { <-began }()
		if _, err := a.Call(t.Context(), "wait", nil, agent.Timeout(150*time.Millisecond)); !errors.Is(err, errcode.Timeout) {
			t.Errorf("got %v", err)
		}
		<-ended
	})
}

func TestAWorkerThatVanishesIsReportedWithinSeconds(t *testing.T) {
	s := start(t)
	began := make(chan struct{}, 1)
	wait := fn("wait", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		began <- struct{}{}
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	proxy := newProxy(t, s.nats.URL())
	cfg := worker.DefaultConfig()
	cfg.Bus = bus.Config{Server: proxy.url}
	w, err := worker.New(cfg, []tool.Tool{wait}, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { // it cannot say goodbye
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		_ = w.Stop(ctx)
	}()
	s.apply("acme", grantAll(wait))
	go func() { <-began; proxy.cut() }()
	start := time.Now()
	_, err = s.agent("acme", "bot").Call(t.Context(), "wait", nil)
	if !errors.Is(err, errcode.WorkerLost) || time.Since(start) > 15*time.Second {
		t.Errorf("got %v after %s", err, time.Since(start))
	}
}

// A tool that a stop cuts off may have done its work already: not a call that
// found nobody, which is safe to repeat.
func TestAStopThatCutsAToolOffReportsALostWorker(t *testing.T) {
	s := start(t)
	began := make(chan struct{}, 1)
	for name, wait := range map[string]tool.Tool{
		"heeds": fn("heeds", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
			began <- struct{}{}
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		}),
		"ignores": fn("ignores", func(context.Context, *tool.Call) (tool.Result, error) {
			began <- struct{}{}
			<-t.Context().Done()
			return tool.OK("late"), nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			w := s.worker(nil, wait)
			s.apply("acme", grantAll(wait))
			result := make(chan error, 1)
			go func() { _, err := s.agent("acme", "bot").Call(t.Context(), name, nil); result <- err }()
			<-began
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := w.Stop(ctx); err != nil {
				t.Errorf("stop: %v", err)
			}
			if err := <-result; !errors.Is(err, errcode.WorkerLost) || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCallsBeyondTheSlotsWaitOrSayOverloaded(t *testing.T) {
	s := start(t)
	began, release := make(chan struct{}, 8), make(chan struct{})
	one := fn("one", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		began <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return tool.OK("done"), nil
	}, tool.MaxConcurrent(1))
	s.worker(nil, one)
	s.apply("acme", grantAll(one))
	a := s.agent("acme", "bot")
	first := make(chan error, 1)
	go func() { _, err := a.Call(t.Context(), "one", nil); first <- err }()
	<-began
	_, err := a.Call(t.Context(), "one", nil, agent.Timeout(150*time.Millisecond))
	if c := errcode.Of(err); c != errcode.Overloaded && c != errcode.Timeout {
		t.Errorf("got %v", err)
	}
	second := make(chan error, 1)
	go func() { _, err := a.Call(t.Context(), "one", nil); second <- err }()
	close(release)
	if err := errors.Join(<-first, <-second); err != nil {
		t.Error(err)
	}
}

func TestARollingStopLosesNoCall(t *testing.T) {
	s := start(t)
	var ran atomic.Int64
	work := fn("work", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		ran.Add(1)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
		return tool.OK("done"), nil
	})
	s.apply("acme", grantAll(work))
	a := s.agent("acme", "bot")
	old := s.worker(nil, work)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var calls atomic.Int64
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				calls.Add(1)
				if _, err := a.Call(t.Context(), "work", nil); err != nil {
					t.Errorf("call: %v", err)
					return
				}
			}
		})
	}
	for range 4 {
		next := s.worker(nil, work)
		if err := old.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		old = next
	}
	close(stop)
	wg.Wait()
	if ran.Load() != calls.Load() {
		t.Errorf("%d calls ran %d times", calls.Load(), ran.Load())
	}
}

func TestEverythingResumesAfterARestartOfNATS(t *testing.T) {
	s := start(t)
	ok := fn("ok", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("fine"), nil })
	s.worker(nil, ok)
	s.apply("acme", grantAll(ok))
	a := s.agent("acme", "bot")
	if _, err := a.Call(t.Context(), "ok", nil); err != nil {
		t.Fatal(err)
	}
	s.nats.Down()
	s.nats.Up()
	within(t, 15*time.Second, func() error { _, err := a.Call(t.Context(), "ok", nil, agent.Timeout(time.Second)); return err })
	within(t, 15*time.Second, func() error {
		tools, err := a.Tools(t.Context())
		if err == nil && (len(tools.Tools) != 1 || len(tools.Unavailable) != 0) {
			err = fmt.Errorf("tools %+v", tools)
		}
		return err
	})
	// Configuration changes are heard again.
	s.apply("acme", `{"agentId":"bot","tools":{}}`)
	within(t, 6*time.Second, func() error {
		if _, err := a.Call(t.Context(), "ok", nil); !errors.Is(err, errcode.NotAllowed) {
			return errors.New("still granted")
		}
		return nil
	})
}

// within tries until f succeeds.
func within(t *testing.T, d time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(d)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", d, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}
