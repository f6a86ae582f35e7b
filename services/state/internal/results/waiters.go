package results

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// call identifies a submitted call.
type call struct{ tenant, agent, id string }

// waiters are the requests that wait for a result. One costs an entry and a
// timer, no goroutine and no slot of the server: it is answered from the event
// that the result was recorded, or when its time is up. Events are at most
// once, so it also looks from time to time.
type waiters struct {
	nc   *nats.Conn
	sub  *nats.Subscription
	look func(ctx context.Context, c call, sure bool) (reply any, done bool, err error)
	log  telemetry.Logger
	max  int

	base   context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	count  int
	calls  map[call][]*waiter
}

type waiter struct {
	call
	reply    string
	deadline time.Time
	timer    *time.Timer
}

const (
	lookEvery = 5 * time.Second
	// firstLook is when a waiter first asks whether its call is under way at
	// all: its submit may have been sent just before.
	firstLook = time.Second
)

func newWaiters(nc *nats.Conn, limit int, look func(context.Context, call, bool) (any, bool, error), log telemetry.Logger) (*waiters, error) {
	w := &waiters{nc: nc, look: look, log: log, max: limit, calls: map[call][]*waiter{}}
	w.base, w.cancel = context.WithCancel(context.Background())
	var err error
	if w.sub, err = nc.Subscribe(subject.ChangesResult("*", "*", "*"), w.hear); err != nil {
		w.cancel()
		return nil, err
	}
	return w, nil
}

// enter registers a request that waits.
func (w *waiters) enter(c call, wait time.Duration, reply string) (*waiter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return nil, errcode.New(errcode.Unavailable, "the service is stopping")
	case w.count >= w.max:
		err := errcode.New(errcode.Overloaded, "%d requests wait for results already", w.count)
		err.Details = &errcode.Details{RetryAfter: "1s"}
		return nil, err
	}
	x := &waiter{call: c, reply: reply, deadline: time.Now().Add(wait)}
	x.timer = time.AfterFunc(min(wait, firstLook), func() { w.wake(x) })
	w.calls[c] = append(w.calls[c], x)
	w.count++
	return x, nil
}

// leave takes a waiter out; it reports whether the caller is now the one to
// answer it.
func (w *waiters) leave(x *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.calls[x.call]
	i := slices.Index(list, x)
	if i < 0 {
		return false
	}
	x.timer.Stop()
	w.count--
	if len(list) == 1 {
		delete(w.calls, x.call)
	} else {
		w.calls[x.call] = slices.Delete(list, i, i+1)
	}
	return true
}

// run starts f unless everything ends.
func (w *waiters) run(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.wg.Go(f)
	}
}

// hear takes the event that a result was recorded.
func (w *waiters) hear(m *nats.Msg) {
	tenant, agent, id, err := subject.ParseChangesResult(m.Subject)
	if err != nil {
		return // not one of ours: anybody with the permission may publish there
	}
	c := call{tenant, agent, id}
	w.mu.Lock()
	waiting := len(w.calls[c]) > 0
	w.mu.Unlock()
	if waiting {
		w.run(func() { w.told(c) })
	}
}

// told answers everybody who waits for a call that has ended.
func (w *waiters) told(c call) {
	reply, done, err := w.look(w.base, c, false)
	if err != nil || !done {
		return // each one's next look finds it
	}
	w.mu.Lock()
	list := slices.Clone(w.calls[c])
	w.mu.Unlock()
	for _, x := range list {
		w.answer(x, reply, nil)
	}
}

// wake looks again for one waiter, and ends its wait when it is time.
func (w *waiters) wake(x *waiter) {
	w.run(func() {
		reply, done, err := w.look(w.base, x.call, true)
		left := time.Until(x.deadline)
		if done || left <= 0 || errors.Is(err, errcode.NotFound) {
			w.answer(x, reply, err)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if slices.Contains(w.calls[x.call], x) {
			x.timer.Reset(min(left, lookEvery))
		}
	})
}

func (w *waiters) answer(x *waiter, reply any, err error) {
	if !w.leave(x) {
		return // somebody else has
	}
	m, err := bus.ReplyMsg(x.reply, reply, err)
	if err == nil {
		err = w.nc.PublishMsg(m)
	}
	if err != nil {
		w.log.Warn("result not sent", "tenant", x.tenant, "agent", x.agent, "call", x.id, "err", err)
	}
}

// close sends those who wait to another replica.
func (w *waiters) close() {
	w.mu.Lock()
	w.closed = true
	var left []*waiter
	for _, list := range w.calls {
		left = append(left, list...)
	}
	w.mu.Unlock()
	w.cancel()
	for _, x := range left {
		w.answer(x, nil, errcode.New(errcode.Unavailable, "the service is stopping"))
	}
	w.wg.Wait()
	_ = w.sub.Unsubscribe() // an error means that the connection is gone
	if w.nc.IsConnected() {
		_ = w.nc.FlushTimeout(time.Second)
	}
}
