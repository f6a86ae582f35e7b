package ticks

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/registry"
	"github.com/toolbus/toolbus/services/scheduler/internal/configs"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
	"github.com/toolbus/toolbus/services/scheduler/internal/mailbox"
	"github.com/toolbus/toolbus/services/scheduler/internal/plan"
	"github.com/toolbus/toolbus/services/scheduler/internal/timers"
	"github.com/toolbus/toolbus/services/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const tenant = "acme"

// replica is a scheduler without delivery, whose runs can be ended at a step.
type replica struct {
	bucket *jobs.Bucket
	mail   *mailbox.Store
}

func startReplica(t *testing.T, ns *natstest.Server, at func(step, entry string)) replica {
	t.Helper()
	const wait = time.Second
	nc := ns.Connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := jobs.Open(t.Context(), js, 1)
	if err != nil {
		t.Fatal(err)
	}
	tm, err := timers.Open(t.Context(), js, 1, wait, prometheus.NewCounter(prometheus.CounterOpts{Name: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	mail, err := mailbox.Open(t.Context(), js, 1, bucket)
	if err != nil {
		t.Fatal(err)
	}
	cfgs := configs.New(nc, telemetry.Discard())
	planner := plan.New(bucket, tm, "epoch", time.Now)
	rec := plan.NewReconciler(planner, cfgs, telemetry.Discard())
	if err := cfgs.Watch(rec.Changed); err != nil {
		t.Fatal(err)
	}
	r := New(nc, cfgs, bucket, planner, mail, Options{Wait: wait, JobTimeout: 5 * time.Second, Grace: time.Minute, CatchUp: 4, Checks: 16},
		telemetry.Discard(), NewMetrics(prometheus.NewRegistry()))
	r.at = at
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { rec.Run(ctx) })
	wg.Go(func() { tm.Consume(ctx, 16, func(m jetstream.Msg, yield func()) { r.Handle(ctx, m, yield) }) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return replica{bucket, mail}
}

type service interface {
	Start(context.Context) error
	Stop(context.Context) error
}

func start(t *testing.T, s service, err error) {
	t.Helper()
	if err == nil {
		err = s.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
}

func startServices(t *testing.T, ns *natstest.Server) {
	t.Helper()
	re, st := registry.DefaultConfig(), state.DefaultConfig()
	re.Bus, st.Bus = ns.Config(), ns.Config()
	r, err := registry.New(re, telemetry.Discard(), prometheus.NewRegistry())
	start(t, r, err)
	s, err := state.New(st, telemetry.Discard(), prometheus.NewRegistry())
	start(t, s, err)
}

func apply(t *testing.T, nc *nats.Conn, a message.AgentConfig) {
	t.Helper()
	raw, err := json.Marshal(message.Config{Agents: []message.AgentConfig{a}})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Retry(t.Context(), nc, subject.Registry(tenant, "apply"), message.RegistryApply{Config: raw}, nil); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// counter is a worker, as any program may be one, whose check counts its runs in
// the store and wakes with the count.
//
// The function returned tells how often a tick was run.
func counter(t *testing.T, nc *nats.Conn, tool string) (runs func() map[string]int) {
	t.Helper()
	var mu sync.Mutex
	count := map[string]int{}
	_, err := nc.Subscribe(subject.WorkerJob("*", "*", tool), func(m *nats.Msg) {
		go func() {
			a, err := subject.ParseAgent(m.Subject)
			var req message.JobRequest
			if err == nil {
				err = json.Unmarshal(m.Data, &req)
			}
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			count[req.TickID]++
			mu.Unlock()
			var v message.StoreValue
			get := message.StoreGet{Key: "offset " + req.JobID}
			if err := bus.Retry(context.Background(), nc, subject.Store(a.Tenant, a.Agent, tool, "get"), get, &v); err != nil {
				t.Error(err)
				return
			}
			n, _ := strconv.Atoi(v.Value)
			next := strconv.Itoa(n + 1)
			out := message.JobReply{Action: message.ActionWake, WakeMessage: next, LogSummary: "counted",
				StoreWrites: []message.StoreWrite{{Key: get.Key, Value: &next}}}
			if req.JobTypeID == "silent" {
				out.Action, out.WakeMessage = message.ActionNone, ""
			}
			b, _ := json.Marshal(out)
			_ = m.Respond(b)
		}()
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(count)
	}
}

// A replica that dies at any step: the run's writes and its wake happen once, and
// the next slot comes.
func TestDeathAtEveryStep(t *testing.T) {
	ns := natstest.Start(t)
	startServices(t, ns)
	nc := ns.Connect()
	runs := counter(t, nc, "Counter")

	jobSteps := []string{"claimed", "ran", "committed", "published", "settled", "recorded", "armed"}
	scheduleSteps := []string{"claimed", "published", "recorded", "armed"}
	silentSteps := []string{"claimed", "ran", "committed", "recorded"}
	cfg := message.AgentConfig{AgentID: "support", Tools: map[string]json.RawMessage{"Counter": json.RawMessage("{}")}}
	for _, s := range jobSteps {
		cfg.ToolJobs = append(cfg.ToolJobs, message.ToolJob{JobID: "job-" + s, ToolName: "Counter", JobTypeID: "count", Cron: "@every 1s"})
	}
	for _, s := range silentSteps {
		cfg.ToolJobs = append(cfg.ToolJobs, message.ToolJob{JobID: "silent-" + s, ToolName: "Counter", JobTypeID: "silent", Cron: "@every 1s"})
	}
	for _, s := range scheduleSteps {
		cfg.Scheduler = append(cfg.Scheduler, message.ScheduleEntry{ID: "schedule-" + s, TaskMessage: "go", Cron: "@every 1s"})
	}
	var mu sync.Mutex
	visits := map[string]int{}
	die := func(step, entry string) {
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasSuffix(entry, "-"+step) {
			return
		}
		// The second time, so that something has been done before.
		if visits[entry]++; visits[entry] == 2 {
			panic("the replica dies here")
		}
	}
	r := startReplica(t, ns, die)
	startReplica(t, ns, die)
	apply(t, nc, cfg)

	names := []string{}
	for _, j := range cfg.ToolJobs {
		names = append(names, j.JobID)
	}
	for _, s := range cfg.Scheduler {
		names = append(names, s.ID)
	}
	record := func(entry string) jobs.Record {
		rec, _, err := r.bucket.Record(t.Context(), jobs.Key(tenant, "support", entry))
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	for _, n := range names {
		eventually(t, n+" goes on", func() bool {
			mu.Lock()
			died := visits[n] >= 2
			mu.Unlock()
			ran := 0
			for _, h := range record(n).History {
				if h.Outcome == message.SlotRan {
					ran++
				}
			}
			return died && ran >= 4
		})
	}
	// Nothing more begins; then what there is must fit together.
	apply(t, nc, message.AgentConfig{AgentID: "support"})
	for _, n := range names {
		eventually(t, n+" ends", func() bool { rec := record(n); return rec.Gone && !rec.Running(time.Now()) })
	}
	stored, _, err := r.mail.List(t.Context(), tenant, "support", false, 1, 10<<20)
	if err != nil {
		t.Fatal(err)
	}
	woken := map[string][]string{}
	ids := map[string]bool{}
	for _, w := range stored {
		if ids[w.Wake.WakeID] {
			t.Errorf("wake %s twice", w.Wake.WakeID)
		}
		ids[w.Wake.WakeID] = true
		woken[w.Wake.Source.ID] = append(woken[w.Wake.Source.ID], w.Wake.Message)
	}
	for _, n := range names {
		hist := map[string]bool{}
		ran := 0
		for _, h := range record(n).History {
			if hist[h.TickID] {
				t.Errorf("%s: slot %s twice in the history", n, h.TickID)
			}
			hist[h.TickID] = true
			switch h.Outcome {
			case message.SlotRan:
				ran++
			case message.SlotFailed:
				t.Errorf("%s: %+v", n, h)
			}
		}
		switch {
		case strings.HasPrefix(n, "schedule-"):
			if len(woken[n]) != ran {
				t.Errorf("%s: %d wakes of %d runs", n, len(woken[n]), ran)
			}
		default:
			var v message.StoreValue
			if err := bus.Retry(t.Context(), nc, subject.Store(tenant, "support", "Counter", "get"), message.StoreGet{Key: "offset " + n}, &v); err != nil {
				t.Fatal(err)
			}
			if v.Value != strconv.Itoa(ran) {
				t.Errorf("%s: offset %s after %d runs", n, v.Value, ran)
			}
			if strings.HasPrefix(n, "job-") {
				for i, m := range woken[n] {
					if m != strconv.Itoa(i+1) {
						t.Errorf("%s: woken with %q", n, woken[n])
						break
					}
				}
				if len(woken[n]) != ran {
					t.Errorf("%s: %d wakes of %d runs", n, len(woken[n]), ran)
				}
			}
		}
	}
	for tick, n := range runs() {
		entry, _, _ := strings.Cut(tick, ".")
		_, step, _ := strings.Cut(entry, "-")
		if n > 1 && step != "claimed" && step != "ran" {
			t.Errorf("%s was run %d times, though the first had committed", tick, n)
		}
	}
	if t.Failed() {
		for _, n := range names {
			t.Logf("%s: %+v", n, record(n))
		}
	}
}
