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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
)

type noteArgs struct {
	Text string `json:"text"`
}

// Calls with one key have one effect and one result, whoever makes them when.
func TestAKeyedCallHappensOnce(t *testing.T) {
	s := start(t)
	var runs atomic.Int64
	gate := make(chan struct{})
	note := tool.New("note", "Notes a text.", func(_ context.Context, c *tool.Call, in noteArgs) (tool.Result, error) {
		n := runs.Add(1)
		if in.Text == "slow" {
			<-gate
		}
		switch in.Text {
		case "fails":
			return tool.Fail("not noted"), nil
		case "errs":
			return tool.Result{}, errcode.New(errcode.QuotaExceeded, "full")
		case "large":
			return tool.OK("%s", strings.Repeat("x", 3<<20)), nil
		}
		return tool.OK("run %d of %s", n, c.IdempotencyKey()), nil
	})
	other := fn("other", func(context.Context, *tool.Call) (tool.Result, error) { runs.Add(1); return tool.OK("other"), nil })
	s.worker(nil, note, other)
	s.worker(nil, note, other)
	s.apply("acme", grantAll(note, other))
	s.apply("globex", grantAll(note, other))
	a := s.agent("acme", "bot")
	call := func(a *agent.Client, key, text string, opts ...agent.Option) (message.CallReply, error) {
		return a.Call(t.Context(), "note", noteArgs{text}, append(opts, agent.IdempotencyKey(key))...)
	}
	first, err := call(a, "k 1", "a")
	if err != nil || first.Content != "run 1 of k 1" {
		t.Fatalf("%+v, %v", first, err)
	}
	for range 5 {
		if r, err := call(a, "k 1", "a"); err != nil || r.Content != first.Content {
			t.Errorf("again: %+v, %v", r, err)
		}
	}
	var conflict *errcode.Error
	for _, c := range []struct{ text, chat string }{{"b", ""}, {"a", "another"}} {
		var opts []agent.Option
		if c.chat != "" {
			opts = append(opts, agent.Chat(c.chat))
		}
		if _, err := call(a, "k 1", c.text, opts...); !errors.As(err, &conflict) || conflict.Code != errcode.Conflict || conflict.Details.Fields[0].Field != "idempotencyKey" {
			t.Errorf("another call with the same key: %v", err)
		}
	}
	if r, err := call(s.agent("globex", "bot"), "k 1", "a"); err != nil || r.Content != "run 2 of k 1" {
		t.Errorf("another tenant's: %+v, %v", r, err)
	}
	if r, err := a.Call(t.Context(), "other", nil, agent.IdempotencyKey("k 1")); err != nil || r.Content != "other" {
		t.Errorf("another tool's: %+v, %v", r, err)
	}
	before := runs.Load()
	for _, text := range []string{"fails", "errs", "large"} {
		one, errOne := call(a, text, text)
		two, errTwo := call(a, text, text)
		if one.Content != two.Content || one.ErrorMessage != two.ErrorMessage || errcode.Of(errOne) != errcode.Of(errTwo) || fmt.Sprint(errOne) != fmt.Sprint(errTwo) {
			t.Errorf("%s: %v then %v", text, errOne, errTwo)
		}
	}
	if n := runs.Load() - before; n != 3 {
		t.Errorf("%d runs", n)
	}
	// What has not begun is not an end.
	if _, err := a.Call(t.Context(), "note", map[string]any{}, agent.IdempotencyKey("k 2")); !errors.Is(err, errcode.InvalidArguments) {
		t.Errorf("without arguments: %v", err)
	}
	if _, err := call(a, "k 2", "a"); err != nil {
		t.Errorf("and then with: %v", err)
	}
	// While the first one runs the others wait for it.
	before = runs.Load()
	var wg sync.WaitGroup
	answers := make([]string, 8)
	for i := range answers {
		wg.Go(func() {
			r, err := call(a, "slow", "slow")
			if err != nil {
				t.Error(err)
			}
			answers[i] = r.Content
		})
	}
	within(t, 10*time.Second, func() error {
		if runs.Load() == before {
			return errors.New("not begun")
		}
		return nil
	})
	close(gate)
	wg.Wait()
	if n := runs.Load() - before; n != 1 {
		t.Errorf("%d runs at once", n)
	}
	for _, r := range answers {
		if r != answers[0] || r == "" {
			t.Errorf("answers %q", answers)
		}
	}
	for _, key := range []string{strings.Repeat("x", 257), "a\nb"} {
		if _, err := call(a, key, "a"); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("key %.10q: %v", key, err)
		}
	}
}

// A reply that was lost is not lost: the same key gets what the first call did, which it
// did once.
func TestAKeyedCallWhoseReplyIsLost(t *testing.T) {
	s := start(t)
	var runs atomic.Int64
	work := fn("work", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("run %d", runs.Add(1)), nil })
	s.worker(nil, work)
	s.apply("acme", grantAll(work))
	to := subject.AgentCall("acme", "bot", "work")
	if err := s.nc.PublishRequest(to, s.nc.NewRespInbox(), []byte(`{"idempotencyKey":"k"}`)); err != nil {
		t.Fatal(err)
	}
	r, err := s.agent("acme", "bot").Call(t.Context(), "work", nil, agent.IdempotencyKey("k"))
	if err != nil || r.Content != "run 1" || runs.Load() != 1 {
		t.Errorf("%+v, %v after %d runs", r, err, runs.Load())
	}
}

// When the worker of a call is gone, a tool that is idempotent runs again, and what it
// changes happens once; of any other nobody knows what it did.
func TestAKeyedCallOfALostWorker(t *testing.T) {
	s := start(t)
	began, hold := make(chan string, 8), make(chan struct{})
	var held sync.Once
	defer held.Do(func() { close(hold) })
	var outside sync.Map // what an outside system does, by key
	work := func(ctx context.Context, c *tool.Call, in noteArgs) (tool.Result, error) {
		if _, err := c.State("notes").Append(ctx, "texts", in.Text); err != nil {
			return tool.Result{}, err
		}
		if _, err := c.State("notes").Increment(ctx, "count", 1); err != nil {
			return tool.Result{}, err
		}
		if _, err := c.Files().Append(ctx, "notes.txt", []byte(in.Text+"\n")); err != nil {
			return tool.Result{}, err
		}
		if r, err := c.Call(ctx, "writeFile", map[string]string{"path": "nested.txt", "content": in.Text + "\n", "mode": "append"}); err != nil || !r.Success {
			return r, err
		}
		n, _ := outside.LoadOrStore(c.IdempotencyKey(), new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		began <- c.InstanceID
		if len(began) == 1 {
			<-hold // the first one is cut off here, and goes on later
		}
		if _, err := c.State("notes").Append(ctx, "texts", in.Text); err != nil {
			return tool.Result{}, err
		}
		return tool.OK("%s", c.InstanceID), c.Store().Set(ctx, "last", in.Text)
	}
	again := tool.New("again", "May run again.", work, tool.Idempotent())
	once := tool.New("once", "Must not.", work)
	s.apply("acme", grantAll(again, once))
	a := s.agent("acme", "bot")
	try := func(name string) (message.CallReply, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		return a.Call(ctx, name, noteArgs{"x"}, agent.IdempotencyKey("k"), agent.Chat(name))
	}
	// For a while NATS goes on sending calls to the worker that is gone.
	call := func(name string) (r message.CallReply, err error) {
		for range 20 {
			if r, err = try(name); err == nil || !strings.Contains(err.Error(), "has not been heard of") {
				break
			}
		}
		return r, err
	}
	read := func(chat string) string {
		var all message.ToolStateData
		ref := message.ToolStateRef{ChatID: chat, Namespace: "notes"}
		if err := bus.Request(t.Context(), s.nc, subject.ToolState("acme", "all"), message.ToolStateAll{ToolStateRef: ref}, &all); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, path := range []string{"notes.txt", "nested.txt"} {
			var f message.FileContent
			if err := bus.Request(t.Context(), s.nc, subject.Files("acme", "read"), message.FileRead{Path: path}, &f); err != nil || f.Content == nil {
				t.Fatal(err)
			}
			out = append(out, *f.Content)
		}
		b, _ := json.Marshal(all.Data)
		return string(b) + strings.Join(out, "")
	}
	for _, c := range []struct {
		tool tool.Tool
		code errcode.Code
		want string
	}{
		{again, "", `{"count":1,"texts":["x","x"]}` + "x\nx\n"},
		{once, errcode.WorkerLost, `{"count":1,"texts":["x"]}` + "x\nx\nx\nx\n"},
	} {
		name := c.tool.Definition().Name
		for len(began) > 0 {
			<-began
		}
		proxy := newProxy(t, s.nats.URL())
		cfg := worker.DefaultConfig()
		cfg.Bus = bus.Config{Server: proxy.url}
		lost, err := worker.New(cfg, []tool.Tool{c.tool}, telemetry.Discard(), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		if err := lost.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := make(chan error, 1)
		go func() { _, err := try(name); first <- err }()
		within(t, 10*time.Second, func() error {
			if len(began) == 0 {
				return errors.New("not begun")
			}
			return nil
		})
		proxy.cut()
		next := s.worker(nil, c.tool)
		if err := <-first; !errors.Is(err, errcode.WorkerLost) {
			t.Fatalf("%s: the first call: %v", name, err)
		}
		r, err := call(name)
		if errcode.Of(err) != c.code && !(err == nil && c.code == "") || err == nil && r.Content != next.ID() {
			t.Errorf("%s: the second call: %+v, %v", name, r, err)
		}
		if r2, err2 := call(name); r2.Content != r.Content || errcode.Of(err2) != errcode.Of(err) {
			t.Errorf("%s: and then %+v, %v", name, r2, err2)
		}
		if got := read(name); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		held.Do(func() { close(hold) })
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		_ = lost.Stop(ctx) // it cannot say goodbye
		cancel()
		if got := read(name); got != c.want {
			t.Errorf("%s, when the first worker has gone on: %q, want %q", name, got, c.want)
		}
		hold, held = make(chan struct{}), sync.Once{}
	}
}
