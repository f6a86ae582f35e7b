package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	agentkit "github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/services/scheduler"
)

// Hundreds of wakes of a chat that is busy, and many chats whose wakes are being
// handled for long, hold back no other chat of the same agent.
func TestBusyChatsHoldBackNoOther(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"))
	var mu sync.Mutex
	free := false
	a := s.listen("support", func(w message.Wake, interim func(message.WakeReply)) *message.WakeReply {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case w.ChatID == "busy" && !free:
			return &message.WakeReply{RetryAfter: "50ms"}
		case w.Message == "slow":
			interim(message.WakeReply{InProgress: true})
			return nil
		}
		return &message.WakeReply{Accepted: true}
	})
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprint("b", i))
		s.wake("support", "busy", want[i])
	}
	for i := range 20 {
		s.wake("support", fmt.Sprint("slow ", i), "slow")
	}
	s.wake("support", "free", "through")
	eventually(t, "the free chat's wake", func() bool { return len(a.accepted()) == 1 })
	if got := a.accepted()[0].Message; got != "through" {
		t.Errorf("%q was accepted", got)
	}
	mu.Lock()
	free = true
	mu.Unlock()
	eventually(t, "the busy chat's wakes", func() bool { return len(a.accepted()) == 301 })
	if got := texts(a.accepted())[1:]; !slices.Equal(got, want) {
		t.Errorf("order %q", got)
	}
}

// A handler of pkg/agent that always fails ends in the dead letters, also when its
// wake goes from one replica to another again and again; one that is busy as often
// does not.
func TestFailingHandlerGivesUpBusyOneDoesNot(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	tries := func(c *scheduler.Config) { c.WakeTries = 4 }
	replica := startScheduler(t, s.ns, tries)
	s.apply(agentWith("support"))
	var mu sync.Mutex
	var attempts []int
	busy := 0
	client, err := agentkit.New(s.nc, tenant, "support")
	if err != nil {
		t.Fatal(err)
	}
	wakes, err := client.Wakes(t.Context(), func(_ context.Context, w *agentkit.Wake) error {
		mu.Lock()
		defer mu.Unlock()
		if w.Message == "busy" {
			if w.Attempt != 1 {
				t.Errorf("busy counts as a failure: attempt %d", w.Attempt)
			}
			busy++
			return agentkit.Busy(50 * time.Millisecond)
		}
		attempts = append(attempts, w.Attempt)
		return errors.New("it fails")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := wakes.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	s.wake("support", "a", "busy")
	s.wake("support", "b", "poison")
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(attempts) }
	for range 2 {
		n := count()
		eventually(t, "another failure", func() bool { return count() > n })
		stop(t, replica)
		replica = startScheduler(t, s.ns, tries)
	}
	eventually(t, "the dead", func() bool { return len(s.wakesIn("dead")) == 1 })
	if dead := s.wakesIn("dead")[0]; dead.Wake.Message != "poison" || dead.Wake.Attempt != 4 {
		t.Errorf("dead %+v", dead)
	}
	mu.Lock()
	defer mu.Unlock()
	// A failure whose count was cut off by the stop may be had once more.
	if slices.Max(attempts) != 4 || len(attempts) > 6 {
		t.Errorf("attempts %v", attempts)
	}
	if left := s.wakesIn(""); len(left) != 1 || left[0].Wake.Message != "busy" || busy < 4 {
		t.Errorf("%d waiting, busy %d times", len(left), busy)
	}
}

// What is no wake does not belong into a mailbox, and is no trouble in it.
func TestGarbageInAMailbox(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"))
	for _, body := range []string{"", "{", "[]", `{"wakeId":7}`, "{}"} {
		if err := s.nc.Publish(subject.Mailbox(tenant, "support"), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	s.wake("support", "", "real")
	if got := s.wakesIn(""); len(got) != 1 || got[0].Wake.Message != "real" {
		t.Errorf("%+v", got)
	}
	a := s.listen("support", accept)
	eventually(t, "the wake", func() bool { return len(a.accepted()) == 1 })
	if n := a.asked(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// That NATS was away is no failure of an agent.
func TestAnOutageIsNoFailure(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns, func(c *scheduler.Config) { c.WakeTries, c.WakeSilence = 1, 3*time.Second })
	s.apply(agentWith("support"))
	asked := make(chan message.Wake, 100)
	var mu sync.Mutex
	answer := false
	s.listen("support", func(w message.Wake, _ func(message.WakeReply)) *message.WakeReply {
		mu.Lock()
		defer mu.Unlock()
		asked <- w
		if answer {
			return &message.WakeReply{Accepted: true}
		}
		answer = true
		return nil // NATS goes away before it has answered
	})
	s.wake("support", "", "x")
	<-asked
	s.ns.Down()
	s.ns.Up()
	if w := <-asked; w.Attempt != 1 {
		t.Errorf("attempt %d", w.Attempt)
	}
	eventually(t, "an empty mailbox", func() bool { return len(s.wakesIn("")) == 0 })
	if n := len(s.wakesIn("dead")); n != 0 {
		t.Errorf("%d were given up", n)
	}
}
