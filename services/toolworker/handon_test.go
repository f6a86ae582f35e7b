package toolworker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
)

// As many calls as there are slots on all workers run at once, however the queue group
// chooses: who is full hands them to who is not. One more waits.
func TestCallsFindTheIdleWorker(t *testing.T) {
	s := start(t)
	const workers, slots = 4, 4
	begun, end := make(chan string, 100), make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(end) }) }
	defer release()
	work := fn("work", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		begun <- c.InstanceID
		<-end
		return tool.OK("%s", c.InstanceID), nil
	}, tool.MaxConcurrent(slots))
	for range workers {
		s.worker(nil, work)
	}
	s.apply("acme", grantAll(work))
	a := s.agent("acme", "bot")
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	call := func() {
		wg.Go(func() {
			r, err := a.Call(t.Context(), "work", nil)
			if err == nil && !r.Success {
				err = fmt.Errorf("%+v", r)
			}
			errs <- err
		})
	}
	used := map[string]int{}
	begins := func() {
		t.Helper()
		select {
		case id := <-begun:
			used[id]++
		case <-time.After(10 * time.Second):
			t.Fatalf("a call does not begin, though there are free slots: %v", used)
		}
	}
	for range workers * slots {
		call()
		begins()
		<-time.After(50 * time.Millisecond) // words travel, and there is no event that they have
	}
	if len(used) != workers {
		t.Errorf("%d workers run them: %v", len(used), used)
	}
	for id, n := range used {
		if n != slots {
			t.Errorf("%s runs %d", id, n)
		}
	}
	call()
	release()
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// What is handed on is checked as any call is.
func TestHandedCallsAreChecked(t *testing.T) {
	s := start(t)
	work := fn("work", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("ran"), nil })
	hidden := fn("hidden", func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("ran"), nil }, tool.Internal())
	w := s.worker(func(c *worker.Config) { c.MaxCalls = 1 }, work, hidden)
	s.apply("acme", grantAll(work))
	for on, code := range map[string]errcode.Code{
		subject.AgentCall("acme", "bot", "work"):    "",
		subject.AgentCall("acme", "nobody", "work"): errcode.NotFound,
		subject.AgentCall("globex", "bot", "work"):  errcode.NotFound,
		subject.AgentCall("acme", "bot", "hidden"):  errcode.NotAllowed,
		subject.AgentCall("acme", "bot", "other"):   errcode.Unavailable,
		subject.AgentSubmit("acme", "bot", "work"):  errcode.Unavailable,
		subject.WorkerJob("acme", "bot", "work"):    errcode.Unavailable,
		"toolbus.v1.agent.acme.*.call.work":         errcode.InvalidRequest,
		"nonsense":                                  errcode.InvalidRequest,
		"":                                          errcode.InvalidRequest,
	} {
		m, err := bus.NewMsg(subject.InstanceCall(w.ID()), message.CallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		m.Header.Set(message.HeaderHanded, on)
		_, err = bus.RequestMsg(t.Context(), s.nc, m)
		if errcode.Of(err) != code && !(err == nil && code == "") {
			t.Errorf("%q: %v, want %q", on, err, code)
		}
	}
	if _, err := s.agent("acme", "bot").Call(t.Context(), "work", nil, agent.Timeout(time.Minute)); err != nil && !errors.Is(err, errcode.Overloaded) {
		t.Error(err)
	}
}
