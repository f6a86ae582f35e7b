package toolworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/results"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
)

func submit(t *testing.T, a *agent.Client, toolName string, args any, opts ...agent.Option) string {
	t.Helper()
	id, err := a.Submit(t.Context(), toolName, args, opts...)
	if err != nil {
		t.Fatalf("submit %s: %v", toolName, err)
	}
	return id
}

func wait(t *testing.T, a *agent.Client, id string) (message.CallReply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return a.Wait(ctx, id)
}

func TestASubmittedCallEndsLikeACall(t *testing.T) {
	s := start(t)
	type in struct {
		Text string `json:"text"`
	}
	echo := tool.New("echo", "Says what it got.", func(_ context.Context, c *tool.Call, in in) (tool.Result, error) {
		if in.Text == "data" {
			return tool.Data(map[string]string{"x": strings.Repeat("y", 3<<19)}), nil
		}
		return tool.OK("%s", c.Tenant+"/"+c.Agent+"/"+c.Chat+"/"+in.Text), nil
	})
	fails := fn("fails", func(context.Context, *tool.Call) (tool.Result, error) { return tool.Fail("no such order"), nil })
	errs := fn("errs", func(context.Context, *tool.Call) (tool.Result, error) {
		return tool.Result{}, errcode.New(errcode.Unavailable, "no database")
	})
	panics := fn("panics", func(context.Context, *tool.Call) (tool.Result, error) { panic("ouch") })
	slow := fn("slow", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	huge := fn("huge", func(context.Context, *tool.Call) (tool.Result, error) {
		return tool.OK(strings.Repeat("x", 17<<20)), nil
	})
	denied := fn("denied", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK(""), nil })
	hidden := fn("hidden", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK(""), nil }, tool.Internal())
	s.worker(nil, echo, fails, errs, panics, slow, huge, denied, hidden)
	s.apply("acme", grantAll(echo, fails, errs, panics, slow, huge))
	a := s.agent("acme", "bot")
	large := strings.Repeat("ä", 1<<19)
	for name, c := range map[string]struct {
		tool string
		args any
		opts []agent.Option
		code errcode.Code
		text string
	}{
		"ok":            {tool: "echo", args: in{"hi"}, opts: []agent.Option{agent.Chat("c 1"), agent.CallID("mine")}, text: "acme/bot/c 1/hi"},
		"large":         {tool: "echo", args: in{large}, text: large},
		"large data":    {tool: "echo", args: in{"data"}, text: "yyyyy"},
		"too large":     {tool: "huge", code: errcode.TooLarge},
		"fails":         {tool: "fails", text: "no such order"},
		"errs":          {tool: "errs", code: errcode.Unavailable, text: "no database"},
		"panics":        {tool: "panics", code: errcode.Internal, text: "panicked"},
		"times out":     {tool: "slow", opts: []agent.Option{agent.Timeout(50 * time.Millisecond)}, code: errcode.Timeout, text: "50ms"},
		"bad arguments": {tool: "echo", args: map[string]int{"txt": 1}, code: errcode.InvalidArguments, text: "txt"},
		"not granted":   {tool: "denied", code: errcode.NotAllowed},
		"internal":      {tool: "hidden", code: errcode.NotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			id := submit(t, a, c.tool, c.args, c.opts...)
			r, err := wait(t, a, id)
			got := r.Content + r.ErrorMessage
			if err != nil {
				got = err.Error()
			}
			if errcode.Of(err) != c.code || !strings.Contains(got, c.text) {
				t.Fatalf("got %.300v, %v", r, err)
			}
			if err == nil && r.CallID != id {
				t.Errorf("call id %s, want %s", r.CallID, id)
			}
			again, err := a.Result(t.Context(), id, 0)
			if err != nil || again.State != message.ResultDone || (again.Reply == nil) == (c.code == "") {
				t.Errorf("asked again: %.300v, %v", again, err)
			}
		})
	}
	for name, f := range map[string]func() error{
		"tool name": func() error { _, err := a.Submit(t.Context(), "a.b", nil); return err },
		"call id":   func() error { _, err := a.Submit(t.Context(), "echo", nil, agent.CallID("a b")); return err },
		"chat":      func() error { _, err := a.Submit(t.Context(), "echo", nil, agent.Chat("\x00")); return err },
		"result of": func() error { _, err := a.Result(t.Context(), "a.b", 0); return err },
		"cancel of": func() error { return a.Cancel(t.Context(), "*") },
	} {
		if err := f(); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// Another agent's result is not there.
	if _, err := s.agent("other", "bot").Result(t.Context(), "mine", 0); !errors.Is(err, errcode.NotFound) {
		t.Errorf("another tenant's: %v", err)
	}
}

func TestASubmittedCallWaitsForAWorker(t *testing.T) {
	s := start(t)
	ok := fn("ok", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("fine"), nil })
	s.apply("acme", grantAll(ok))
	a := s.agent("acme", "bot")
	id := submit(t, a, "ok", nil)
	if r, err := a.Result(t.Context(), id, 50*time.Millisecond); err != nil || r.State != message.ResultPending {
		t.Errorf("got %+v, %v", r, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := a.Wait(short, id); !errors.Is(err, errcode.Timeout) {
		t.Errorf("got %v", err)
	}
	s.worker(nil, ok)
	if r, err := wait(t, a, id); err != nil || r.Content != "fine" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestWhatWasSubmittedTwiceRunsOnce(t *testing.T) {
	s := start(t)
	var ran atomic.Int64
	count := fn("count", func(context.Context, *tool.Call) (tool.Result, error) {
		return tool.OK("%d", ran.Add(1)), nil
	})
	s.worker(nil, count)
	s.apply("acme", grantAll(count))
	a := s.agent("acme", "bot")
	for range 3 {
		id := submit(t, a, "count", nil, agent.CallID("same"))
		if r, err := wait(t, a, id); err != nil || r.Content != "1" {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	s.emptied("count")
	if ran.Load() != 1 {
		t.Errorf("ran %d times", ran.Load())
	}
}

// The second is submitted while the first runs, or has not begun: a client whose
// submit was not acknowledged submits again.
func TestWhatIsSubmittedTwiceAtOnceRunsOnce(t *testing.T) {
	s := start(t)
	const calls, times = 8, 5
	var ran sync.Map
	release := make(chan struct{})
	work := fn("work", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		n, _ := ran.LoadOrStore(c.Tenant+"/"+c.ID, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return tool.OK("done"), nil
	})
	s.worker(nil, work)
	s.worker(nil, work)
	s.apply("acme", grantAll(work))
	s.apply("other", grantAll(work))
	agents := []*agent.Client{s.agent("acme", "bot"), s.agent("other", "bot")}
	var wg sync.WaitGroup
	for i := range calls * times * len(agents) {
		wg.Go(func() { submit(t, agents[i%2], "work", nil, agent.CallID(fmt.Sprint("c-", i/2%calls))) })
	}
	wg.Wait()
	pending := func() error { // of each call one message is left, the one that runs
		js, err := jetstream.New(s.nc)
		if err != nil {
			return err
		}
		st, err := js.Stream(t.Context(), subject.StreamSubmits)
		if err == nil && st.CachedInfo().State.Msgs != calls*uint64(len(agents)) {
			err = fmt.Errorf("%d messages wait", st.CachedInfo().State.Msgs)
		}
		return err
	}
	within(t, 15*time.Second, pending)
	close(release)
	for _, a := range agents {
		for i := range calls {
			if r, err := wait(t, a, fmt.Sprint("c-", i)); err != nil || r.Content != "done" {
				t.Errorf("got %+v, %v", r, err)
			}
		}
	}
	s.emptied("work")
	ran.Range(func(id, n any) bool {
		if n.(*atomic.Int64).Load() != 1 {
			t.Errorf("%s ran %d times", id, n.(*atomic.Int64).Load())
		}
		return true
	})
}

// emptied waits until no submitted call of a tool is left.
func (s *system) emptied(toolName string) {
	s.t.Helper()
	js, err := jetstream.New(s.nc)
	if err != nil {
		s.t.Fatal(err)
	}
	within(s.t, 15*time.Second, func() error {
		st, err := js.Stream(s.t.Context(), subject.StreamSubmits)
		if err != nil {
			return err
		}
		info, err := st.Info(s.t.Context(), jetstream.WithSubjectFilter(subject.AgentSubmit("*", "*", toolName)))
		if err == nil && len(info.State.Subjects) > 0 {
			err = fmt.Errorf("left: %v", info.State.Subjects)
		}
		return err
	})
}

func TestASubmitNobodyCanAnswerToIsDropped(t *testing.T) {
	s := start(t)
	var ran atomic.Int64
	count := fn("count", func(context.Context, *tool.Call) (tool.Result, error) { ran.Add(1); return tool.OK("x"), nil })
	s.worker(nil, count)
	s.apply("acme", grantAll(count))
	for _, body := range []string{``, `{}`, `[]`, `nonsense`, `{"callId":5}`, `{"callId":"a.b"}`, `{"callId":""}`} {
		m, err := bus.NewMsg(subject.AgentSubmit("acme", "bot", "count"), []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bus.RequestMsg(t.Context(), s.nc, m); err != nil {
			t.Fatal(err)
		}
	}
	s.emptied("count")
	// One that says who it is gets its fault recorded.
	a := s.agent("acme", "bot")
	for id, body := range map[string]string{
		"neg": `{"callId":"neg","timeoutMs":-1}`, "type": `{"timeoutMs":"x","callId":"type"}`, "idem": `{"callId":"idem","idempotencyKey":"\u0007"}`,
	} {
		m, err := bus.NewMsg(subject.AgentSubmit("acme", "bot", "count"), []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bus.RequestMsg(t.Context(), s.nc, m); err != nil {
			t.Fatal(err)
		}
		if _, err := wait(t, a, id); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: got %v", id, err)
		}
	}
	// So does one that is unreadable, when its header says who it is.
	for id, body := range map[string]string{"h-1": `nonsense`, "h-2": `{"callId":"h-2"} {}`, "h-3": `{}`, "h-4": `{"callId":"a.b"}`, "h-5": "{\"callId\":\"\xff\"}"} {
		m, err := bus.NewMsg(subject.AgentSubmit("acme", "bot", "count"), []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		m.Header.Set(message.HeaderCallID, id)
		if _, err := bus.RequestMsg(t.Context(), s.nc, m); err != nil {
			t.Fatal(err)
		}
		if _, err := wait(t, a, id); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: got %v", id, err)
		}
	}
	if ran.Load() != 0 {
		t.Errorf("%d ran", ran.Load())
	}
}

// What a submitted call says when it fails may be longer than a message.
func TestASubmittedCallThatFailsAtLengthRunsOnce(t *testing.T) {
	s := start(t)
	var ran atomic.Int64
	long := fn("long", func(context.Context, *tool.Call) (tool.Result, error) {
		ran.Add(1)
		e := errcode.New(errcode.QuotaExceeded, "%s", "the disk is full: "+strings.Repeat("ä", 1<<20))
		e.Details = &errcode.Details{Fields: []errcode.FieldFault{{Field: "x", Message: strings.Repeat("y", 1<<20)}}}
		return tool.Result{}, e
	})
	s.worker(nil, long)
	s.apply("acme", grantAll(long))
	a := s.agent("acme", "bot")
	_, err := wait(t, a, submit(t, a, "long", nil))
	if !errors.Is(err, errcode.QuotaExceeded) || !strings.Contains(err.Error(), "the disk is full") || ran.Load() != 1 {
		t.Errorf("got %.300v after %d runs", err, ran.Load())
	}
	s.emptied("long")
}

func TestCancelEndsASubmittedCall(t *testing.T) {
	s := start(t)
	began := make(chan struct{}, 1)
	waits := fn("waits", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		c.Progress("begun")
		began <- struct{}{}
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	s.worker(nil, waits)
	s.worker(nil, waits)
	s.apply("acme", grantAll(waits))
	a := s.agent("acme", "bot")
	id := submit(t, a, "waits", nil)
	<-began
	if r, err := a.Result(t.Context(), id, 0); err != nil || r.State != message.ResultPending {
		t.Errorf("while it runs: %+v, %v", r, err)
	}
	if err := a.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(t, a, id); !errors.Is(err, errcode.Cancelled) {
		t.Errorf("got %v", err)
	}
	s.emptied("waits")
}

func TestSubmitsShareTheSlotsAndStarveNobody(t *testing.T) {
	s := start(t)
	var now, most, ran atomic.Int64
	one := fn("one", func(context.Context, *tool.Call) (tool.Result, error) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		ran.Add(1)
		<-time.After(2 * time.Millisecond)
		now.Add(-1)
		return tool.OK("x"), nil
	}, tool.MaxConcurrent(1))
	s.worker(nil, one)
	s.apply("acme", grantAll(one))
	a := s.agent("acme", "bot")
	// The pull that waits for a message holds no slot.
	if _, err := a.Call(t.Context(), "one", nil, agent.Timeout(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			id, err := a.Submit(t.Context(), "one", nil)
			if err == nil {
				_, err = wait(t, a, id)
			}
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := a.Call(t.Context(), "one", nil, agent.Timeout(15*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 || ran.Load() != 41 {
		t.Errorf("%d at once, %d runs", most.Load(), ran.Load())
	}
}

func TestAStoppingWorkerFinishesWhatRunsAndLeavesTheRest(t *testing.T) {
	s := start(t)
	began, release := make(chan string, 2), make(chan struct{})
	work := fn("work", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		began <- c.InstanceID
		select {
		case <-release:
			return tool.OK("%s", c.InstanceID), nil
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		}
	}, tool.MaxConcurrent(1))
	s.apply("acme", grantAll(work))
	a := s.agent("acme", "bot")
	old := s.worker(nil, work)
	first := submit(t, a, "work", nil)
	<-began
	second := submit(t, a, "work", nil)
	stopped := make(chan error, 1)
	go func() { stopped <- old.Stop(t.Context()) }()
	next := s.worker(nil, work)
	if id := <-began; id != next.ID() {
		t.Errorf("the second call ran in the worker that stops")
	}
	close(release)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	for id, want := range map[string]string{first: old.ID(), second: next.ID()} {
		if r, err := wait(t, a, id); err != nil || r.Content != want {
			t.Errorf("got %+v, %v, want %s", r, err, want)
		}
	}
	start := time.Now()
	if err := next.Stop(t.Context()); err != nil || time.Since(start) > 3*time.Second {
		t.Errorf("an idle worker stopped in %s, %v", time.Since(start), err)
	}
}

// A call that its worker's stop cuts off runs elsewhere if its tool is idempotent; of any
// other it is not known what it has done.
func TestACallCutOffByAStop(t *testing.T) {
	s := start(t)
	for name, again := range map[string]bool{"again": true, "once": false} {
		began := make(chan struct{}, 2)
		var runs atomic.Int64
		var opts []tool.Option
		if again {
			opts = append(opts, tool.Idempotent())
		}
		work := fn(name, func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
			began <- struct{}{}
			if runs.Add(1) > 1 {
				return tool.OK("done"), nil
			}
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		}, opts...)
		s.apply("acme", grantAll(work))
		a := s.agent("acme", "bot")
		w := s.worker(nil, work)
		id := submit(t, a, name, nil)
		<-began
		hasty, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := w.Stop(hasty); err != nil {
			t.Logf("stop: %v", err)
		}
		s.worker(nil, work)
		r, err := wait(t, a, id)
		if again && (err != nil || r.Content != "done" || runs.Load() != 2) {
			t.Errorf("idempotent: %+v, %v after %d runs", r, err, runs.Load())
		}
		if !again && (!errors.Is(err, errcode.WorkerLost) || runs.Load() != 1) {
			t.Errorf("not idempotent: %+v, %v after %d runs", r, err, runs.Load())
		}
	}
}

// A call whose runs all fail, or whose workers vanish, is given up: after several runs of
// an idempotent tool, and after one of any other.
func TestACallThatKillsItsWorkersIsGivenUp(t *testing.T) {
	s := start(t)
	var ran atomic.Int64
	count := func(context.Context, *tool.Call) (tool.Result, error) { ran.Add(1); return tool.OK("x"), nil }
	again, once := fn("again", count, tool.Idempotent()), fn("once", count)
	s.apply("acme", grantAll(again, once))
	a := s.agent("acme", "bot")
	other := results.NewRecorder(s.nc, "acme", "bot")
	begin := func(id string, sequence uint64, toolName, run string, idempotent bool) message.ResultClaim {
		t.Helper()
		mine := message.ResultClaim{CallID: id, RunID: run, Submit: sequence, Tool: toolName, Idempotent: idempotent}
		c, err := other.Claim(t.Context(), mine)
		if err != nil || c.State != message.ClaimGranted {
			t.Fatalf("%+v, %v", c, err)
		}
		mine.Fence = c.Fence
		return mine
	}
	failing := submit(t, a, "again", nil)
	for i := range message.MaxSubmitTries {
		mine := begin(failing, 1, "again", fmt.Sprint("run-", i), true)
		mine.Release, mine.Error = true, json.RawMessage(`{"code":"timeout","message":"too slow","retryable":true}`)
		if _, err := other.Claim(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
	}
	vanishing := submit(t, a, "once", nil)
	begin(vanishing, 2, "once", "gone", false)
	s.worker(nil, again, once)
	if _, err := wait(t, a, failing); !errors.Is(err, errcode.Timeout) || !strings.Contains(err.Error(), "too slow") {
		t.Errorf("runs that fail: %v", err)
	}
	if _, err := wait(t, a, vanishing); !errors.Is(err, errcode.WorkerLost) {
		t.Errorf("a worker that is gone: %v", err)
	}
	if ran.Load() != 0 {
		t.Errorf("%d ran", ran.Load())
	}
	s.emptied("again")
	s.emptied("once")
}

func TestSubmitsGoOnAfterARestartOfNATS(t *testing.T) {
	s := start(t)
	began, release := make(chan struct{}, 8), make(chan struct{})
	var runs atomic.Int64
	work := fn("work", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		runs.Add(1)
		began <- struct{}{}
		select {
		case <-release:
			return tool.OK("%s", string(c.Arguments)), nil
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		}
	})
	s.worker(nil, work)
	s.apply("acme", grantAll(work))
	a := s.agent("acme", "bot")
	id := submit(t, a, "work", nil)
	<-began
	s.nats.Down()
	close(release)
	s.nats.Up()
	var r message.CallReply
	within(t, 20*time.Second, func() (err error) { r, err = wait(t, a, id); return err })
	if r.Content != "{}" || runs.Load() != 1 {
		t.Errorf("got %+v after %d runs", r, runs.Load())
	}
	start := time.Now()
	if _, err := wait(t, a, submit(t, a, "work", nil)); err != nil || time.Since(start) > 5*time.Second {
		t.Errorf("after the restart: %v in %s", err, time.Since(start))
	}
}

func TestSubmitWithoutTheStateServiceIsUnavailable(t *testing.T) {
	s := start(t)
	s.worker(nil, fn("ok", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("x"), nil }))
	js, err := jetstream.New(s.nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), subject.StreamSubmits); err != nil {
		t.Fatal(err)
	}
	a := s.agent("acme", "bot")
	id, err := a.Submit(t.Context(), "ok", nil)
	if !errors.Is(err, errcode.Unavailable) || id == "" {
		t.Errorf("got %q, %v", id, err)
	}
	if _, err := uuid.Parse(id); err != nil {
		t.Errorf("the id to submit again with: %v", err)
	}
}

// A worker that loses its network cannot give its calls back.
func TestTheCallOfALostWorkerRunsElsewhereWithinSeconds(t *testing.T) {
	s := start(t)
	began := make(chan string, 8)
	work := fn("work", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		began <- c.InstanceID
		if len(began) > 1 {
			return tool.OK("%s", c.InstanceID), nil
		}
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}, tool.Idempotent())
	s.apply("acme", grantAll(work))
	a := s.agent("acme", "bot")
	proxy := newProxy(t, s.nats.URL())
	cfg := worker.DefaultConfig()
	cfg.Bus = bus.Config{Server: proxy.url}
	lost, err := worker.New(cfg, []tool.Tool{work}, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { // it cannot say goodbye
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		_ = lost.Stop(ctx)
	}()
	id := submit(t, a, "work", nil)
	within(t, 5*time.Second, func() error {
		if len(began) == 0 {
			return errors.New("not begun")
		}
		return nil
	})
	proxy.cut()
	cut := time.Now()
	next := s.worker(nil, work)
	r, err := wait(t, a, id)
	if err != nil || r.Content != next.ID() || time.Since(cut) > 15*time.Second {
		t.Errorf("got %+v, %v after %s", r, err, time.Since(cut))
	}
	if n := len(began); n != 2 {
		t.Errorf("begun %d times", n)
	}
}

// claims hears what workers ask for with a tenant's calls.
func (s *system) claims(tenant string) <-chan message.ResultClaim {
	s.t.Helper()
	heard := make(chan message.ResultClaim, 64)
	sub, err := s.nc.Subscribe(subject.Result(tenant, "bot", "claim"), func(m *nats.Msg) {
		var c message.ResultClaim
		if err := json.Unmarshal(m.Data, &c); err != nil {
			s.t.Error(err)
		}
		heard <- c
	})
	if err == nil {
		err = s.nc.Flush()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return heard
}

func TestAClaimIsRenewedWhileTheCallRunsAndGivenBackAtAStop(t *testing.T) {
	s := start(t)
	heard := s.claims("acme")
	next := func() message.ResultClaim {
		t.Helper()
		select {
		case c := <-heard:
			return c
		case <-time.After(10 * time.Second):
			t.Fatal("no claim")
			return message.ResultClaim{}
		}
	}
	work := fn("work", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	w := s.worker(nil, work)
	s.apply("acme", grantAll(work))
	submit(t, s.agent("acme", "bot"), "work", nil, agent.CallID("c"))
	first := next()
	if first.CallID != "c" || first.RunID == "" || first.Submit == 0 || first.Release {
		t.Fatalf("%+v", first)
	}
	if again := next(); again.RunID != first.RunID || again.Submit != first.Submit || again.Fence == 0 {
		t.Errorf("got %+v after %+v", again, first)
	}
	hasty, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_ = w.Stop(hasty) // it says that a call was cut off
	last := next()
	for !last.Release {
		last = next()
	}
	if last.RunID != first.RunID {
		t.Errorf("got %+v, want %+v", last, first)
	}
}

// While an earlier run of a call may be under way, it waits in its worker, and
// can be cancelled.
func TestASubmittedCallIsCancelledBeforeItBegins(t *testing.T) {
	s := start(t)
	var ran atomic.Int64
	work := fn("work", func(context.Context, *tool.Call) (tool.Result, error) { ran.Add(1); return tool.OK("x"), nil })
	s.apply("acme", grantAll(work))
	a := s.agent("acme", "bot")
	m, err := bus.NewMsg(subject.AgentSubmit("acme", "bot", "work"), message.CallRequest{CallID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := bus.RequestMsg(t.Context(), s.nc, m)
	if err != nil {
		t.Fatal(err)
	}
	var ack message.SubmitAck
	if err := json.Unmarshal(r.Data, &ack); err != nil || ack.Seq == 0 {
		t.Fatalf("%s, %v", r.Data, err)
	}
	other := results.NewRecorder(s.nc, "acme", "bot")
	mine := message.ResultClaim{CallID: "c", RunID: "earlier", Submit: ack.Seq}
	c, err := other.Claim(t.Context(), mine)
	if err != nil || c.State != message.ClaimGranted {
		t.Fatalf("%+v, %v", c, err)
	}
	heard := s.claims("acme")
	s.worker(nil, work)
	for range 2 { // it asks again
		select {
		case c := <-heard:
			if c.RunID == mine.RunID || c.Submit != ack.Seq {
				t.Errorf("%+v", c)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the worker does not ask")
		}
	}
	if err := a.Cancel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	mine.Release, mine.NotBegun, mine.Fence = true, true, c.Fence
	if _, err := other.Claim(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(t, a, "c"); !errors.Is(err, errcode.Cancelled) || ran.Load() != 0 {
		t.Errorf("got %v after %d runs", err, ran.Load())
	}
	s.emptied("work")
}
