package scheduler_test

import (
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
)

// NATS goes away and comes back: schedules, configuration changes and wakes go
// on by themselves.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startScheduler(t, s.ns)
	startScheduler(t, s.ns)
	a := s.listen("support", accept)
	s.apply(agentWith("support", schedule("often", "@every 1s", "before")))
	eventually(t, "it runs", func() bool { return len(a.accepted()) > 0 })
	s.ns.Down()
	s.ns.Up()
	eventually(t, "the connection is back", s.nc.IsConnected)
	n := len(a.accepted())
	eventually(t, "it runs again", func() bool { return len(a.accepted()) > n+1 })
	s.apply(agentWith("support", schedule("often", "@every 1s", "after")))
	eventually(t, "the change is seen", func() bool {
		w := a.accepted()
		return w[len(w)-1].Message == "after"
	})
	ids := map[string]string{}
	for _, w := range a.accepted() { // an answer that NATS lost is asked for again, under the same id
		if id := ids[w.ScheduledAt]; id != "" && id != w.WakeID {
			t.Errorf("slot %s has the wakes %s and %s", w.ScheduledAt, id, w.WakeID)
		}
		ids[w.ScheduledAt] = w.WakeID
	}
	for _, h := range s.history("support", "often") {
		if h.Outcome == message.SlotFailed {
			t.Errorf("%+v", h)
		}
	}
}
