package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sender plays the scheduler.
type sender struct {
	t  *testing.T
	nc *nats.Conn
}

// asked is one request's answers, as they come.
type asked struct {
	t   *testing.T
	sub *nats.Subscription
}

func (s sender) send(agent, body string) asked {
	s.t.Helper()
	sub, err := s.nc.SubscribeSync(s.nc.NewInbox())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := s.nc.PublishRequest(subject.AgentWake("acme", agent), sub.Subject, []byte(body)); err != nil {
		s.t.Fatal(err)
	}
	return asked{s.t, sub}
}

func (s sender) wake(agent, id string) asked {
	s.t.Helper()
	b, err := json.Marshal(message.Wake{WakeID: id, Mode: message.WakeChat, Message: "m " + id, CreatedAt: "2026-01-01T00:00:00Z", Attempt: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.send(agent, string(b))
}

// next is the next answer as it stands on the wire.
func (a asked) next() string {
	a.t.Helper()
	m, err := a.sub.NextMsg(5 * time.Second)
	if errors.Is(err, nats.ErrNoResponders) {
		return "absent"
	}
	if err != nil {
		a.t.Fatalf("no answer: %v", err)
	}
	if err := bus.ReplyError(m); err != nil {
		return err.Error()
	}
	return string(m.Data)
}

func (a asked) want(answers ...string) {
	a.t.Helper()
	for _, w := range answers {
		if got := a.next(); !strings.Contains(got, w) {
			a.t.Errorf("got %s, want %s", got, w)
		}
	}
}

const (
	yes  = `{"accepted":true}`
	busy = `{"accepted":false,"retryAfter":`
	work = `{"accepted":false,"inProgress":true}`
)

func newClient(t *testing.T, nc *nats.Conn, name string) *Client {
	t.Helper()
	c, err := New(nc, "acme", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func receive(t *testing.T, c *Client, h WakeHandler, opts ...WakesOption) *Wakes {
	t.Helper()
	w, err := c.Wakes(t.Context(), h, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := w.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return w
}

func begin(t *testing.T) (*natstest.Server, sender, *nats.Conn) {
	t.Helper()
	srv := natstest.Start(t)
	return srv, sender{t, srv.Connect()}, srv.Connect()
}

// listening waits until the server knows the subscriptions of nc.
func listening(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if err := nc.FlushTimeout(5 * time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestTheHandlerDecides(t *testing.T) {
	_, s, nc := begin(t)
	var mu sync.Mutex
	failures := map[string]string{}
	receive(t, newClient(t, nc, "bot"), func(_ context.Context, w *Wake) error {
		switch w.WakeID {
		case "busy":
			return Busy(90 * time.Second)
		case "wrapped":
			return fmt.Errorf("later: %w", Busy(time.Second))
		case "fails":
			return errors.New("no model")
		case "panics":
			panic("ouch")
		case "exits":
			runtime.Goexit()
		}
		if w.Message != "m "+w.WakeID || w.Attempt != 1 {
			t.Errorf("got %+v", w)
		}
		return nil
	}, OnWakeError(func(w *Wake, err error) {
		mu.Lock()
		defer mu.Unlock()
		failures[w.WakeID] = err.Error()
	}))
	listening(t, nc)
	for id, want := range map[string]string{
		"ok": yes, "busy": busy + `"1m30s"}`, "wrapped": busy + `"1s"}`, "fails": "internal: no model",
		"panics": "internal: the handler panicked: ouch", "exits": "internal: the handler ended without an answer",
	} {
		for range 2 { // what was not accepted is handled again
			if got := s.wake("bot", id).next(); got != want {
				t.Errorf("%s: got %s, want %s", id, got, want)
			}
		}
	}
	for body, want := range map[string]string{
		`{}`: "wakeId", `nonsense`: "JSON", `[]`: "JSON object", ``: "wakeId", `{"wakeId":5}`: "wakeId", `null`: "null",
	} {
		if got := s.send("bot", body).next(); !strings.HasPrefix(got, "invalid_request") || !strings.Contains(got, want) {
			t.Errorf("%s: got %s", body, got)
		}
	}
	s.wake("other", "x").want("absent")
	mu.Lock()
	defer mu.Unlock()
	for id, want := range map[string]string{"busy": "busy", "fails": "no model", "panics": "ouch", "exits": "without an answer", "": "JSON"} {
		if !strings.Contains(failures[id], want) && id != "" || id == "" && failures[""] == "" {
			t.Errorf("%q: reported %q", id, failures[id])
		}
	}
}

func TestRepeatsAreHandledOnce(t *testing.T) {
	_, s, nc := begin(t)
	var runs atomic.Int64
	began, release := make(chan struct{}, 1), make(chan error)
	receive(t, newClient(t, nc, "bot"), func(context.Context, *Wake) error {
		runs.Add(1)
		began <- struct{}{}
		return <-release
	})
	listening(t, nc)
	first := s.wake("bot", "w1")
	<-began
	second := s.wake("bot", "w1")
	second.want(work)
	release <- errors.New("not now")
	first.want("internal: not now")
	second.want("internal: not now")

	third := s.wake("bot", "w1") // comes again, and is new
	<-began
	fourth := s.wake("bot", "w1")
	fourth.want(work)
	release <- nil
	third.want(yes)
	fourth.want(yes)
	s.wake("bot", "w1").want(yes)
	if runs.Load() != 2 {
		t.Errorf("handled %d times", runs.Load())
	}
}

func TestALongHandlerSaysSo(t *testing.T) {
	_, s, nc := begin(t)
	release := make(chan struct{})
	receive(t, newClient(t, nc, "bot"), func(context.Context, *Wake) error { <-release; return nil },
		func(o *wakesOptions) { o.interim = time.Millisecond })
	listening(t, nc)
	a := s.wake("bot", "w1")
	a.want(work)
	close(release)
	a.want(yes)
}

func TestAcceptFirst(t *testing.T) {
	_, s, nc := begin(t)
	release, failed := make(chan struct{}), make(chan error, 1)
	receive(t, newClient(t, nc, "bot"), func(context.Context, *Wake) error { <-release; return errors.New("too late") },
		AcceptFirst(), OnWakeError(func(_ *Wake, err error) { failed <- err }))
	listening(t, nc)
	s.wake("bot", "w1").want(yes)
	s.wake("bot", "w1").want(yes)
	close(release)
	if err := <-failed; err.Error() != "too late" {
		t.Errorf("got %v", err)
	}
}

func TestNoMoreAtOnceThanWished(t *testing.T) {
	_, s, nc := begin(t)
	var now, most atomic.Int64
	began, release := make(chan struct{}, 2), make(chan struct{})
	receive(t, newClient(t, nc, "bot"), func(context.Context, *Wake) error {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		began <- struct{}{}
		<-release
		now.Add(-1)
		return nil
	}, Concurrency(2))
	listening(t, nc)
	var handled []asked
	for i := range 4 { // two run, two wait
		handled = append(handled, s.wake("bot", fmt.Sprint("w", i)))
	}
	s.wake("bot", "w5").want(busy)
	<-began
	<-began
	close(release)
	for _, a := range handled {
		a.want(yes)
	}
	if most.Load() != 2 {
		t.Errorf("%d at once", most.Load())
	}
	if _, err := newClient(t, nc, "x").Wakes(t.Context(), nil, Concurrency(0)); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("concurrency 0: %v", err)
	}
}

func TestReadyAtStartAndAfterAReconnect(t *testing.T) {
	srv := natstest.Start(t)
	slow := srv.Connect(nats.ReconnectWait(time.Second), nats.ReconnectJitter(0, 0)) // the listener is back first
	s := sender{t, srv.Connect()}
	ready, err := s.nc.SubscribeSync(subject.AgentReady("acme", "*"))
	if err != nil {
		t.Fatal(err)
	}
	listening(t, s.nc)
	for _, name := range []string{"a", "b"} { // of one connection
		receive(t, newClient(t, slow, name), func(context.Context, *Wake) error { return nil })
	}
	for range 2 {
		seen := map[string]bool{}
		for len(seen) < 2 {
			m, err := ready.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatalf("ready of %v only: %v", seen, err)
			}
			a, err := subject.ParseAgent(m.Subject)
			if err != nil {
				t.Fatal(err)
			}
			seen[a.Agent] = true
			s.wake(a.Agent, "w").want(yes) // and it is true
		}
		srv.Down()
		srv.Up()
	}
}

func TestReplicasShareTheWakes(t *testing.T) {
	srv, s, one := begin(t)
	two := srv.Connect()
	var runs [2]atomic.Int64
	for i, nc := range []*nats.Conn{one, two} {
		receive(t, newClient(t, nc, "bot"), func(context.Context, *Wake) error { runs[i].Add(1); return nil })
		listening(t, nc)
	}
	for i := range 40 {
		s.wake("bot", fmt.Sprint("w", i)).want(yes)
	}
	if a, b := runs[0].Load(), runs[1].Load(); a+b != 40 || a == 0 || b == 0 {
		t.Errorf("%d and %d", a, b)
	}
}

func TestManyAgentsOfOneProcess(t *testing.T) {
	_, s, nc := begin(t)
	for i := range 200 {
		name := fmt.Sprint("bot", i)
		receive(t, newClient(t, nc, name), func(_ context.Context, w *Wake) error {
			if w.WakeID != name {
				return errors.New("another's")
			}
			return nil
		})
	}
	listening(t, nc)
	for i := range 200 {
		name := fmt.Sprint("bot", i)
		s.wake(name, name).want(yes)
	}
}

func TestStopFinishesWhatRuns(t *testing.T) {
	_, s, nc := begin(t)
	began, release := make(chan struct{}, 1), make(chan struct{})
	w := receive(t, newClient(t, nc, "bot"), func(context.Context, *Wake) error { began <- struct{}{}; <-release; return nil })
	listening(t, nc)
	a := s.wake("bot", "w1")
	<-began
	stopped := make(chan error, 1)
	go func() { stopped <- w.Stop(t.Context()) }()
	<-w.closed
	s.wake("bot", "w2").want("absent")
	close(release)
	if err := errors.Join(<-stopped, w.Stop(t.Context())); err != nil {
		t.Error(err)
	}
	a.want(yes)
}

func TestStopHasADeadline(t *testing.T) {
	_, s, nc := begin(t)
	began := make(chan struct{}, 1)
	w := receive(t, newClient(t, nc, "bot"), func(ctx context.Context, _ *Wake) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	listening(t, nc)
	a := s.wake("bot", "w1")
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Stop(ctx); err != nil {
		t.Error(err)
	}
	a.want(busy + `"100ms"}`) // the handler was cut off: no failure of its own
}

func TestStopOnAClosedConnection(t *testing.T) {
	srv := natstest.Start(t)
	nc := srv.Connect()
	w := receive(t, newClient(t, nc, "bot"), func(context.Context, *Wake) error { return nil })
	nc.Close()
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMemoryForgetsTheOldestAccepted(t *testing.T) {
	m := newMemory(3)
	running := &receipt{}
	m.put("running", running)
	for i := range 10 {
		m.put(fmt.Sprint(i), &receipt{accepted: true})
		if _, ok := m.get("0"); !ok { // asked for each time: never the oldest
			t.Fatalf("forgotten at %d", i)
		}
	}
	for id, want := range map[string]bool{"running": true, "0": true, "8": false, "9": true, "1": false} {
		if _, ok := m.get(id); ok != want {
			t.Errorf("%s: %v", id, ok)
		}
	}
	m.drop("running")
	m.drop("nothing")
	if m.age.Len() != len(m.byID) || len(m.byID) != 2 {
		t.Errorf("%d, %d", m.age.Len(), len(m.byID))
	}
}
