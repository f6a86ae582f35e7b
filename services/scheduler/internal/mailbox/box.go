package mailbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

const (
	ahead       = 64                     // wakes of a mailbox known before others are looked for
	probe       = 2                      // the same while the agent may be absent
	mostKnown   = 100_000                // wakes of a mailbox known at a time
	atOnce      = 64                     // wakes of an agent that are out at a time
	scanAfter   = 100 * time.Millisecond // that nothing could be sent
	busyPause   = 2 * time.Second        // after a refusal that names no sensible time
	leastPause  = 50 * time.Millisecond  // before the same wake goes out again
	longPause   = 5 * time.Minute        // the longest that an agent may ask for
	lookAgain   = 250 * time.Millisecond // for what a follower of the stream did not know yet
	missTries   = 4                      // before a wake that is not found is believed to be gone
	lastAnswers = 500 * time.Millisecond // for answers under way when delivery ends
)

// box delivers one agent's wakes in order: at most one of a chat is out at a
// time, and no chat waits for another. All its fields belong to run, but for those
// that say otherwise.
type box struct {
	d    *Delivery
	ref  Ref
	subj string

	kick  chan struct{} // something may have come; anybody may send
	ready atomic.Uint64 // how often the agent has said that it listens

	lines   *lines
	next    uint64    // where to read on
	more    bool      // there may be more to read
	again   bool      // look again soon: what rang was not there yet
	probing bool      // nobody knows whether the agent is there
	starved time.Time // since when nothing could be sent though there may be more; zero: not so
	out     int
	parked  bool
	seen    uint64 // ready when the mailbox was parked
}

// result is how a delivery ended.
type result struct {
	item  *item
	what  outcome
	pause time.Duration // before the next try
	ready uint64        // box.ready when it began
}

type outcome int

const (
	gone   outcome = iota // off the mailbox
	waits                 // later: the agent is busy or has failed, or JetStream is away, or delivery ends
	absent                // when the agent is there
)

func newBox(d *Delivery, ref Ref) *box {
	return &box{d: d, ref: ref, subj: subject.Mailbox(ref.Tenant, ref.Agent),
		kick: make(chan struct{}, 1), more: true, probing: true, lines: newLines()}
}

// ring makes the box look for wakes.
func (b *box) ring() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// run delivers until ctx ends or the mailbox is empty and retire agrees.
func (b *box) run(ctx context.Context, retire func() bool) {
	asks, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastAnswers, cancel) })
	defer stop()
	defer func() {
		if b.parked {
			b.d.parked.Dec()
		}
	}()
	results := make(chan result, atOnce)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	ended := ctx.Done()
	for {
		wait := time.Hour
		if ctx.Err() == nil && !b.parked {
			b.fill(ctx)
			wait = min(b.send(asks, results), b.scan())
			if b.again {
				wait = min(wait, lookAgain)
			}
		}
		switch {
		case b.out > 0:
		case ctx.Err() != nil:
			return
		case !b.parked && b.lines.len() == 0 && !b.more && !b.again && retire():
			return
		}
		timer.Reset(wait)
		select {
		case <-ended:
			ended = nil
		case r := <-results:
			b.out--
			b.settle(r)
		case <-b.kick:
			b.more, b.again = true, true
			if b.parked && b.ready.Load() != b.seen {
				b.unpark()
			}
		case <-timer.C:
			b.more, b.again = b.more || b.again, false
		}
	}
}

// fill reads ahead: the first few, or, when none of the chats known can be sent,
// the next ones, to find another that can.
func (b *box) fill(ctx context.Context) {
	few := ahead
	if b.probing {
		few = probe
	}
	if !b.starved.IsZero() && time.Since(b.starved) >= scanAfter && b.lines.len() < mostKnown {
		b.probing = false
		b.read(ctx, ahead)
		return
	}
	for b.more && b.lines.len() < few && b.read(ctx, few) {
	}
}

// read reads up to n wakes; false when that failed.
func (b *box) read(ctx context.Context, n int) bool {
	list, more, err := b.d.store.next(ctx, b.subj, b.next, n)
	if err != nil {
		if ctx.Err() == nil {
			b.d.log.Warn("mailbox not read", "tenant", b.ref.Tenant, "agent", b.ref.Agent, "err", err)
		}
		b.starved = time.Now() // not again at once
		return false
	}
	b.more = more
	for _, w := range list {
		b.next = w.Seq + 1
		switch {
		case w.Unreadable != nil: // nothing of ours: it must not hold up the others
			b.d.log.Error("a message in a mailbox is no wake", "tenant", b.ref.Tenant, "agent", b.ref.Agent, "sequence", w.Seq, "err", w.Unreadable)
		case b.lines.add(w):
			b.again = false
		}
	}
	return true
}

// scan returns when fill is to look farther for something to send.
func (b *box) scan() time.Duration {
	if !b.more {
		b.starved = time.Time{}
		return time.Hour
	}
	if b.lines.sendable() || b.out >= atOnce {
		b.starved = time.Time{}
		return time.Hour // until one of them has ended
	}
	if b.starved.IsZero() {
		b.starved = time.Now()
	}
	if b.lines.len() >= mostKnown {
		return lookAgain // for room
	}
	return max(0, scanAfter-time.Since(b.starved))
}

// send sends the heads of all chats whose time has come, and returns how long
// the first of the others must wait.
func (b *box) send(ctx context.Context, results chan<- result) time.Duration {
	wait := b.lines.wake(time.Now())
	for b.out < atOnce {
		it := b.lines.take()
		if it == nil {
			break
		}
		b.out++
		ready := b.ready.Load()
		go func() {
			r := b.deliver(ctx, it)
			r.item, r.ready = it, ready
			results <- r
		}()
	}
	return wait
}

// settle takes note of how a delivery ended.
func (b *box) settle(r result) {
	switch {
	case r.what == gone:
		b.lines.remove(r.item)
		b.starved, b.probing = time.Time{}, false
	case b.parked:
		b.lines.remove(r.item) // it is read again
	case r.what == absent && b.ready.Load() == r.ready:
		b.lines.remove(r.item)
		b.park(r.ready)
	case r.what == absent: // it has said since that it listens
		b.lines.again(r.item, time.Now())
	default:
		b.probing = false
		b.lines.again(r.item, time.Now().Add(r.pause))
	}
}

// park lets the mailbox wait until its agent says that it listens. What is out
// stays known.
func (b *box) park(ready uint64) {
	b.parked, b.seen, b.starved = true, ready, time.Time{}
	b.d.parked.Inc()
	b.lines.forget()
}

// unpark begins with the first wake again.
func (b *box) unpark() {
	b.parked, b.probing = false, true
	b.d.parked.Dec()
	b.next, b.more = 0, true
}

// deliver sends one wake and does what its answer asks for.
func (b *box) deliver(ctx context.Context, it *item) result {
	d := b.d
	w, found, err := b.load(ctx, it)
	switch {
	case err != nil:
		return result{what: waits, pause: lookAgain}
	case !found && it.missed < missTries: // a follower of the stream may be behind
		it.missed++
		return result{what: waits, pause: lookAgain}
	case !found: // it was taken off meanwhile
		return result{what: gone}
	}
	log := d.log.With("tenant", b.ref.Tenant, "agent", b.ref.Agent, "wake", w.WakeID)
	if t, err := time.Parse(time.RFC3339, w.ExpiresAt); w.ExpiresAt != "" && err == nil && time.Now().After(t) {
		log.Info("wake expired before it was accepted", "expiresAt", w.ExpiresAt)
		return d.finish(ctx, w, "expired", func() error { return d.store.remove(ctx, it.seq) })
	}
	if !it.checked {
		past, err := d.store.past(ctx, b.ref, w.WakeID)
		switch {
		case err != nil:
			return result{what: waits, pause: lookAgain}
		case past.over():
			return d.finish(ctx, w, "repeated", func() error { return d.store.remove(ctx, it.seq) })
		}
		it.checked, it.tries = true, past.Tries
	}
	stored := Stored{Seq: it.seq, Tenant: b.ref.Tenant, Agent: b.ref.Agent, Wake: w}
	if it.tries >= d.opts.Attempts { // another replica did not come to it
		return b.giveUp(ctx, stored, it.tries)
	}
	w.Attempt = it.tries + 1
	data, err := message.Marshal(w)
	if err != nil {
		return result{what: waits, pause: longPause} // strings and numbers always have a JSON form
	}
	reply, err := d.asker.ask(ctx, subject.AgentWake(b.ref.Tenant, b.ref.Agent), data, d.opts.Silence)
	switch {
	case err == nil && reply.Accepted:
		r := d.finish(ctx, w, "accepted", func() error { return d.store.accept(ctx, stored) })
		if r.what == gone {
			d.audit(stored)
		}
		return r
	case err == nil:
		return d.busy(reply.RetryAfter)
	case errors.Is(err, errAbsent):
		d.wakes.WithLabelValues("absent").Inc()
		return result{what: absent}
	case errors.Is(err, errAway), ctx.Err() != nil:
		return result{what: waits, pause: lookAgain}
	case errors.Is(err, errcode.Overloaded): // the error's way to say busy
		after := ""
		if details := errcode.From(err).Details; details != nil {
			after = details.RetryAfter
		}
		return d.busy(after)
	}
	return b.failed(ctx, stored, it, err)
}

// busy is a delivery that the agent wants later. That is no failure, however often
// it happens: an agent whose handler has failed says so with an error.
func (d *Delivery) busy(after string) result {
	d.wakes.WithLabelValues("busy").Inc()
	pause := busyPause
	if p, err := time.ParseDuration(after); err == nil {
		pause = min(max(p, leastPause), longPause)
	}
	return result{what: waits, pause: pause}
}

// failed counts a failure, for whoever delivers the wake next too, and gives the
// wake up after too many.
func (b *box) failed(ctx context.Context, w Stored, it *item, why error) result {
	d := b.d
	it.tries++
	d.wakes.WithLabelValues("failed").Inc()
	log := d.log.With("tenant", b.ref.Tenant, "agent", b.ref.Agent, "wake", w.Wake.WakeID)
	log.Warn("wake not accepted", "attempt", it.tries, "err", why)
	if it.tries >= d.opts.Attempts {
		return b.giveUp(ctx, w, it.tries)
	}
	if err := d.store.failed(ctx, b.ref, w.Wake.WakeID, it.tries); err != nil {
		log.Warn("failure not written down", "err", err) // it counts here
	}
	pause := min(time.Second<<min(it.tries-1, 6), d.opts.Backoff)
	return result{what: waits, pause: pause/2 + rand.N(pause)}
}

func (b *box) giveUp(ctx context.Context, w Stored, tries int) result {
	b.d.log.Error("wake given up", "tenant", b.ref.Tenant, "agent", b.ref.Agent, "wake", w.Wake.WakeID, "attempts", tries)
	w.Wake.Attempt = tries
	return b.d.finish(ctx, w.Wake, "dead", func() error { return b.d.store.bury(ctx, w) })
}

// load returns a wake's text, which is not kept of those far behind.
func (b *box) load(ctx context.Context, it *item) (w message.Wake, found bool, err error) {
	if it.wake != nil {
		return *it.wake, true, nil
	}
	s, found, err := b.d.store.get(ctx, it.seq)
	return s.Wake, found, err
}
