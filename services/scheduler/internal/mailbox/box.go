package mailbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

const (
	ahead       = 64                     // wakes of a mailbox held in memory
	atOnce      = 8                      // wakes of an agent that are out at a time
	busyPause   = 2 * time.Second        // after a refusal that names no time
	leastPause  = 50 * time.Millisecond  // before the same wake goes out again
	longPause   = 5 * time.Minute        // the longest that an agent may ask for
	lookAgain   = 250 * time.Millisecond // for what a follower of the stream did not know yet
	lastAnswers = 500 * time.Millisecond // for answers under way when delivery ends
)

// box delivers one agent's wakes in order: at most one of a chat is out at a
// time. All its fields belong to run, but for those that say otherwise.
type box struct {
	d    *Delivery
	ref  Ref
	subj string

	kick  chan struct{} // something may have come; anybody may send
	ready atomic.Uint64 // how often the agent has said that it listens

	queue  []*item // waiting or out, in order
	next   uint64  // where to read on
	more   bool    // there may be more to read
	out    int
	parked bool
	seen   uint64         // ready when the mailbox was parked
	tries  map[uint64]int // how often wakes have failed, by sequence
	again  bool           // look again soon: what rang was not there yet
}

type item struct {
	Stored
	chat    string // "" stands for itself: wakes without a chat are one chat
	alone   bool   // stateless: independent of all others
	out     bool
	checked bool      // not accepted before
	after   time.Time // not before
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
	gone    outcome = iota // off the mailbox
	busy                   // later
	failed                 // later, not for ever
	absent                 // when the agent is there
	unknown                // delivery ends, or JetStream is away: later
)

func newBox(d *Delivery, ref Ref) *box {
	return &box{d: d, ref: ref, subj: subject.Mailbox(ref.Tenant, ref.Agent),
		kick: make(chan struct{}, 1), more: true, tries: map[uint64]int{}}
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
			wait = b.send(asks, results)
			if b.more || b.again {
				wait = min(wait, lookAgain)
			}
		}
		switch {
		case b.out > 0:
		case ctx.Err() != nil:
			return
		case !b.parked && len(b.queue) == 0 && !b.more && !b.again && retire():
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

// fill reads ahead.
func (b *box) fill(ctx context.Context) {
	for b.more && len(b.queue) < ahead {
		list, more, err := b.d.store.next(ctx, b.subj, b.next, ahead)
		if err != nil {
			if ctx.Err() == nil {
				b.d.log.Warn("mailbox not read", "tenant", b.ref.Tenant, "agent", b.ref.Agent, "err", err)
			}
			return
		}
		b.more = more
		for _, w := range list {
			b.next = w.Seq + 1
			if b.has(w.Seq) {
				continue
			}
			b.again = false
			it := &item{Stored: w, chat: w.Wake.ChatID, alone: w.Wake.Mode == message.WakeStateless}
			if it.alone {
				it.chat = strconv.FormatUint(w.Seq, 10)
			}
			b.queue = append(b.queue, it)
		}
	}
}

func (b *box) has(seq uint64) bool {
	for _, it := range b.queue {
		if it.Seq == seq {
			return true
		}
	}
	return false
}

// send sends the heads of all chats whose time has come, and returns how long
// the first of the others must wait.
func (b *box) send(ctx context.Context, results chan<- result) time.Duration {
	wait := time.Hour
	now := time.Now()
	type key struct {
		chat  string
		alone bool
	}
	taken := map[key]bool{}
	for _, it := range b.queue {
		k := key{it.chat, it.alone}
		if taken[k] {
			continue
		}
		taken[k] = true
		switch d := it.after.Sub(now); {
		case it.out:
		case d > 0:
			wait = min(wait, d)
		case b.out < atOnce:
			it.out = true
			b.out++
			ready, attempt := b.ready.Load(), b.tries[it.Seq]+1
			go func() {
				r := b.deliver(ctx, it, attempt)
				r.item, r.ready = it, ready
				results <- r
			}()
		}
	}
	return wait
}

// settle takes note of how a delivery ended.
func (b *box) settle(r result) {
	r.item.out = false
	switch r.what {
	case gone:
		delete(b.tries, r.item.Seq)
		b.forget(r.item)
		return
	case failed:
		b.tries[r.item.Seq]++
	case absent:
		if now := b.ready.Load(); !b.parked && now == r.ready {
			b.park(now)
		}
		// Otherwise it has said since that it listens: at once.
	}
	if b.parked {
		b.forget(r.item) // it is read again
		return
	}
	r.item.after = time.Now().Add(r.pause)
}

func (b *box) forget(it *item) {
	for i, x := range b.queue {
		if x == it {
			b.queue = append(b.queue[:i], b.queue[i+1:]...)
			return
		}
	}
}

// park lets the mailbox wait until its agent says that it listens. What is out
// stays in the queue.
func (b *box) park(ready uint64) {
	b.parked, b.seen = true, ready
	b.d.parked.Inc()
	kept := b.queue[:0]
	for _, it := range b.queue {
		if it.out {
			kept = append(kept, it)
		}
	}
	clear(b.queue[len(kept):])
	b.queue = kept
}

// unpark begins with the first wake again.
func (b *box) unpark() {
	b.parked = false
	b.d.parked.Dec()
	b.next, b.more = 0, true
}

// deliver sends one wake and does what its answer asks for.
func (b *box) deliver(ctx context.Context, it *item, attempt int) result {
	d, w := b.d, it.Wake
	log := d.log.With("tenant", b.ref.Tenant, "agent", b.ref.Agent, "wake", w.WakeID)
	if t, err := time.Parse(time.RFC3339, w.ExpiresAt); w.ExpiresAt != "" && err == nil && time.Now().After(t) {
		log.Info("wake expired before it was accepted", "expiresAt", w.ExpiresAt)
		return d.finish(ctx, it, "expired", func() error { return d.store.remove(ctx, it.Seq) })
	}
	if !it.checked {
		done, err := d.store.accepted(ctx, b.ref, w.WakeID)
		switch {
		case err != nil:
			return result{what: unknown, pause: lookAgain}
		case done:
			return d.finish(ctx, it, "repeated", func() error { return d.store.remove(ctx, it.Seq) })
		}
		it.checked = true
	}
	w.Attempt = attempt
	data, err := message.Marshal(w)
	if err != nil {
		return result{what: unknown, pause: longPause} // strings and numbers always have a JSON form
	}
	reply, err := d.asker.ask(ctx, subject.AgentWake(b.ref.Tenant, b.ref.Agent), data, d.opts.Silence)
	switch {
	case err == nil && reply.Accepted:
		return d.finish(ctx, it, "accepted", func() error { return d.store.accept(ctx, it.Stored) })
	case err == nil:
		d.wakes.WithLabelValues("busy").Inc()
		pause := busyPause
		if p, err := time.ParseDuration(reply.RetryAfter); err == nil {
			pause = min(max(p, leastPause), longPause)
		}
		return result{what: busy, pause: pause}
	case errors.Is(err, errAbsent):
		d.wakes.WithLabelValues("absent").Inc()
		return result{what: absent}
	case ctx.Err() != nil:
		return result{what: unknown}
	}
	d.wakes.WithLabelValues("failed").Inc()
	log.Warn("wake not accepted", "attempt", attempt, "err", err)
	if attempt >= d.opts.Attempts {
		log.Error("wake given up", "attempts", attempt)
		it.Wake.Attempt = attempt
		return d.finish(ctx, it, "dead", func() error { return d.store.bury(ctx, it.Stored) })
	}
	pause := min(time.Second<<min(attempt-1, 6), d.opts.Backoff)
	return result{what: failed, pause: pause/2 + rand.N(pause)}
}
