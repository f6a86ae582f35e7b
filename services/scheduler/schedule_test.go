package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/scheduler"
)

func schedule(id, cron, text string) message.ScheduleEntry {
	return message.ScheduleEntry{ID: id, Cron: cron, TaskMessage: text}
}

func agentWith(name string, entries ...message.ScheduleEntry) message.AgentConfig {
	return message.AgentConfig{AgentID: name, Scheduler: entries}
}

// onePerSlot checks that no slot has woken twice and that the history of the
// slots since the first is without a gap.
func onePerSlot(t *testing.T, wakes []message.Wake) {
	t.Helper()
	seen := map[string]bool{}
	for _, w := range wakes {
		if seen[w.WakeID] || seen[w.ScheduledAt] {
			t.Errorf("slot %s woke twice (%s)", w.ScheduledAt, w.WakeID)
		}
		seen[w.WakeID], seen[w.ScheduledAt] = true, true
	}
}

// Three replicas, and a hundred changes of the configuration under way: every
// second runs once.
func TestOneRunPerSlot(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for range 3 {
		startScheduler(t, s.ns)
	}
	a := s.listen("support", accept)
	for i := range 100 {
		// The entry's text changes every time, its times never.
		s.apply(agentWith("support", schedule("tick", "@every 1s", fmt.Sprint("run ", i)), schedule("other", "0 0 1 1 *", fmt.Sprint("x", i))))
		time.Sleep(25 * time.Millisecond) // spread over several slots: not waiting for anything
	}
	eventually(t, "the last text arrives", func() bool {
		w := a.accepted()
		return len(w) > 0 && w[len(w)-1].Message == "run 99"
	})
	wakes := a.accepted()
	onePerSlot(t, wakes)
	woke := map[int64]bool{}
	for _, w := range wakes {
		woke[slotTime(t, w).Unix()] = true
	}
	for at, end := slotTime(t, wakes[0]), slotTime(t, wakes[len(wakes)-1]); at.Before(end); at = at.Add(time.Second) {
		if !woke[at.Unix()] {
			t.Errorf("slot %s did not wake", at)
		}
	}
	// Every slot since the first is in the history, once.
	seen := map[string]bool{}
	for _, h := range s.history("support", "tick") {
		if seen[h.TickID] {
			t.Errorf("slot %s twice in the history", h.TickID)
		}
		seen[h.TickID] = true
		if h.Outcome != message.SlotRan {
			t.Errorf("slot %+v", h)
		}
	}
	for at, end := slotTime(t, wakes[0]), slotTime(t, wakes[len(wakes)-1]); !at.After(end); at = at.Add(time.Second) {
		if len(wakes) <= 20 && !seen[fmt.Sprintf("tick.%d", at.UnixMilli())] {
			t.Errorf("slot %s is not in the history", at)
		}
	}
}

func slotTime(t *testing.T, w message.Wake) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, w.ScheduledAt)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestConfigurationDecides(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	off := false
	a := s.listen("support", accept)
	disabled := schedule("off", "@every 1s", "never")
	disabled.Enabled = &off
	stateless := schedule("alone", "@every 1s", "alone")
	stateless.WakeMode, stateless.ChatID, stateless.ExpiresAfter = "stateless", "chat 7", "1h"
	s.apply(agentWith("support", disabled, stateless, schedule("year", "0 0 1 1 *", "x")))
	eventually(t, "two wakes", func() bool { return len(a.accepted()) >= 2 })
	w := a.accepted()[0]
	if w.Mode != message.WakeStateless || w.Message != "alone" || w.ChatID != "chat 7" || w.Attempt != 1 ||
		w.Source != (message.WakeSource{Kind: "schedule", ID: "alone"}) || w.ScheduledAt == "" || w.ExpiresAt == "" {
		t.Errorf("wake %+v", w)
	}
	list := must[message.SchedulerEntries](s, "list", message.SchedulerList{}).Entries
	if len(list) != 3 || list[0].EntryID != "alone" || list[0].Last == nil || list[0].Next == "" || list[0].Kind != "schedule" ||
		list[1].EntryID != "off" || list[1].Enabled || list[1].Next != "" || list[1].Last != nil ||
		!strings.HasSuffix(list[2].Next, "-01-01T00:00:00Z") || list[2].Timezone != "UTC" || list[2].Cron != "0 0 1 1 *" {
		t.Errorf("%+v", list)
	}
	// An entry that is gone runs no more, while another's slots pass.
	s.apply(agentWith("support", schedule("witness", "@every 1s", "witness"), schedule("year", "0 0 1 1 *", "x")))
	gone := time.Now()
	eventually(t, "slots have passed since", func() bool {
		n := 0
		for _, w := range a.accepted() {
			if w.Message == "witness" {
				n++
			}
		}
		return n >= 2
	})
	for _, w := range a.accepted() {
		if w.Message == "alone" && slotTime(t, w).After(gone) {
			t.Errorf("woken by an entry that is gone: %+v", w)
		}
	}
	if _, err := call[message.SchedulerHistory](s, "history", message.SchedulerEntryRef{AgentID: "support", EntryID: "alone"}); err == nil {
		t.Error("the history of an entry that is gone")
	}
}

// runOnStart: once for the system's start and once for each definition, however
// many replicas there are and however slow the agent is.
func TestRunOnStart(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	e := schedule("first", "0 0 1 1 *", "one")
	e.RunOnStart = true
	s.apply(agentWith("support", e))
	a := s.listen("support", accept)
	replicas := []*scheduler.Service{}
	patient := func(c *scheduler.Config) { c.LeaseTTL = 20 * time.Second } // a replica that stalls is not gone
	for range 3 {
		replicas = append(replicas, startScheduler(t, s.ns, patient))
	}
	eventually(t, "the start's wake", func() bool { return len(a.accepted()) == 1 })
	replicas = append(replicas, startScheduler(t, s.ns, patient)) // one more is no start
	e.TaskMessage = "two"
	s.apply(agentWith("support", e))
	eventually(t, "the definition's wake", func() bool { return len(a.accepted()) == 2 })
	for _, r := range replicas {
		stop(t, r)
	}
	startScheduler(t, s.ns, patient)
	eventually(t, "the next start's wake", func() bool { return len(a.accepted()) == 3 })
	s.apply(agentWith("support", e, schedule("other", "0 0 1 1 *", "x"))) // no change of it
	must[message.SchedulerTriggered](s, "trigger", message.SchedulerEntryRef{AgentID: "support", EntryID: "other"})
	eventually(t, "another's wake", func() bool { return len(a.accepted()) >= 4 })
	var got []string
	for _, w := range a.accepted() {
		got = append(got, w.Message)
	}
	if fmt.Sprint(got) != "[one two two x]" {
		t.Errorf("woken by %q", got)
	}
}

func TestTriggerPauseResume(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	a := s.listen("support", accept)
	s.apply(agentWith("support", schedule("often", "@every 1s", "often"), schedule("year", "0 0 1 1 *", "year")))
	ref := message.SchedulerEntryRef{AgentID: "support", EntryID: "often"}
	eventually(t, "it runs", func() bool { return len(a.accepted()) > 0 })
	if p := must[message.SchedulerPaused](s, "pause", ref); !p.Paused {
		t.Error("not paused")
	}
	paused := time.Now()
	witness := message.SchedulerEntryRef{AgentID: "witness", EntryID: "often"}
	s.apply(agentWith("witness", schedule("often", "@every 1s", "x")))
	eventually(t, "slots have passed since", func() bool { return len(s.history(witness.AgentID, witness.EntryID)) >= 2 })
	for _, h := range s.history("support", "often") {
		if at, err := time.Parse(time.RFC3339, h.ScheduledAt); err != nil || at.After(paused) {
			t.Errorf("it ran while it was paused: %+v, %v", h, err)
		}
	}
	n := len(s.history("support", "often"))
	if l := must[message.SchedulerEntries](s, "list", message.SchedulerList{AgentID: "support"}).Entries; !l[0].Paused || l[0].Next != "" {
		t.Errorf("%+v", l[0])
	}
	// A trigger runs it all the same.
	tr := must[message.SchedulerTriggered](s, "trigger", ref)
	eventually(t, "the triggered run", func() bool { return s.history("support", "often")[0].TickID == tr.TickID })
	if h := s.history("support", "often"); len(h) != n+1 || h[0].Outcome != message.SlotRan || h[0].Action != message.ActionWake || h[0].WakeID == "" {
		t.Errorf("%+v", h)
	}
	if p := must[message.SchedulerPaused](s, "resume", ref); p.Paused {
		t.Error("paused")
	}
	h := s.history("support", "often")
	if h[0].Outcome == message.SlotRan {
		h = h[1:] // it has run since
	}
	if h[0].Outcome != message.SlotSkipped || h[0].Slots < 1 && h[0].Since != "" {
		t.Errorf("the pause in the history: %+v", h[0])
	}
	eventually(t, "it runs again", func() bool {
		return s.history("support", "often")[0].Outcome == message.SlotRan && len(s.history("support", "often")) > n+2
	})
	onePerSlot(t, a.accepted())

	must[message.SchedulerTriggered](s, "trigger", message.SchedulerEntryRef{AgentID: "support", EntryID: "year"})
	eventually(t, "the year's wake", func() bool {
		for _, w := range a.accepted() {
			if w.Message == "year" {
				return true
			}
		}
		return false
	})
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support", schedule("a", "@daily", "x")))
	for _, op := range []string{"trigger", "pause", "resume", "history"} {
		for _, c := range []struct {
			body, code, field string
		}{
			{`{"agentId":"support","entryId":"none"}`, "not_found", ""},
			{`{"agentId":"nobody","entryId":"a"}`, "not_found", ""},
			{`{"agentId":"support"}`, "invalid_request", "entryId"},
			{`{"agentId":"a.b","entryId":"a"}`, "invalid_request", "agentId"},
			{`{"agentId":1}`, "invalid_request", "agentId"},
			{`[]`, "invalid_request", ""},
		} {
			_, err := call[any](s, op, []byte(c.body))
			wantCode(t, err, errcodeOf(c.code), c.field)
		}
	}
	for _, c := range []struct{ op, body, code, field string }{
		{"list", `{"agentId":"nobody"}`, "not_found", ""},
		{"list", `{"agentId":"*"}`, "invalid_request", "agentId"},
		{"wakes", `{"state":"gone"}`, "invalid_request", "state"},
		{"wakes", `{"agentId":">"}`, "invalid_request", "agentId"},
		{"wake", `{"agentId":"nobody","message":"x"}`, "not_found", ""},
		{"wake", `{"agentId":"support"}`, "invalid_request", "message"},
		{"wake", `{"agentId":"support","message":"x","mode":"loud"}`, "invalid_request", "mode"},
		{"wake", `{"agentId":"support","message":"x","chatId":"a\u0000"}`, "invalid_request", "chatId"},
		{"wake", `{"agentId":"support","message":"x","at":"tomorrow"}`, "invalid_request", "at"},
		{"wake", `{"agentId":"support","message":"x","in":"-3s"}`, "invalid_request", "in"},
		{"wake", `{"agentId":"support","message":"x","in":"9000h"}`, "invalid_request", "in"},
		{"wake", `{"agentId":"support","message":"x","in":"1s","at":"2030-01-01T00:00:00Z"}`, "invalid_request", "in"},
		{"wake", `{"agentId":"support","message":"x","expiresAfter":"0s"}`, "invalid_request", "expiresAfter"},
		{"wake", `{"agentId":"support","message":"` + strings.Repeat("x", 600_000) + `"}`, "too_large", ""},
	} {
		_, err := call[any](s, c.op, []byte(c.body))
		wantCode(t, err, errcodeOf(c.code), c.field)
	}
}
