package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// allWakes follows the cursors; pages is how many there were.
func (s *system) allWakes(req message.SchedulerWakes) (list []message.PendingWake, pages int) {
	s.t.Helper()
	for {
		out := must[message.SchedulerWakeList](s, "wakes", req)
		list, pages = append(list, out.Wakes...), pages+1
		if req.Cursor = out.Cursor; req.Cursor == "" {
			return list, pages
		}
	}
}

// A wake that was sent for later is seen until it is accepted: first with its time,
// then in the mailbox.
func TestWakesForLaterAreListed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"), agentWith("sales"))
	send := func(agent string, w message.SchedulerWake) string {
		w.AgentID = agent
		return must[message.SchedulerWakeSent](s, "wake", w).WakeID
	}
	at := time.Now().Add(300 * 24 * time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
	far := send("support", message.SchedulerWake{Message: "far", At: at})
	send("sales", message.SchedulerWake{Message: "other", In: "1h"})
	now := send("support", message.SchedulerWake{Message: "now"})
	list, _ := s.allWakes(message.SchedulerWakes{AgentID: "support"})
	if len(list) != 2 || list[0].Wake.WakeID != now || list[0].Due != "" ||
		list[1].Wake.WakeID != far || list[1].Due != at || list[1].AgentID != "support" || list[1].Wake.Message != "far" {
		t.Errorf("%+v", list)
	}
	if all, _ := s.allWakes(message.SchedulerWakes{}); len(all) != 3 {
		t.Errorf("%d wakes of the tenant", len(all))
	}
	soon := send("support", message.SchedulerWake{Message: "soon", In: "1s"})
	eventually(t, "the soon one is in the mailbox", func() bool {
		list, _ := s.allWakes(message.SchedulerWakes{AgentID: "support"})
		return len(list) == 3 && list[1].Wake.WakeID == soon && list[1].Due == ""
	})
	_, err := call[message.SchedulerWakeList](s, "wakes", message.SchedulerWakes{Cursor: "x7"})
	wantCode(t, err, errcode.InvalidRequest, "cursor")
}

// However much waits, and however it is written, it is listed, in pages that fit.
func TestLongListsComeInPages(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"))
	control := strings.Repeat("\x01", 70_000) // six times as long in JSON
	for range 3 {
		s.wake("support", "", control)
		must[message.SchedulerWakeSent](s, "wake", message.SchedulerWake{AgentID: "support", Message: control, In: "1h"})
	}
	for i := range 300 {
		s.wake("support", "", fmt.Sprint("short ", i))
	}
	list, pages := s.allWakes(message.SchedulerWakes{})
	if len(list) != 306 || pages < 4 {
		t.Errorf("%d wakes in %d pages", len(list), pages)
	}
	seen := map[string]bool{}
	for _, w := range list {
		if seen[w.Wake.WakeID] {
			t.Errorf("%s twice", w.Wake.WakeID)
		}
		seen[w.Wake.WakeID] = true
	}

	var entries []message.ScheduleEntry
	for i := range 900 {
		entries = append(entries, schedule(fmt.Sprintf("entry-%s-%d", strings.Repeat("n", 48), i), "0 0 1 1 *", "x"))
	}
	for i := range 4 {
		s.apply(agentWith(fmt.Sprint("agent", i), entries...))
	}
	names := map[string]bool{}
	var req message.SchedulerList
	for pages = 0; ; pages++ {
		out := must[message.SchedulerEntries](s, "list", req)
		for _, e := range out.Entries {
			names[e.AgentID+e.EntryID] = true
		}
		if req.Cursor = out.Cursor; req.Cursor == "" {
			break
		}
	}
	if len(names) != 3600 || pages < 1 {
		t.Errorf("%d entries in %d pages", len(names), pages+1)
	}
}

// A wake may be delivered until it expires, not until the second before is over: a
// short time would be none.
func TestExpiryIsExact(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	s.apply(agentWith("support"))
	sent := time.Now()
	must[message.SchedulerWakeSent](s, "wake", message.SchedulerWake{AgentID: "support", Message: "x", ExpiresAfter: "1m"})
	expires, err := time.Parse(time.RFC3339, s.wakesIn("")[0].Wake.ExpiresAt)
	if err != nil || expires.Before(sent.Add(time.Minute)) {
		t.Errorf("sent %s, expires %s, %v", sent, expires, err)
	}
}
