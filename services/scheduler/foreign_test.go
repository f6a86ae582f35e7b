package scheduler_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

const foreign = "evil" // another tenant

// applyTo is apply for any tenant.
func (s *system) applyTo(tenant string, agents ...message.AgentConfig) {
	s.t.Helper()
	raw, err := json.Marshal(message.Config{Agents: agents})
	if err == nil {
		err = bus.Retry(s.t.Context(), s.nc, subject.Registry(tenant, "apply"), message.RegistryApply{Config: raw}, nil)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// A worker of one tenant that puts a wake with another's id into its own outbox
// has it delivered to its own agent, and the other tenant's wake comes all the
// same.
func TestForeignWakeIDIsNoMatter(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startState(t, s.ns)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"))
	s.applyTo(foreign, withJobs(job("j", "Evil", "0 0 1 1 *")))
	// The id of a wake follows from its request: it is known before.
	victim := must[message.SchedulerWakeSent](s, "wake", message.SchedulerWake{AgentID: "support", Message: "victim", OpID: "op", In: "8000h"}).WakeID
	s.work("Evil", func(message.JobRequest) (message.JobReply, error) {
		err := bus.Request(t.Context(), s.nc, subject.Store(foreign, "support", "Evil", "commit"), message.StoreCommit{
			JobID: "j", TickID: "forged", Slot: 1, Attempt: 1, Wake: &message.Wake{WakeID: victim, Mode: message.WakeChat, Message: "forged"},
		}, nil)
		return message.JobReply{Action: message.ActionWake, WakeMessage: "own"}, err
	})
	got := make(chan string, 10)
	_, err := s.nc.QueueSubscribe(subject.AgentWake(foreign, "support"), "support", func(m *nats.Msg) {
		var w message.Wake
		if err := json.Unmarshal(m.Data, &w); err != nil {
			t.Error(err)
		}
		_ = m.Respond([]byte(`{"accepted":true}`))
		got <- w.Message
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Request(t.Context(), s.nc, subject.Scheduler(foreign, "trigger"), message.SchedulerEntryRef{AgentID: "support", EntryID: "j"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"forged", "own"} {
		if w := <-got; w != want {
			t.Errorf("the other tenant got %q, want %q", w, want)
		}
	}
	a := s.listen("support", accept)
	must[message.SchedulerWakeSent](s, "wake", message.SchedulerWake{AgentID: "support", Message: "victim", OpID: "op"})
	eventually(t, "the wake whose id was forged", func() bool { return len(a.accepted()) == 1 })
	if w := a.accepted()[0]; w.WakeID != victim || w.Message != "victim" {
		t.Errorf("%+v", w)
	}
}

// An agent that answers where it guesses that others' answers go accepts none of
// their wakes.
func TestForeignAcceptanceIsGuesswork(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"))
	s.applyTo(foreign, agentWith("evil"))
	asked := make(chan *nats.Msg, 10)
	if _, err := s.nc.ChanSubscribe(subject.AgentWake(tenant, "support"), asked); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	_, err := s.nc.Subscribe(subject.AgentWake(foreign, "evil"), func(m *nats.Msg) {
		inbox := m.Reply[:strings.LastIndexByte(m.Reply, '.')+1]
		for k := range 1000 {
			for _, guess := range []string{strconv.Itoa(k), strconv.FormatInt(int64(k), 36)} {
				_ = s.nc.Publish(inbox+guess, []byte(`{"accepted":true}`))
			}
		}
		_ = m.Respond([]byte(`{"accepted":true}`))
		done <- s.nc.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wake("support", "", "secret")
	<-asked // it is out, and not answered
	if err := bus.Request(t.Context(), s.nc, subject.Scheduler(foreign, "wake"), message.SchedulerWake{AgentID: "evil", Message: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other's own wake is accepted", func() bool {
		var l message.SchedulerWakeList
		return bus.Request(t.Context(), s.nc, subject.Scheduler(foreign, "wakes"), message.SchedulerWakes{}, &l) == nil && len(l.Wakes) == 0
	})
	if n := len(s.wakesIn("")); n != 1 {
		t.Errorf("%d wakes wait, want the one that its agent has not accepted", n)
	}
}
