//go:build crash

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// However often NATS and all services are killed within a tick, every line of
// the inbox wakes the agent once, in order, and the job's offset is right.
func TestJobSurvivesKillsOfEverything(t *testing.T) {
	t.Parallel()
	s := watchInbox(t)
	// Where in a tick to kill; "" is at any time, also while the one before is
	// made up for.
	points := []string{"get", "commit", "outbox", "settle", "", "mailbox", "wake", "", "commit", ""}
	hit := 0
	for _, at := range points {
		if s.reach(at) {
			hit++
		}
		time.Sleep(rand.N(6 * time.Millisecond)) // a random point of the step
		s.up.Stop(syscall.SIGKILL)
		s.startUp()
	}
	s.finish()
	if t.Logf("%d of %d kills where they were meant", hit, len(points)); hit < len(points)/2 {
		t.Errorf("only %d of %d kills were where they were meant", hit, len(points))
	}
}

// The same when the worker that runs the check is killed.
func TestJobSurvivesKillsOfItsWorker(t *testing.T) {
	t.Parallel()
	s := watchInbox(t)
	for i := range 4 {
		if !s.reach("get") { // the check has begun
			t.Fatal("the job does not run")
		}
		time.Sleep(time.Duration(i) * 400 * time.Microsecond)
		s.worker.Stop(syscall.SIGKILL)
		s.startWorker()
		if !s.reach("settle") { // a run has come to its end
			t.Fatal("the job does not run any more")
		}
	}
	s.finish()
	failed := 0
	for _, slot := range s.history() {
		if slot.Outcome == message.SlotFailed {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no run was interrupted")
	}
}

// inboxWatch is a system whose agent has a job that watches its inbox every
// second, a writer that appends lines, and the agent.
type inboxWatch struct {
	t          *testing.T
	data, addr string
	up, worker *harness.Process
	nc         *nats.Conn // of the writer and the observer
	agent      *nats.Conn

	stopWriter context.CancelFunc
	writing    sync.WaitGroup
	steps      chan string // what the job has done lately, as seen on the bus

	mu      sync.Mutex
	written int
	told    int
	order   []string          // wakes by their id, as they came first
	wakes   map[string]string // messages by id
}

const inboxLine = "line %d"

func watchInbox(t *testing.T) *inboxWatch {
	s := &inboxWatch{t: t, data: t.TempDir(), addr: freeAddr(t), steps: make(chan string, 64), wakes: map[string]string{}}
	s.startUp()
	s.startWorker()
	cli := harness.CLI{Bin: toolbus(t), URL: s.up.URL}
	cli.OK(t, "apply", "-t", "acme", file(t, "agents.json", `{"agentId":"support","tools":{"readInbox":{}},
		"toolJobs":[{"jobId":"watch","toolName":"readInbox","jobTypeId":"inbox_new_lines","cron":"* * * * * *"}]}`))
	s.nc, s.agent = s.connect(nil), s.connect(s.ready)
	s.observe()
	if _, err := s.agent.Subscribe(subject.AgentWake("acme", "support"), s.wake); err != nil {
		t.Fatal(err)
	}
	s.ready(s.agent)
	ctx, stop := context.WithCancel(context.Background())
	s.stopWriter = stop
	s.writing.Go(func() { s.write(ctx) })
	t.Cleanup(func() { stop(); s.writing.Wait() })
	return s
}

func (s *inboxWatch) startUp() {
	s.t.Helper()
	s.up = harness.Up(s.t, toolbus(s.t), s.data, "--listen", s.addr, "--job-timeout", "1s")
}

func (s *inboxWatch) startWorker() {
	s.t.Helper()
	s.worker = harness.Start(s.t, builder.Build(s.t, "../examples/cmd/examples-worker"), "--server", s.up.URL)
}

// connect opens a connection that outlasts kills; again is called when it is back.
func (s *inboxWatch) connect(again func(*nats.Conn)) *nats.Conn {
	s.t.Helper()
	nc, err := bus.Connect(s.t.Context(), bus.Config{Server: s.up.URL}, "test", nats.ReconnectHandler(func(nc *nats.Conn) {
		if again != nil {
			again(nc)
		}
	}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

func (s *inboxWatch) ready(nc *nats.Conn) {
	if err := nc.Publish(subject.AgentReady("acme", "support"), nil); err != nil {
		s.t.Log("ready:", err) // killed again; the next connection says it
	}
}

// write appends lines, each once, as long as not too many wait to be told: a
// wake names up to 20.
func (s *inboxWatch) write(ctx context.Context) {
	area := files.New(s.nc, "acme")
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		behind := s.written - s.told
		s.mu.Unlock()
		if behind >= 15 {
			continue
		}
		// One request with one operation id, tried again until it succeeds.
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		_, err := area.Append(try, "inbox.txt", fmt.Appendf(nil, inboxLine+"\n", n))
		cancel()
		if err != nil {
			s.t.Error(err)
			return
		}
		s.mu.Lock()
		s.written = n
		s.mu.Unlock()
		n++
	}
}

// wake is the agent: it accepts everything, and notes each wake once.
func (s *inboxWatch) wake(m *nats.Msg) {
	var w message.Wake
	if err := json.Unmarshal(m.Data, &w); err != nil || w.WakeID == "" {
		s.t.Errorf("not a wake: %s", m.Data)
		return
	}
	s.mu.Lock()
	if text, again := s.wakes[w.WakeID]; !again {
		s.order = append(s.order, w.WakeID)
		s.wakes[w.WakeID] = w.Message
		s.told += strings.Count(w.Message, "\n- ")
	} else if text != w.Message {
		s.t.Errorf("wake %s comes again with another text: %q, then %q", w.WakeID, text, w.Message)
	}
	s.mu.Unlock()
	if err := m.Respond([]byte(`{"accepted":true}`)); err != nil {
		s.t.Log("accept:", err) // it comes again
	}
	s.step("wake")
}

// observe tells what the job does: its requests to the store, and its wakes.
func (s *inboxWatch) observe() {
	s.t.Helper()
	for to, name := range map[string]string{
		subject.Store("acme", "support", "readInbox", "*"): "",
		subject.ChangesMailbox("acme", "support"):          "mailbox",
	} {
		if _, err := s.nc.Subscribe(to, func(m *nats.Msg) {
			if name == "" {
				s.step(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
			} else {
				s.step(name)
			}
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
}

// step notes a step; nobody need care.
func (s *inboxWatch) step(name string) {
	select {
	case s.steps <- name:
	default:
	}
}

// reach waits for a step, and reports whether it came; "" is any time.
func (s *inboxWatch) reach(step string) bool {
	if step == "" {
		time.Sleep(rand.N(1200 * time.Millisecond))
		return true
	}
	for len(s.steps) > 0 {
		<-s.steps // old ones
	}
	late := time.After(10 * time.Second)
	for {
		select {
		case got := <-s.steps:
			if got == step {
				return true
			}
		case <-late:
			s.t.Logf("no %q within 10 s", step)
			return false
		}
	}
}

// finish lets the job come to rest, and checks what it told.
func (s *inboxWatch) finish() {
	t := s.t
	t.Helper()
	s.stopWriter()
	s.writing.Wait()
	info, _, err := files.New(s.nc, "acme").Stat(t.Context(), "inbox.txt")
	if err != nil {
		t.Fatal(err)
	}
	content, _, _, err := files.New(s.nc, "acme").Read(t.Context(), "inbox.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	for i, l := range lines {
		if l != fmt.Sprintf(inboxLine, i+1) {
			t.Fatalf("line %d of the inbox is %q", i+1, l)
		}
	}
	s.until("the offset is the file's size", func() bool {
		offset, _, err := store.New(s.nc, "acme", "support", "readInbox").Get(t.Context(), "inbox_offset")
		return err == nil && offset == strconv.FormatInt(info.Size, 10)
	})
	seen := s.history()[0].TickID
	s.until("two more runs, and an empty mailbox", func() bool {
		h := s.history()
		if i := slices.IndexFunc(h, func(e message.SlotEntry) bool { return e.TickID == seen }); i < 2 {
			return false
		}
		var r message.SchedulerWakeList
		s.ask("wakes", message.SchedulerWakes{AgentID: "support"}, &r)
		return len(r.Wakes) == 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	var told []string
	for _, id := range s.order {
		told = append(told, strings.Split(s.wakes[id], "\n- ")[1:]...)
	}
	if !slices.Equal(told, lines) {
		t.Errorf("%d lines were written, and %d told:\n%q", len(lines), len(told), told)
	}
	t.Logf("%d lines in %d wakes", len(told), len(s.order))
	if offset, _, err := store.New(s.nc, "acme", "support", "readInbox").Get(t.Context(), "inbox_offset"); err != nil || offset != strconv.FormatInt(info.Size, 10) {
		t.Errorf("the offset is %s, the file has %d bytes: %v", offset, info.Size, err)
	}
}

func (s *inboxWatch) until(what string, holds func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.t.Fatalf("never: %s; %d lines written, %d told; history %+v", what, s.written, s.told, s.history())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *inboxWatch) ask(op string, in, out any) {
	s.t.Helper()
	if err := bus.Retry(s.t.Context(), s.nc, subject.Scheduler("acme", op), in, out); err != nil {
		s.t.Fatal(err)
	}
}

// history is how the job's last slots ended, the newest first.
func (s *inboxWatch) history() []message.SlotEntry {
	s.t.Helper()
	var r message.SchedulerHistory
	s.ask("history", message.SchedulerEntryRef{AgentID: "support", EntryID: "watch"}, &r)
	return r.Slots
}
