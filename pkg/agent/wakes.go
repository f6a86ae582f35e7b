package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Wake is what an agent is woken with.
type Wake = message.Wake

// WakeHandler deals with one wake. Returning nil accepts it, which takes it off
// the agent's mailbox; Busy has it come again later, as often as it is returned;
// any other error, and a panic, are failures: the wake comes again after growing
// pauses, and is given up after too many (it is kept among the dead). ctx ends
// when Stop runs out of time; an error after that is no failure.
type WakeHandler func(ctx context.Context, w *Wake) error

// Busy is what a WakeHandler returns when it has no time now: the wake comes
// again after the given time.
func Busy(retryAfter time.Duration) error { return &busyError{retryAfter} }

type busyError struct{ after time.Duration }

func (e *busyError) Error() string { return fmt.Sprintf("busy, again after %s", e.after) }

// WakesOption is one choice of Wakes.
type WakesOption func(*wakesOptions)

type wakesOptions struct {
	concurrency int
	queue       int
	first       bool
	failed      func(*Wake, error)
	interim     time.Duration
	remember    int
}

// Concurrency is how many wakes are handled at once; 16 by default. As many
// again wait for their turn, and the agent is busy beyond that.
func Concurrency(n int) WakesOption { return func(o *wakesOptions) { o.concurrency = n } }

// AcceptFirst accepts a wake before it is handled: what the handler returns
// then only goes to OnWakeError, and a wake is lost when the process dies while
// it is handled.
func AcceptFirst() WakesOption { return func(o *wakesOptions) { o.first = true } }

// OnWakeError hears of each wake whose handler failed, panicked or was busy,
// and of messages that are no wakes (with an empty Wake).
func OnWakeError(fn func(w *Wake, err error)) WakesOption {
	return func(o *wakesOptions) { o.failed = fn }
}

const (
	firstInterim = time.Second      // until the scheduler hears that a handler is at work
	nextInterim  = 10 * time.Second // and again
	remembered   = 4096             // accepted wakes of one agent whose repeats are dropped
	crowded      = time.Second      // retryAfter when too many wakes wait
	leaving      = 100 * time.Millisecond
)

// Wakes are an agent's wakes, being received.
type Wakes struct {
	c       *Client
	handler WakeHandler
	o       wakesOptions
	sub     *nats.Subscription
	slots   chan struct{}

	base   context.Context // of the handlers
	cancel context.CancelFunc
	status chan nats.Status
	closed chan struct{} // no more messages are delivered
	work   sync.WaitGroup

	mu       sync.Mutex
	stopping bool
	waiting  int
	known    *memory

	stopOnce sync.Once
	stopErr  error
}

// Wakes receives the agent's wakes until Stop. Replicas of an agent share them.
// It says that the agent is ready, now and after each reconnect, upon which
// wakes that waited come in order.
//
// Delivery is at least once: a wake that comes again, within this process, is
// not handled again once it was accepted, and a repeat of one that is being
// handled waits for the same end. While a handler runs the scheduler is told
// so, however long it takes.
//
// Values of ctx reach the handlers, its end does not: use Stop.
func (c *Client) Wakes(ctx context.Context, handler WakeHandler, opts ...WakesOption) (*Wakes, error) {
	o := wakesOptions{concurrency: 16, interim: firstInterim, remember: remembered}
	for _, f := range opts {
		f(&o)
	}
	if o.concurrency < 1 {
		return nil, errcode.Field("concurrency", "must be at least 1")
	}
	o.queue = o.concurrency
	w := &Wakes{
		c: c, handler: handler, o: o, slots: make(chan struct{}, o.concurrency),
		closed: make(chan struct{}), known: newMemory(o.remember),
	}
	w.base, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	w.sub, err = c.nc.QueueSubscribe(subject.AgentWake(c.tenant, c.agent), c.agent, w.receive)
	if err != nil {
		w.cancel()
		return nil, errcode.Wrap(errcode.Unavailable, err, "subscribe wakes: %v", err)
	}
	w.sub.SetClosedHandler(func(string) { close(w.closed) })
	w.status = c.nc.StatusChanged(nats.CONNECTED)
	w.work.Go(w.stayReady)
	return w, nil
}

// stayReady says that the agent listens, whenever it begins to.
func (w *Wakes) stayReady() {
	w.ready()
	for s := range w.status {
		if s == nats.CONNECTED {
			w.ready()
		}
	}
}

func (w *Wakes) ready() {
	if err := w.c.nc.Publish(subject.AgentReady(w.c.tenant, w.c.agent), []byte("{}")); err != nil {
		w.report(&Wake{}, fmt.Errorf("say ready: %w", err)) // the next reconnect says it
	}
}

// Stop takes no more wakes, and waits for the handlers that run until ctx ends;
// then their ctx ends, and what they do not finish comes again. Safe to call
// twice.
func (w *Wakes) Stop(ctx context.Context) error {
	w.stopOnce.Do(func() { w.stopErr = w.stop(ctx) })
	return w.stopErr
}

func (w *Wakes) stop(ctx context.Context) error {
	defer w.cancel()
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	w.c.nc.RemoveStatusListener(w.status)
	if err := w.sub.Drain(); err == nil {
		select { // what was on its way is answered
		case <-w.closed:
		case <-ctx.Done():
		}
	} else if !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		return err
	}
	done := make(chan struct{})
	go func() { w.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		w.cancel()
		select {
		case <-done:
		case <-time.After(time.Second):
			return errcode.New(errcode.Timeout, "wakes of %s are still being handled", w.c)
		}
	}
	if w.c.nc.IsConnected() {
		flush, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer done()
		_ = w.c.nc.FlushWithContext(flush) // the last replies
	}
	return nil
}

// receive is the subscription's callback: it must not wait.
func (w *Wakes) receive(m *nats.Msg) {
	var wake Wake
	if err := bus.DecodeBody(m.Data, &wake); err == nil && wake.WakeID == "" {
		w.refuse(m, errcode.Field("wakeId", "is required"))
		return
	} else if err != nil {
		w.refuse(m, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r, seen := w.known.get(wake.WakeID); {
	case seen && r.accepted:
		w.reply(m.Reply, message.WakeReply{Accepted: true})
	case seen: // at work: whoever asks again hears the end too
		r.replies = append(r.replies, m.Reply)
		w.reply(m.Reply, message.WakeReply{InProgress: true})
	case w.stopping:
		w.reply(m.Reply, message.WakeReply{RetryAfter: leaving.String()})
	case w.waiting >= w.o.concurrency+w.o.queue:
		w.reply(m.Reply, message.WakeReply{RetryAfter: crowded.String()})
	default:
		r := &receipt{replies: []string{m.Reply}}
		if w.o.first {
			r.accepted = true
			w.reply(m.Reply, message.WakeReply{Accepted: true})
		}
		w.known.put(wake.WakeID, r)
		w.waiting++
		ctx := w.base
		if m.Header != nil {
			ctx = bus.WithTrace(ctx, m.Header.Get(message.HeaderTrace))
		}
		w.work.Go(func() { w.handle(ctx, &wake, r) })
	}
}

func (w *Wakes) refuse(m *nats.Msg, err error) {
	w.report(&Wake{}, err)
	w.fail(m.Reply, err)
}

// fail says that a wake was not dealt with because of an error.
func (w *Wakes) fail(to string, err error) {
	if to == "" {
		return
	}
	if r, err := bus.ReplyMsg(to, nil, err); err == nil {
		_ = w.c.nc.PublishMsg(r) // unheard, the wake comes again
	}
}

// handle deals with one wake and answers everybody who asked.
func (w *Wakes) handle(ctx context.Context, wake *Wake, r *receipt) {
	stop := w.interims(r)
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
	}
	err := ctx.Err()
	if err == nil {
		err = w.run(ctx, wake)
	}
	stop()
	w.end(wake, r, err)
}

// run calls the handler, in a goroutine of its own: runtime.Goexit must not end
// the answer.
func (w *Wakes) run(ctx context.Context, wake *Wake) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("the handler ended without an answer")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
			}
			done <- err
		}()
		err = w.handler(ctx, wake)
	}()
	return <-done
}

func (w *Wakes) end(wake *Wake, r *receipt, err error) {
	if err != nil {
		w.report(wake, err)
	}
	answer := w.answer(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
	if r.accepted {
		return
	}
	for _, to := range r.replies {
		answer(to)
	}
	r.replies = nil
	if r.accepted = err == nil; !r.accepted {
		w.known.drop(wake.WakeID) // it is new when it comes again
	}
}

// answer is what the scheduler hears of a handler's end.
func (w *Wakes) answer(err error) func(to string) {
	var busy *busyError
	switch {
	case err == nil:
		return func(to string) { w.reply(to, message.WakeReply{Accepted: true}) }
	case errors.As(err, &busy):
		return func(to string) { w.reply(to, message.WakeReply{RetryAfter: max(busy.after, 0).String()}) }
	case w.base.Err() != nil: // it was cut off
		return func(to string) { w.reply(to, message.WakeReply{RetryAfter: leaving.String()}) }
	}
	text, _, _ := strings.Cut(err.Error(), "\n") // a panic's stack goes to OnWakeError only
	failed := errcode.New(errcode.Internal, "%.200s", text)
	return func(to string) { w.fail(to, failed) }
}

// interims tell everybody who asked for a wake that it is being handled.
func (w *Wakes) interims(r *receipt) (stop func()) {
	if w.o.first {
		return func() {}
	}
	done := make(chan struct{})
	w.work.Go(func() {
		t := time.NewTimer(w.o.interim)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
			}
			w.mu.Lock()
			for _, to := range r.replies {
				w.reply(to, message.WakeReply{InProgress: true})
			}
			w.mu.Unlock()
			t.Reset(nextInterim)
		}
	})
	return func() { close(done) }
}

func (w *Wakes) reply(to string, r message.WakeReply) {
	if to == "" {
		return
	}
	if b, err := json.Marshal(r); err == nil {
		_ = w.c.nc.Publish(to, b) // unheard, the wake comes again
	}
}

func (w *Wakes) report(wake *Wake, err error) {
	if w.o.failed != nil {
		w.o.failed(wake, err)
	}
}
