package entry

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

func one(t *rapid.T, s message.ScheduleEntry) Entry {
	list, err := Of("acme", message.AgentConfig{AgentID: "support", Scheduler: []message.ScheduleEntry{s}})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d entries, %v", len(list), err)
	}
	return list[0]
}

func TestRevisionIsWhatItDoes(t *testing.T) {
	off := false
	base := message.AgentConfig{AgentID: "support", Timezone: "Europe/Berlin",
		Scheduler: []message.ScheduleEntry{{ID: "s", Cron: "0 8 * * *", TaskMessage: "report"}},
		ToolJobs:  []message.ToolJob{{JobID: "j", Cron: "*/5 * * * *", ToolName: "Mail", JobTypeID: "new"}}}
	of := func(change func(*message.AgentConfig)) []Entry {
		c := base
		c.Scheduler, c.ToolJobs = append([]message.ScheduleEntry(nil), base.Scheduler...), append([]message.ToolJob(nil), base.ToolJobs...)
		change(&c)
		list, err := Of("acme", c)
		if err != nil || len(list) != 2 {
			t.Fatalf("%d entries, %v", len(list), err)
		}
		for _, e := range list {
			if subject.CheckName("revision", e.Revision) != nil || len(e.Revision) != 12 {
				t.Errorf("revision %q", e.Revision)
			}
		}
		return list
	}
	was := of(func(*message.AgentConfig) {})
	for name, c := range map[string]struct {
		change             func(*message.AgentConfig)
		newDoes, newTiming bool // of the schedule
	}{
		"spelling":     {func(c *message.AgentConfig) { c.Scheduler[0].Cron = " 0  8 * * * " }, false, false},
		"another tool": {func(c *message.AgentConfig) { c.ToolJobs[0].ToolName = "Other" }, false, false},
		"off":          {func(c *message.AgentConfig) { c.Scheduler[0].Enabled = &off }, false, false},
		"default said": {func(c *message.AgentConfig) { c.Scheduler[0].WakeMode = "chat" }, false, false},
		"own zone":     {func(c *message.AgentConfig) { c.Scheduler[0].Timezone = "Europe/Berlin" }, false, false},
		"message":      {func(c *message.AgentConfig) { c.Scheduler[0].TaskMessage = "other" }, true, false},
		"jitter":       {func(c *message.AgentConfig) { c.Scheduler[0].Jitter = "5s" }, true, false},
		"cron":         {func(c *message.AgentConfig) { c.Scheduler[0].Cron = "1 8 * * *" }, true, true},
		"agent's zone": {func(c *message.AgentConfig) { c.Timezone = "UTC" }, true, true},
	} {
		is := of(c.change)
		if (is[0].Revision != was[0].Revision) != c.newDoes || (is[0].Timing != was[0].Timing) != c.newTiming {
			t.Errorf("%s: revision %s → %s, timing %s → %s", name, was[0].Revision, is[0].Revision, was[0].Timing, is[0].Timing)
		}
	}
	if was[0].Revision == was[1].Revision {
		t.Error("two entries of one revision")
	}
}

func TestUnreadableEntriesAreLeftOut(t *testing.T) {
	list, err := Of("acme", message.AgentConfig{AgentID: "support", Scheduler: []message.ScheduleEntry{
		{ID: "a", Cron: "@fortnightly", TaskMessage: "x"}, {ID: "b", Cron: "@daily", TaskMessage: "x"},
		{ID: "c", Cron: "@daily", Timezone: "Mars/Base", TaskMessage: "x"}, {ID: "d", Cron: "@daily", Jitter: "soon", TaskMessage: "x"},
	}})
	if err == nil || len(list) != 1 || list[0].ID != "b" {
		t.Errorf("%+v, %v", list, err)
	}
}

// Latest and Between agree with walking over every slot.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := one(t, message.ScheduleEntry{ID: "e", TaskMessage: "x", Timezone: "Europe/Berlin",
			Cron:   rapid.SampledFrom([]string{"@every 1s", "@every 90s", "*/5 * * * *", "30 2 * * *", "0 8 * * 1", "* * * * * *"}).Draw(t, "cron"),
			Jitter: rapid.SampledFrom([]string{"", "500ms", "10m"}).Draw(t, "jitter")})
		from := time.Unix(rapid.Int64Range(1_774_000_000, 1_776_000_000).Draw(t, "from"), 0)
		now := from.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "seconds")*rapid.SampledFrom([]int{1, 20}).Draw(t, "unit")) * time.Second)
		var want time.Time
		count := 0
		for s := e.After(from); !s.After(now); s = e.After(s) {
			if due := e.Due(s); due.Before(s) || e.Jitter > 0 && !due.Before(s.Add(e.Jitter)) {
				t.Fatalf("slot %s due %s", s, due)
			}
			count++
			if e.Due(s).After(now) {
				break
			}
			want = s
		}
		got, ok := e.Latest(from, now)
		if ok != !want.IsZero() {
			t.Fatalf("Latest(%s, %s) = %s, %v; want %s", from, now, got, ok, want)
		}
		if e.Jitter == 0 && ok && !got.Equal(want) {
			t.Fatalf("Latest(%s, %s) = %s; want %s", from, now, got, want)
		}
		if ok && (!got.After(from) || e.Due(got).After(now)) {
			t.Fatalf("Latest(%s, %s) = %s, due %s", from, now, got, e.Due(got))
		}
		if e.Jitter == 0 && count < countLimit {
			if s := e.Between(from, now.Add(1)); s.Count != count || count > 0 && (!s.First.Equal(e.After(from)) || !s.Last.Equal(want)) {
				t.Fatalf("Between(%s, %s) = %+v; want %d to %s", from, now, s, count, want)
			}
		}
	})
}
