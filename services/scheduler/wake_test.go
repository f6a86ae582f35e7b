package scheduler_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/scheduler"
)

func (s *system) wake(agent, chat, text string) string {
	s.t.Helper()
	return must[message.SchedulerWakeSent](s, "wake", message.SchedulerWake{AgentID: agent, ChatID: chat, Message: text}).WakeID
}

func texts(wakes []message.Wake) []string {
	out := []string{}
	for _, w := range wakes {
		out = append(out, w.Message)
	}
	return out
}

func (s *system) wakesIn(state string) []message.PendingWake {
	s.t.Helper()
	return must[message.SchedulerWakeList](s, "wakes", message.SchedulerWakes{State: state}).Wakes
}

// Wakes of an absent agent wait, also over a restart of everything, and arrive in
// order after ready.
func TestAbsentAgent(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t)
	reg := startRegistry(t, ns)
	sch := startScheduler(t, ns)
	s := &system{t: t, ns: ns, nc: ns.Connect()}
	s.apply(agentWith("support"), agentWith("sales"))
	var want []string
	for i := range 20 {
		text := fmt.Sprint("wake ", i)
		s.wake("support", "", text)
		want = append(want, text)
	}
	if got := s.wakesIn(""); len(got) != 20 || got[0].Wake.Message != "wake 0" || got[19].AgentID != "support" {
		t.Errorf("%d pending: %+v", len(got), got)
	}
	stop(t, sch)
	stop(t, reg)
	s.nc.Close()
	ns.Down()
	ns.Up()
	startRegistry(t, ns)
	startScheduler(t, ns)
	s.nc = ns.Connect()
	if got := s.wakesIn("pending"); len(got) != 20 {
		t.Errorf("%d pending after the restart", len(got))
	}
	a := s.listen("support", accept)
	eventually(t, "all wakes", func() bool { return len(a.accepted()) == 20 })
	if got := texts(a.accepted()); !slices.Equal(got, want) {
		t.Errorf("order %q", got)
	}
	eventually(t, "an empty mailbox", func() bool { return len(s.wakesIn("")) == 0 })

	// It leaves again; what comes then waits for the next ready.
	a.leave()
	if err := s.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	s.wake("support", "", "later")
	s.wake("sales", "", "other agent")
	b := s.listen("sales", accept)
	eventually(t, "the other agent's wake", func() bool { return len(b.accepted()) == 1 })
	a = s.listen("support", accept)
	eventually(t, "the last wake", func() bool { return len(a.accepted()) == 1 })
}

// A busy agent is asked again when it says so; one at work is waited for; a chat
// has one wake out at a time and keeps its order, others pass.
func TestBusyAgent(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns, func(c *scheduler.Config) { c.WakeSilence = 1500 * time.Millisecond })
	s.apply(agentWith("support"))
	var mu sync.Mutex
	out := map[string]int{}
	refused, passed := 0, false
	a := s.listen("support", func(w message.Wake, interim func(message.WakeReply)) *message.WakeReply {
		mu.Lock()
		if out[w.ChatID]++; out[w.ChatID] > 1 {
			t.Errorf("two wakes of chat %q are out", w.ChatID)
		}
		busy := w.ChatID == "busy" && (refused < 3 || !passed)
		if busy {
			refused++
		}
		passed = passed || w.ChatID == "free"
		mu.Unlock()
		if w.Message == "slow" {
			for range 9 {
				interim(message.WakeReply{InProgress: true})
				time.Sleep(250 * time.Millisecond) // the agent at work, longer than it may be silent
			}
		}
		mu.Lock()
		out[w.ChatID]--
		mu.Unlock()
		if busy {
			return &message.WakeReply{RetryAfter: "100ms"}
		}
		return &message.WakeReply{Accepted: true}
	})
	began := time.Now()
	s.wake("support", "busy", "b1")
	s.wake("support", "busy", "b2")
	s.wake("support", "free", "f1")
	s.wake("support", "", "slow")
	eventually(t, "all accepted", func() bool { return len(a.accepted()) == 4 })
	got := texts(a.accepted())
	if slices.Index(got, "b1") > slices.Index(got, "b2") || slices.Index(got, "f1") > slices.Index(got, "b1") {
		t.Errorf("order %q", got)
	}
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("asked again too soon: all done after %s", d)
	}
	if n := a.asked(); n != 4+refused {
		t.Errorf("%d deliveries of 4 wakes refused %d times", n, refused)
	}
	if len(s.wakesIn("dead")) != 0 {
		t.Error("a busy agent's wake was given up")
	}
}

// Silence is redelivery with a rising attempt, and at last the dead.
func TestSilentAgent(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns, func(c *scheduler.Config) { c.WakeSilence, c.WakeTries = time.Second, 2 })
	s.apply(agentWith("support"))
	var mu sync.Mutex
	attempts := []int{}
	a := s.listen("support", func(w message.Wake, _ func(message.WakeReply)) *message.WakeReply {
		if w.Message != "poison" {
			return &message.WakeReply{Accepted: true}
		}
		mu.Lock()
		defer mu.Unlock()
		attempts = append(attempts, w.Attempt)
		return nil
	})
	s.wake("support", "c", "poison")
	s.wake("support", "c", "next")
	eventually(t, "the next wake", func() bool { return len(a.accepted()) == 1 })
	eventually(t, "an empty mailbox", func() bool { return len(s.wakesIn("")) == 0 })
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(attempts, []int{1, 2}) {
		t.Errorf("attempts %v", attempts)
	}
	if dead := s.wakesIn("dead"); len(dead) != 1 || dead[0].Wake.Message != "poison" || dead[0].AgentID != "support" || dead[0].Wake.Attempt != 2 {
		t.Errorf("dead %+v", dead)
	}
}

func TestWakeLaterOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"))
	send := func(w message.SchedulerWake) string {
		w.AgentID = "support"
		return must[message.SchedulerWakeSent](s, "wake", w).WakeID
	}
	expired := send(message.SchedulerWake{Message: "expired", ExpiresAfter: "1s"})
	eventually(t, "its time is over", func() bool {
		for _, w := range s.wakesIn("") {
			if at, err := time.Parse(time.RFC3339, w.Wake.ExpiresAt); err == nil && w.Wake.WakeID == expired {
				return time.Now().After(at)
			}
		}
		return false
	})
	later := send(message.SchedulerWake{Message: "later", In: "1s", OpID: "op 1"})
	if again := send(message.SchedulerWake{Message: "later", In: "1s", OpID: "op 1"}); again != later {
		t.Errorf("a retry is another wake: %s, %s", later, again)
	}
	now := send(message.SchedulerWake{Message: "now", OpID: "op 2", Mode: "stateless"})
	if again := send(message.SchedulerWake{Message: "now", OpID: "op 2", Mode: "stateless"}); again != now || now == later {
		t.Errorf("ids %s, %s, %s", now, again, later)
	}
	send(message.SchedulerWake{Message: "past", At: "2020-01-01T00:00:00Z"})
	a := s.listen("support", accept)
	eventually(t, "all wakes", func() bool { return len(a.accepted()) == 3 })
	if got := texts(a.accepted()); slices.Contains(got, "expired") {
		t.Errorf("%q", got)
	}
	// A repeat of what was accepted is left out.
	send(message.SchedulerWake{Message: "later", In: "1s", OpID: "op 1"})
	send(message.SchedulerWake{Message: "now", OpID: "op 2", Mode: "stateless"})
	send(message.SchedulerWake{Message: "last", In: "1s"})
	eventually(t, "the last wake", func() bool { return len(a.accepted()) >= 4 })
	if got := texts(a.accepted()); len(got) != 4 || got[3] != "last" {
		t.Errorf("%q", got)
	}
}

// A replica that dies, or one that comes, changes nothing for the wakes.
func TestDeliverySurvivesReplicas(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	first := startScheduler(t, s.ns)
	var configs []message.AgentConfig
	for i := range 12 {
		configs = append(configs, agentWith(fmt.Sprint("a", i)))
	}
	s.apply(configs...)
	agents := map[string]*agent{}
	for _, c := range configs {
		agents[c.AgentID] = s.listen(c.AgentID, accept)
	}
	send := func(round int) {
		for _, c := range configs {
			s.wake(c.AgentID, "", fmt.Sprint("round ", round))
		}
	}
	all := func(n int) func() bool {
		return func() bool {
			for _, a := range agents {
				if len(a.accepted()) < n {
					return false
				}
			}
			return true
		}
	}
	send(0)
	startScheduler(t, s.ns)
	startScheduler(t, s.ns)
	send(1)
	eventually(t, "two rounds", all(2))
	stop(t, first)
	send(2)
	eventually(t, "three rounds", all(3))
	for name, a := range agents {
		if got := texts(a.accepted()); !slices.Equal(got, []string{"round 0", "round 1", "round 2"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
