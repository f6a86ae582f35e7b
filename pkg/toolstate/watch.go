package toolstate

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Scope is what a watch covers: the tenant's documents, those of a chat or a
// namespace, or the one document of both. "" stands for all.
type Scope struct {
	ChatID    string
	Namespace string
}

func (s Scope) check() error {
	if s.Namespace != "" {
		if err := subject.CheckName("namespace", s.Namespace); err != nil {
			return err
		}
	}
	if s.ChatID != "" {
		return subject.CheckFree("chatId", s.ChatID)
	}
	return nil
}

func (s Scope) subject(tenant string) string {
	ns, token := "*", "*"
	if s.Namespace != "" {
		ns = s.Namespace
	}
	if s.ChatID != "" {
		token = subject.Escape(s.ChatID)
	}
	return subject.ChangesToolState(tenant, ns, token)
}

// WatchOption is a choice of a Watch.
type WatchOption func(*watchOptions)

type watchOptions struct{ current bool }

// Current tells the documents that are there first, each as written.
func Current() WatchOption { return func(o *watchOptions) { o.current = true } }

// Watch tells every change from its return on, until ctx ends or Stop.
//
// The changes of one document come in order: never an older state after a newer.
// Events travel at most once; the watch finds out when it missed some, after a
// lost connection or because its reader was slow, and then tells what became of
// each document meanwhile: the last state of those written, and which of those
// it told are gone. A document that came and went in between is not told. What
// was gone by the end of its known life counts as expired. Beside that it
// compares every minute, or less often when there is much to compare.
//
// It needs no JetStream: it subscribes to the tenant's change events and sends
// the requests list and all. It keeps the names of the documents it covers, at
// most MaxWatched (else too_large), and at most 1,024 events.
func (c *Client) Watch(ctx context.Context, scope Scope, opts ...WatchOption) (*Watcher, error) {
	if err := subject.CheckTenant(c.tenant); err != nil {
		return nil, err
	}
	if err := scope.check(); err != nil {
		return nil, err
	}
	var o watchOptions
	for _, f := range opts {
		f(&o)
	}
	w := &Watcher{
		c: c, scope: scope, subject: scope.subject(c.tenant), ledger: newLedger(),
		changes: make(chan Change), queue: make(chan *nats.Msg, queued), missed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if err := w.start(ctx, o); err != nil {
		return nil, err
	}
	return w, nil
}

const queued = 1024 // events that wait for the reader, at most 64 KiB each by default

const (
	askTimeout = 3 * time.Second
	soonAgain  = 2 * time.Second // what replicas that were behind did not list
	regularly  = time.Minute
	least      = time.Second // between comparisons because events were missed
	effort     = 100         // a comparison may take one part in so many of the time
)

// Watcher tells changes. Its methods may be called from any goroutine.
type Watcher struct {
	c       *Client
	scope   Scope
	subject string

	changes chan Change
	queue   chan *nats.Msg
	missed  chan struct{} // an event found the queue full

	ctx    context.Context //nolint:containedctx // the watch's life
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before changes is closed

	// The rest belongs to run.
	ledger *ledger
	fails  int       // comparisons in a row
	again  bool      // one more is due soon after the next
	last   time.Time // comparison's end
	timer  *time.Timer
}

// Changes are the changes, in order. It is closed when the watch has ended.
func (w *Watcher) Changes() <-chan Change { return w.changes }

// Err is why the watch ended by itself, once Changes is closed; nil when ctx or
// Stop ended it.
func (w *Watcher) Err() error {
	select {
	case <-w.done:
		return w.err
	default:
		return nil
	}
}

// Stop ends the watch and waits for that.
func (w *Watcher) Stop() {
	w.cancel()
	<-w.done
}

func (w *Watcher) start(ctx context.Context, o watchOptions) error {
	nc := w.c.nc
	status := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	sub, err := nc.Subscribe(w.subject, func(m *nats.Msg) {
		select {
		case w.queue <- m:
		default:
			signal(w.missed)
		}
	})
	if err != nil {
		nc.RemoveStatusListener(status)
		return errcode.Wrap(errcode.Unavailable, err, "watch: %v", err)
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	end := func() {
		w.cancel()
		_ = sub.Unsubscribe() // fails only when the connection is closed
		nc.RemoveStatusListener(status)
	}
	if err := w.flush(); err != nil {
		end()
		return err
	}
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), w.subject) {
		end()
		return errcode.Wrap(errcode.NotAllowed, err, "the connection may not hear of changes: %v", err)
	}
	first := soonAgain
	if !o.current {
		entries, err := w.list(w.c.List)
		if err == nil {
			err = w.ledger.baseline(entries)
		}
		if err != nil {
			end()
			return err
		}
	} else {
		first, w.again = 0, true
	}
	w.timer = time.NewTimer(first)
	go func() {
		defer close(w.changes)
		defer close(w.done) // before it: by the end of the changes Err tells
		defer end()
		defer w.timer.Stop()
		w.err = w.run(status)
	}()
	return nil
}

// run tells changes until the watch ends.
func (w *Watcher) run(status <-chan nats.Status) error {
	for {
		var err error
		select {
		case <-w.ctx.Done():
			return nil
		case m := <-w.queue:
			err = w.event(m)
		case <-w.missed:
			w.soon()
		case s, open := <-status:
			if !open || s == nats.CLOSED {
				err = errClosed
			}
			w.soon()
		case <-w.timer.C:
			err = w.check()
		}
		if err != nil {
			if w.ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

var errClosed = errcode.New(errcode.Unavailable, "the connection is closed")

// soon compares as soon as may be, and once more.
func (w *Watcher) soon() {
	w.again = true
	w.timer.Reset(max(0, least-time.Since(w.last)))
}

// tell waits for the reader.
func (w *Watcher) tell(ch Change) error {
	select {
	case w.changes <- ch:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (w *Watcher) event(m *nats.Msg) error {
	e, ok := parseEvent(m)
	if !ok {
		return nil
	}
	v, gap, err := w.ledger.event(e, time.Now())
	if err != nil {
		return err
	}
	if gap {
		w.soon()
	}
	switch v {
	case tell:
		return w.tell(e.Change)
	case read:
		return w.read(document{e.Namespace, e.ChatID})
	}
	return nil
}

// drain tells what waits, so that long work does not overfill the queue.
func (w *Watcher) drain() error {
	for {
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case m := <-w.queue:
			if err := w.event(m); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// check compares what was told with what stands. That services do not answer
// makes it try again; an error ends the watch.
func (w *Watcher) check() error {
	if w.c.nc.IsClosed() {
		return errClosed
	}
	began := time.Now()
	again := w.again
	w.again = false
	err := w.compare()
	w.last = time.Now()
	w.ledger.forget(w.last)
	switch {
	case err == nil:
		w.fails = 0
		next := max(regularly, effort*time.Since(began))
		if w.again { // events were missed meanwhile
			next = max(least, time.Since(began))
		} else if again {
			next = soonAgain
		}
		w.timer.Reset(next + rand.N(next/8))
		return nil
	case w.ctx.Err() != nil || !passing(err):
		return err
	}
	w.again = again || w.again
	w.fails++
	w.timer.Reset(min(100*time.Millisecond<<min(w.fails, 6), 5*time.Second))
	return nil
}

// passing errors say that services, or the connection, are away.
func passing(err error) bool {
	e := errcode.From(err)
	return e.Retryable || e.Code == errcode.Internal
}

func (w *Watcher) compare() error {
	if err := w.flush(); err != nil { // what was missed before is found below
		return err
	}
	entries, err := w.list(func(ctx context.Context, req message.ToolStateList) (page message.ToolStateListing, err error) {
		if err := w.drain(); err != nil {
			return page, err
		}
		return page, bus.Request(ctx, w.c.nc, subject.ToolState(w.c.tenant, "list"), req, &page)
	})
	if err != nil {
		return err
	}
	for _, ref := range w.ledger.doubts(entries) {
		if err := w.drain(); err != nil {
			return err
		}
		if err := w.look(ref); err != nil {
			return err
		}
	}
	return nil
}

// list gathers all pages.
func (w *Watcher) list(page func(context.Context, message.ToolStateList) (message.ToolStateListing, error)) ([]message.ToolStateEntry, error) {
	req := message.ToolStateList{ChatID: w.scope.ChatID, Namespace: w.scope.Namespace, Limit: 1000}
	var all []message.ToolStateEntry
	for {
		ctx, cancel := context.WithTimeout(w.ctx, askTimeout)
		p, err := page(ctx, req)
		cancel()
		if err != nil {
			return nil, err
		}
		if all = append(all, p.Documents...); p.Cursor == "" || len(all) > MaxWatched {
			return all, nil
		}
		req.Cursor = p.Cursor
	}
}

// read looks at a document; when that fails now, a comparison does it later.
func (w *Watcher) read(ref document) error {
	err := w.look(ref)
	if err != nil && passing(err) && w.ctx.Err() == nil {
		w.soon()
		return nil
	}
	return err
}

// look reads a document and tells it unless it was told.
func (w *Watcher) look(ref document) error {
	ctx, cancel := context.WithTimeout(w.ctx, askTimeout)
	defer cancel()
	var d message.ToolStateData
	req := message.ToolStateAll{ToolStateRef: message.ToolStateRef{ChatID: ref.chat, Namespace: ref.namespace}}
	err := bus.Request(ctx, w.c.nc, subject.ToolState(w.c.tenant, "all"), req, &d)
	if errors.Is(err, errcode.Internal) {
		return nil // one that cannot be read must not end the watch of the others
	}
	if err != nil {
		return err
	}
	kind, err := w.ledger.read(ref, d, time.Now())
	if err != nil || kind == "" {
		return err
	}
	ch := Change{Kind: kind, Namespace: ref.namespace, ChatID: ref.chat}
	if kind == Written {
		ch.Data, ch.Revision, ch.ExpiresAt = d.Data, d.Revision, d.ExpiresAt
	}
	return w.tell(ch)
}

// flush waits until the server has what was sent, the subscription included.
func (w *Watcher) flush() error {
	ctx, cancel := context.WithTimeout(w.ctx, askTimeout)
	defer cancel()
	if err := w.c.nc.FlushWithContext(ctx); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "watch: %v", err)
	}
	return nil
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
