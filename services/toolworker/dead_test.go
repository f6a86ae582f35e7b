package toolworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
	"github.com/toolbus/toolbus/services/scheduler"
)

// submits lists a tenant's submitted calls in a state.
func (s *system) submits(tenant, state string) []message.SubmitEntry {
	s.t.Helper()
	var all []message.SubmitEntry
	for req := (message.SubmitList{State: state}); ; {
		var page message.SubmitListing
		if err := bus.Request(s.t.Context(), s.nc, subject.Submits(tenant, "list"), req, &page); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, page.Submits...)
		if req.Cursor = page.Cursor; req.Cursor == "" {
			return all
		}
	}
}

// A submitted call that could not be served is kept with why, and can be run again by
// hand; one whose tool ran and failed has its result.
func TestDeadSubmitsAreKeptAndRedriven(t *testing.T) {
	s := start(t)
	var broken atomic.Bool
	broken.Store(true)
	var runs atomic.Int64
	work := tool.New("work", "Works.", func(_ context.Context, c *tool.Call, in noteArgs) (tool.Result, error) {
		runs.Add(1)
		if broken.Load() {
			return tool.Result{}, errcode.New(errcode.QuotaExceeded, "the shop is full")
		}
		return tool.OK("%s by %s", in.Text, c.IdempotencyKey()), nil
	})
	fails := fn("fails", func(context.Context, *tool.Call) (tool.Result, error) { return tool.Fail("no such order"), nil })
	s.worker(nil, work, fails)
	s.apply("acme", grantAll(work, fails))
	a := s.agent("acme", "bot")
	id := submit(t, a, "work", noteArgs{"done"}, agent.Chat("chat 1"))
	if _, err := wait(t, a, id); !errors.Is(err, errcode.QuotaExceeded) {
		t.Fatal(err)
	}
	if _, err := wait(t, a, submit(t, a, "fails", nil)); err != nil {
		t.Fatal(err)
	}
	var dead []message.SubmitEntry
	within(t, 10*time.Second, func() error {
		if dead = s.submits("acme", "dead"); len(dead) != 1 {
			return fmt.Errorf("%d are dead", len(dead))
		}
		return nil
	})
	if d := dead[0]; d.CallID != id || d.AgentID != "bot" || d.Tool != "work" || d.ChatID != "chat 1" || d.Tries != 1 || !strings.Contains(string(d.Error), "the shop is full") {
		t.Errorf("%+v %s", d, d.Error)
	}
	if others := s.submits("globex", "dead"); len(others) != 0 {
		t.Errorf("another tenant sees %+v", others)
	}
	for tenant, ref := range map[string]message.SubmitRef{"globex": {AgentID: "bot", CallID: id}, "acme": {AgentID: "bot", CallID: "other"}} {
		if err := bus.Request(t.Context(), s.nc, subject.Submits(tenant, "redrive"), ref, nil); !errors.Is(err, errcode.NotFound) {
			t.Errorf("%s: %v", tenant, err)
		}
	}
	broken.Store(false)
	ref := message.SubmitRef{AgentID: "bot", CallID: id}
	if err := bus.Request(t.Context(), s.nc, subject.Submits("acme", "redrive"), ref, nil); err != nil {
		t.Fatal(err)
	}
	var r message.CallReply
	within(t, 20*time.Second, func() (err error) { r, err = wait(t, a, id); return err })
	if r.Content != "done by "+id || runs.Load() != 2 {
		t.Errorf("%+v after %d runs", r, runs.Load())
	}
	if dead := s.submits("acme", "dead"); len(dead) != 0 {
		t.Errorf("left: %+v", dead)
	}
	if err := bus.Request(t.Context(), s.nc, subject.Submits("acme", "redrive"), ref, nil); !errors.Is(err, errcode.NotFound) {
		t.Errorf("redriven twice: %v", err)
	}
}

// A submitted call that waits is listed, and a cancel ends it before any worker is there.
func TestAWaitingSubmitIsListedAndCancelled(t *testing.T) {
	s := start(t)
	var runs atomic.Int64
	work := fn("work", func(context.Context, *tool.Call) (tool.Result, error) { runs.Add(1); return tool.OK("ran"), nil })
	s.apply("acme", grantAll(work))
	a := s.agent("acme", "bot")
	var ids []string
	for range 3 {
		ids = append(ids, submit(t, a, "work", nil))
	}
	list := s.submits("acme", "")
	if len(list) != 3 || list[0].CallID != ids[0] || list[2].CallID != ids[2] || list[1].Tool != "work" || list[1].SubmittedAt == "" {
		t.Fatalf("%+v", list)
	}
	for range 2 { // and again
		if err := a.Cancel(t.Context(), ids[1]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := wait(t, a, ids[1]); !errors.Is(err, errcode.Cancelled) {
		t.Errorf("got %v", err)
	}
	s.worker(nil, work)
	for _, id := range []string{ids[0], ids[2]} {
		if r, err := wait(t, a, id); err != nil || r.Content != "ran" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	s.emptied("work")
	if _, err := wait(t, a, ids[1]); !errors.Is(err, errcode.Cancelled) || runs.Load() != 2 {
		t.Errorf("got %v after %d runs", err, runs.Load())
	}
	if dead := s.submits("acme", "dead"); len(dead) != 0 {
		t.Errorf("what was cancelled is dead: %+v", dead)
	}
	if list := s.submits("acme", "waiting"); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

// An agent that asked for it is woken once when its submitted call has ended.
func TestASubmittedCallWakesItsAgent(t *testing.T) {
	s := start(t)
	cfg := scheduler.DefaultConfig()
	cfg.Bus = s.nats.Config()
	sched, err := scheduler.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s.run(sched)
	good := fn("good", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("x"), nil })
	bad := fn("bad", func(context.Context, *tool.Call) (tool.Result, error) { return tool.Fail("no such order"), nil })
	worse := fn("worse", func(context.Context, *tool.Call) (tool.Result, error) { panic("ouch") })
	s.worker(nil, good, bad, worse)
	s.apply("acme", grantAll(good, bad, worse))
	a := s.agent("acme", "bot")
	heard := make(chan *agent.Wake, 16)
	wakes, err := a.Wakes(t.Context(), func(_ context.Context, w *agent.Wake) error { heard <- w; return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = wakes.Stop(context.Background()) }()
	for _, c := range []struct{ tool, chat, mode, text string }{
		{"good", "chat 1", message.WakeChat, "has succeeded"},
		{"bad", "", message.WakeStateless, "has failed: no such order"},
		{"worse", "", message.WakeStateless, "could not be served: internal"},
	} {
		opts := []agent.Option{agent.WakeOnDone()}
		if c.chat != "" {
			opts = append(opts, agent.Chat(c.chat))
		}
		id := submit(t, a, c.tool, nil, opts...)
		select {
		case w := <-heard:
			if w.Source != (message.WakeSource{Kind: message.SourceCall, ID: id, Tool: c.tool}) || w.Mode != c.mode || w.ChatID != c.chat || !strings.Contains(w.Message, c.text) || !strings.Contains(w.Message, id) {
				b, _ := json.Marshal(w)
				t.Errorf("%s: %s", c.tool, b)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: no wake", c.tool)
		}
	}
	if _, err := wait(t, a, submit(t, a, "good", nil)); err != nil {
		t.Fatal(err)
	}
	s.emptied("good")
	select {
	case w := <-heard:
		t.Errorf("woken again: %+v", w)
	default:
	}
}
