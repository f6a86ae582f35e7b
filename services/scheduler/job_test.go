package scheduler_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/scheduler"
)

// work answers job requests for a tool; any program on NATS may.
func (s *system) work(tool string, check func(message.JobRequest) (message.JobReply, error)) {
	s.t.Helper()
	_, err := s.nc.QueueSubscribe(subject.WorkerJob("*", "*", tool), subject.CallQueue(tool), func(m *nats.Msg) {
		go func() {
			var req message.JobRequest
			if err := json.Unmarshal(m.Data, &req); err != nil {
				s.t.Error(err)
			}
			out, err := check(req)
			reply, err := bus.ReplyMsg(m.Reply, out, err)
			if err != nil {
				s.t.Error(err)
				return
			}
			_ = s.nc.PublishMsg(reply)
		}()
	})
	if err == nil {
		err = s.nc.Flush()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func withJobs(list ...message.ToolJob) message.AgentConfig {
	a := message.AgentConfig{AgentID: "support", ToolJobs: list, Tools: map[string]json.RawMessage{}}
	for _, j := range list {
		a.Tools[j.ToolName] = json.RawMessage("{}")
	}
	return a
}

func job(id, tool, cron string) message.ToolJob {
	return message.ToolJob{JobID: id, ToolName: tool, JobTypeID: "check", Cron: cron}
}

func TestJobDecides(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startState(t, s.ns)
	startScheduler(t, s.ns)
	value := "7"
	s.work("Mail", func(r message.JobRequest) (message.JobReply, error) {
		switch r.JobID {
		case "none":
			return message.JobReply{Action: message.ActionNone, LogSummary: "nothing new"}, nil
		case "writes":
			return message.JobReply{Action: message.ActionNone, StoreWrites: []message.StoreWrite{{Key: "k", Value: &value}}}, nil
		case "wakes":
			return message.JobReply{Action: message.ActionWake, WakeMessage: "mail from <a@b>", ChatID: "c1"}, nil
		case "alone":
			return message.JobReply{Action: message.ActionWakeStateless, WakeMessage: "alone"}, nil
		case "odd":
			return message.JobReply{Action: "dance"}, nil
		}
		return message.JobReply{}, errcode.New(errcode.InvalidRequest, "no job type %q", r.JobTypeID)
	})
	a := s.listen("support", accept)
	const never = "0 0 1 1 *"
	alone := job("alone", "Mail", never)
	alone.ChatID, alone.ExpiresAfter = "c2", "1h"
	s.apply(withJobs(job("none", "Mail", never), job("writes", "Mail", never), job("wakes", "Mail", never), alone,
		job("odd", "Mail", never), job("unknown", "Mail", never)))
	run := func(id string) message.SlotEntry {
		tr := must[message.SchedulerTriggered](s, "trigger", message.SchedulerEntryRef{AgentID: "support", EntryID: id})
		var h []message.SlotEntry
		eventually(t, id+" has run", func() bool { h = s.history("support", id); return len(h) == 1 })
		if h[0].TickID != tr.TickID || h[0].Attempt != 1 || h[0].ScheduledAt == "" || h[0].EndedAt == "" {
			t.Errorf("%s: %+v", id, h[0])
		}
		return h[0]
	}
	if h := run("none"); h.Outcome != message.SlotRan || h.Action != message.ActionNone || h.Summary != "nothing new" || h.WakeID != "" {
		t.Errorf("%+v", h)
	}
	if h := run("writes"); h.Outcome != message.SlotRan || h.Action != message.ActionNone {
		t.Errorf("%+v", h)
	}
	var v message.StoreValue
	if err := bus.Request(t.Context(), s.nc, subject.Store(tenant, "support", "Mail", "get"), message.StoreGet{Key: "k"}, &v); err != nil || v.Value != "7" {
		t.Errorf("%+v, %v", v, err)
	}
	if h := run("wakes"); h.Action != message.ActionWake || h.WakeID == "" {
		t.Errorf("%+v", h)
	}
	if h := run("alone"); h.Action != message.ActionWakeStateless {
		t.Errorf("%+v", h)
	}
	eventually(t, "two wakes", func() bool { return len(a.accepted()) == 2 })
	for _, w := range a.accepted() {
		switch w.Message {
		case "mail from <a@b>":
			if w.Mode != message.WakeChat || w.ChatID != "c1" || w.ExpiresAt != "" || w.Source != (message.WakeSource{Kind: "toolJob", ID: "wakes", Tool: "Mail"}) {
				t.Errorf("%+v", w)
			}
		case "alone":
			if w.Mode != message.WakeStateless || w.ChatID != "c2" || w.ExpiresAt == "" {
				t.Errorf("%+v", w)
			}
		default:
			t.Errorf("%+v", w)
		}
	}
	if h := run("odd"); h.Outcome != message.SlotFailed || !strings.Contains(h.Error, "dance") {
		t.Errorf("%+v", h)
	}
	if h := run("unknown"); h.Outcome != message.SlotFailed || !strings.Contains(h.Error, "no job type") {
		t.Errorf("%+v", h)
	}
	if len(a.accepted()) != 2 {
		t.Errorf("%d wakes", len(a.accepted()))
	}
}

// A worker of another make may answer anything: a run whose answer is not as it
// should be fails, and changes nothing.
func TestOddAnswersOfWorkers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startState(t, s.ns)
	startScheduler(t, s.ns)
	odd := map[string]string{
		"nothing": ``, "text": `hello`, "array": `[1]`, "null": `null`, "types": `{"action":7}`, "no-action": `{}`,
		"empty-wake": `{"action":"wake"}`, "blank-wake": `{"action":"wakeStateless","wakeMessage":" "}`,
		"control": `{"action":"wake","wakeMessage":"m","chatId":"a\u0000b"}`,
		"long":    `{"action":"wake","wakeMessage":"m","chatId":"` + strings.Repeat("c", 257) + `"}`,
		"forgot":  `{"action":"none","storeWrites":[{"key":"keep"}]}`,
		"number":  `{"action":"none","storeWrites":[{"key":"keep","value":5}]}`,
		"mixed":   `{"action":"wake","storeWrites":[{"key":"keep","value":null}]}`,
		"large":   `{"action":"none","storeWrites":[{"key":"keep","value":"` + strings.Repeat("x", 900_000) + `"}]}`,
	}
	const good = `{"action":"wake","wakeMessage":"m","chatId":"` + "😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀" + `"}`
	_, err := s.nc.Subscribe(subject.WorkerJob("*", "*", "Odd"), func(m *nats.Msg) {
		var req message.JobRequest
		if err := json.Unmarshal(m.Data, &req); err != nil {
			t.Error(err)
		}
		answer, ok := odd[req.JobID]
		if !ok {
			answer = good
		}
		_ = m.Respond([]byte(answer))
		_ = m.Respond([]byte(good)) // a second answer is nobody's
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Request(t.Context(), s.nc, subject.Store(tenant, "support", "Odd", "set"), message.StoreSet{Key: "keep", Value: "v"}, nil); err != nil {
		t.Fatal(err)
	}
	a := s.listen("support", accept)
	list := []message.ToolJob{job("good", "Odd", "0 0 1 1 *")}
	for id := range odd {
		list = append(list, job(id, "Odd", "0 0 1 1 *"))
	}
	s.apply(withJobs(list...))
	for _, j := range list {
		must[message.SchedulerTriggered](s, "trigger", message.SchedulerEntryRef{AgentID: "support", EntryID: j.JobID})
	}
	for id := range odd {
		eventually(t, id+" has ended", func() bool { return len(s.history("support", id)) == 1 })
		if h := s.history("support", id)[0]; h.Outcome != message.SlotFailed || h.Error == "" {
			t.Errorf("%s: %+v", id, h)
		}
	}
	eventually(t, "the good one's wake", func() bool { return len(a.accepted()) == 1 })
	if w := a.accepted()[0]; w.Source.ID != "good" || len(w.ChatID) != 128 {
		t.Errorf("%+v", w)
	}
	var v message.StoreValue
	if err := bus.Request(t.Context(), s.nc, subject.Store(tenant, "support", "Odd", "get"), message.StoreGet{Key: "keep"}, &v); err != nil || v.Value != "v" {
		t.Errorf("%+v, %v", v, err)
	}
}

// A job without a worker fails within its slot, and runs once there is one; a
// retryable error is tried again.
func TestJobIsRetried(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startState(t, s.ns)
	startScheduler(t, s.ns)
	s.apply(withJobs(job("nobody", "Gone", "@every 1s"), job("flaky", "Flaky", "0 0 1 1 *")))
	eventually(t, "a failed slot", func() bool {
		h := s.history("support", "nobody")
		return len(h) > 0 && h[0].Outcome == message.SlotFailed && strings.Contains(h[0].Error, "unavailable")
	})
	s.work("Gone", func(message.JobRequest) (message.JobReply, error) {
		return message.JobReply{Action: message.ActionNone}, nil
	})
	eventually(t, "a slot that ran", func() bool { return s.history("support", "nobody")[0].Outcome == message.SlotRan })

	s.work("Flaky", func(r message.JobRequest) (message.JobReply, error) {
		if r.Attempt < 2 {
			return message.JobReply{}, errcode.New(errcode.Overloaded, "not now")
		}
		return message.JobReply{Action: message.ActionNone}, nil
	})
	must[message.SchedulerTriggered](s, "trigger", message.SchedulerEntryRef{AgentID: "support", EntryID: "flaky"})
	eventually(t, "the second try", func() bool { return len(s.history("support", "flaky")) == 1 })
	if h := s.history("support", "flaky")[0]; h.Outcome != message.SlotRan || h.Attempt != 2 {
		t.Errorf("%+v", h)
	}
}

// A slow job, also one that runs on start, never runs beside itself; slots that
// pass meanwhile are skipped, and a trigger is refused.
func TestNoTwoRuns(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startState(t, s.ns)
	var mu sync.Mutex
	running, most, runs := 0, 0, 0
	release := make(chan struct{})
	s.work("Slow", func(message.JobRequest) (message.JobReply, error) {
		mu.Lock()
		running++
		runs++
		first := runs == 1
		most = max(most, running)
		mu.Unlock()
		if first {
			<-release
		}
		mu.Lock()
		running--
		mu.Unlock()
		return message.JobReply{Action: message.ActionNone}, nil
	})
	j := job("slow", "Slow", "@every 1s")
	j.RunOnStart = true
	s.apply(withJobs(j))
	startScheduler(t, s.ns)
	startScheduler(t, s.ns)
	ref := message.SchedulerEntryRef{AgentID: "support", EntryID: "slow"}
	eventually(t, "a run", func() bool { mu.Lock(); defer mu.Unlock(); return runs == 1 })
	_, err := call[message.SchedulerTriggered](s, "trigger", ref)
	wantCode(t, err, errcode.Conflict, "")
	// Another's slots pass meanwhile, for longer than a claim lasts unless prolonged.
	s.apply(agentWith("witness", schedule("often", "@every 1s", "x")))
	eventually(t, "slots have passed", func() bool { return len(s.history("witness", "often")) >= 5 })
	close(release)
	eventually(t, "a skipped slot and a run after it", func() bool {
		h := s.history("support", "slow")
		for i := 1; i < len(h); i++ {
			if h[i].Outcome == message.SlotSkipped && h[i-1].Outcome == message.SlotRan {
				return true
			}
		}
		return false
	})
	mu.Lock()
	defer mu.Unlock()
	if most != 1 {
		t.Errorf("%d runs at once", most)
	}
}

// After an outage, many overdue entries are made up for once each, paced; "skip"
// leaves them; the history says what was missed.
func TestMissedSlots(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	short := func(c *scheduler.Config) { c.MissedAfter, c.CatchUp = 3*time.Second, 4 }
	clock := &scheduler.Clock{}
	first := startWithClock(t, s.ns, clock, short)
	const n = 20
	var entries []message.ScheduleEntry
	for i := range n {
		e := schedule(fmt.Sprint("e", i), "@every 2s", fmt.Sprint("text ", i))
		if i%2 == 1 {
			e.Missed = "skip"
		}
		entries = append(entries, e)
	}
	s.apply(agentWith("support", entries...))
	list := func() []message.SchedulerEntry {
		return must[message.SchedulerEntries](s, "list", message.SchedulerList{}).Entries
	}
	eventually(t, "all have run", func() bool {
		for _, e := range list() {
			if e.Last == nil {
				return false
			}
		}
		return true
	})
	stop(t, first)
	clock.Forward(8) // the outage
	a := s.listen("support", accept)
	startWithClock(t, s.ns, clock, short)
	eventually(t, "all go on, and know what they missed", func() bool {
		for i := range n {
			h := s.history("support", fmt.Sprint("e", i))
			missed, ran := false, false
			for _, x := range h { // newest first
				ran = ran || x.Outcome == message.SlotRan && !missed
				missed = missed || x.Outcome == message.SlotMissed
			}
			if !missed || !ran {
				return false
			}
		}
		return true
	})
	onePerSlotOfEach(t, a.accepted())
	for i := range n {
		slots := map[string]bool{}
		for _, h := range s.history("support", fmt.Sprint("e", i)) {
			if slots[h.TickID] {
				t.Errorf("slot %s twice", h.TickID)
			}
			slots[h.TickID] = true
		}
	}
}

func onePerSlotOfEach(t *testing.T, wakes []message.Wake) {
	t.Helper()
	seen := map[string]bool{}
	for _, w := range wakes {
		if seen[w.WakeID] {
			t.Errorf("wake %s twice", w.WakeID)
		}
		seen[w.WakeID] = true
	}
}

// A worker that vanishes in the middle of a run is found by its missing beats, long
// before the run's time is over, and the slot is tried again. One that knows
// nothing of beats is waited for.
func TestVanishedWorker(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startState(t, s.ns)
	startScheduler(t, s.ns)
	release := make(chan struct{})
	_, err := s.nc.Subscribe(subject.WorkerJob("*", "*", "Mail"), func(m *nats.Msg) {
		var req message.JobRequest
		if err := json.Unmarshal(m.Data, &req); err != nil {
			t.Error(err)
		}
		who, err := subject.ParseAgent(m.Subject)
		if err != nil {
			t.Error(err)
		}
		switch {
		case req.JobID == "silent":
			go func() { <-release; _ = m.Respond([]byte(`{"action":"none"}`)) }()
		case req.Attempt == 1: // beats once, and is gone
			_ = s.nc.Publish(subject.AgentProgress(who.Tenant, who.Agent, m.Header.Get(message.HeaderCallID)), []byte(`{"beat":true}`))
		default:
			_ = m.Respond([]byte(`{"action":"none"}`))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s.apply(withJobs(job("killed", "Mail", "0 0 1 1 *"), job("silent", "Mail", "0 0 1 1 *")))
	began := time.Now()
	for _, id := range []string{"killed", "silent"} {
		must[message.SchedulerTriggered](s, "trigger", message.SchedulerEntryRef{AgentID: "support", EntryID: id})
	}
	eventually(t, "the second try", func() bool { return len(s.history("support", "killed")) == 1 })
	if h := s.history("support", "killed")[0]; h.Outcome != message.SlotRan || h.Attempt != 2 {
		t.Errorf("%+v", h)
	}
	if d := time.Since(began); d > 20*time.Second { // a run may take a minute
		t.Errorf("the vanished worker was found after %s", d)
	}
	if h := s.history("support", "silent"); len(h) != 0 {
		t.Errorf("a worker that does not beat: %+v", h)
	}
	close(release)
	eventually(t, "the silent worker's answer", func() bool { return len(s.history("support", "silent")) == 1 })
	if h := s.history("support", "silent")[0]; h.Outcome != message.SlotRan || h.Attempt != 1 {
		t.Errorf("%+v", h)
	}
}

// However many of an agent's jobs hang, schedules are on time, and so are jobs of
// other agents, also of the same tool.
func TestHangingJobsHoldUpNobody(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	startState(t, s.ns)
	startScheduler(t, s.ns, func(c *scheduler.Config) { c.Parallel = 8 })
	s.work("Mail", func(r message.JobRequest) (message.JobReply, error) {
		if r.JobID != "quick" {
			<-t.Context().Done()
		}
		return message.JobReply{Action: message.ActionNone}, nil
	})
	var hang []message.ToolJob
	for i := range 40 {
		hang = append(hang, job(fmt.Sprint("hangs-", i), "Mail", "@every 1s"))
	}
	s.apply(withJobs(hang...))
	eventually(t, "they have begun", func() bool {
		_, err := call[message.SchedulerTriggered](s, "trigger", message.SchedulerEntryRef{AgentID: "support", EntryID: "hangs-0"})
		return err != nil // it runs, or a trigger waits
	})
	quick := withJobs(job("quick", "Mail", "@every 1s"))
	quick.AgentID, quick.Scheduler = "sales", []message.ScheduleEntry{schedule("often", "@every 1s", "x")}
	s.apply(quick)
	began := time.Now()
	eventually(t, "another agent's", func() bool {
		return len(s.history("sales", "quick")) >= 3 && len(s.history("sales", "often")) >= 3
	})
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("three slots took %s", d)
	}
	for _, id := range []string{"quick", "often"} {
		for _, h := range s.history("sales", id) {
			if h.Outcome != message.SlotRan {
				t.Errorf("%s: %+v", id, h)
			}
		}
	}
}
