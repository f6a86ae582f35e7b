// Package commit applies operations to keys of a bucket so that none is lost
// and none is applied twice, without locks across processes.
//
// What is queued for one key is applied together, in order, to the last known
// value, and published once under compare-and-set (group commit). A miss loads
// the value and applies again. Each operation leaves its id and answer in the
// message's log (package oplog), by which retries, and publishes whose
// acknowledgement was lost, are recognized.
package commit

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
	"github.com/toolbus/toolbus/services/state/internal/oplog"
)

// Bucket is where values live; *bucket.Bucket.
type Bucket interface {
	Last(ctx context.Context, key string) (bucket.Message, error) // may be behind; it says so
	Read(ctx context.Context, key string) (bucket.Message, error) // is not
	Put(ctx context.Context, key string, header nats.Header, data []byte, ttl time.Duration, expect uint64) (uint64, error)
	Remove(ctx context.Context, key string, header nats.Header, ttl time.Duration, expect uint64) (uint64, error)
}

// State is a key's value as a reader sees it.
type State[D any] struct {
	Live    bool // there is a value; otherwise Data is D's zero value
	Data    D
	Expires time.Time // zero: never
}

// Codec turns values into messages and back.
type Codec[D any] struct {
	Decode func(body []byte) (D, time.Time, error)
	Encode func(data D, expires time.Time) []byte
}

// Answer is what an operation found or did.
type Answer struct {
	Text string // kept for retries; short
	None bool   // there is no value after it: revision 0, no expiry
	// Idle says that nothing changed. Such an operation is recorded only for an
	// opId's sake.
	Idle bool
}

// Op is an operation on one key.
type Op[D any] struct {
	ID string // the caller's opId; "" for none
	// Age is how long ago it was first sent, when an earlier try may have been
	// received; otherwise 0. A try that comes too late to find out is refused.
	Age        time.Duration
	Kind       oplog.Kind
	IfRevision *uint64 // 0: there must be no value
	// Apply changes the state, or leaves it as it is and returns an error. It
	// may run several times, each on a state of its own.
	Apply func(s *State[D], now time.Time) (Answer, error)
}

// Result is an operation's answer.
type Result struct {
	Text     string
	Revision uint64
	Expires  time.Time // zero: never, or there is no value
}

const (
	maxBatch     = 128             // operations in one publish; well below what a log keeps
	patience     = 3 * time.Second // for one operation; less than a client waits for one try
	tryTimeout   = time.Second     // for one load or publish
	headAge      = 2 * time.Second // for how long a written value is trusted to be the last
	coldCommits  = 8               // loads before the kept value is used again, after it was stale
	maxHotQueues = 256
	clockSkew    = time.Second // replicas' clocks differ by less, and a retry travels less
)

// Committer applies operations. Close it.
type Committer[D any] struct {
	bucket    Bucket
	codec     Codec[D]
	now       func() time.Time
	conflicts prometheus.Counter

	base   context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	queues map[string]*queue[D]
	tidy   *time.Timer // runs forget; armed while there are queues
	armed  bool
}

// queue is the operations waiting for one key, and what is known of it.
type queue[D any] struct {
	ops  []*pending[D]
	busy bool // a worker runs
	head *head[D]
	cold int
}

// head is a key's last message, decoded.
type head[D any] struct {
	seq   uint64
	at    time.Time
	sure  bool // it was the last when it was asked for
	state State[D]
	log   oplog.Log
}

type pending[D any] struct {
	Op[D]
	ctx      context.Context
	id       oplog.ID
	first    time.Time // it may have been applied since then; zero: not before
	deadline time.Time
	done     chan outcome
}

type outcome struct {
	result Result
	err    error
}

// New makes a Committer. conflicts counts publishes that missed.
func New[D any](b Bucket, codec Codec[D], now func() time.Time, conflicts prometheus.Counter) *Committer[D] {
	c := &Committer[D]{bucket: b, codec: codec, now: now, conflicts: conflicts, queues: make(map[string]*queue[D])}
	c.base, c.cancel = context.WithCancel(context.Background())
	c.tidy = time.AfterFunc(headAge, c.forget)
	c.tidy.Stop()
	return c
}

// Close ends what runs, with unavailable, and returns when nothing runs any
// more.
func (c *Committer[D]) Close() {
	c.mu.Lock()
	c.closed = true
	c.tidy.Stop()
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
}

// Do applies op and returns its answer, or that of the first operation with the
// same opId. The error of a missed IfRevision is conflict with the current
// revision. An unavailable or timeout leaves open whether it was applied; the
// same opId again finds out.
func (c *Committer[D]) Do(ctx context.Context, key string, op Op[D]) (Result, error) {
	p := &pending[D]{Op: op, ctx: ctx, deadline: time.Now().Add(patience), done: make(chan outcome, 1)}
	if op.ID != "" {
		p.id = oplog.Hash(op.ID)
	} else {
		p.id = oplog.Random()
	}
	if op.Age > 0 && op.ID != "" {
		p.first = c.now().Add(-op.Age - clockSkew)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return Result{}, errStopping
	}
	q := c.queues[key]
	if q == nil {
		c.makeRoom()
		q = &queue[D]{}
		c.queues[key] = q
		if !c.armed {
			c.armed = true
			c.tidy.Reset(headAge)
		}
	}
	q.ops = append(q.ops, p)
	if !q.busy {
		q.busy = true
		c.wg.Go(func() { c.work(key, q) })
	}
	c.mu.Unlock()
	select {
	case o := <-p.done:
		return o.result, o.err
	case <-ctx.Done():
		return Result{}, errcode.From(ctx.Err())
	}
}

var errStopping = errcode.New(errcode.Unavailable, "the service is stopping")

// makeRoom forgets queues that nobody works on. Called with mu held.
func (c *Committer[D]) makeRoom() {
	for k, q := range c.queues {
		if len(c.queues) < maxHotQueues {
			return
		}
		if !q.busy {
			delete(c.queues, k)
		}
	}
}

// forget drops the queues of which nothing is known any more: what is too old
// to be trusted only takes memory, up to a decoded document each.
func (c *Committer[D]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, q := range c.queues {
		if !q.busy && (q.head == nil || time.Since(q.head.at) >= headAge) {
			delete(c.queues, k)
		}
	}
	if c.armed = len(c.queues) > 0 && !c.closed; c.armed {
		c.tidy.Reset(headAge)
	}
}

// work applies what is queued for a key until nothing is.
func (c *Committer[D]) work(key string, q *queue[D]) {
	var batch []*pending[D]
	failures := 0
	for {
		c.mu.Lock()
		n := min(len(q.ops), maxBatch-len(batch))
		batch = append(batch, q.ops[:n]...)
		if q.ops = q.ops[n:]; len(q.ops) == 0 {
			q.ops = nil
		}
		if len(batch) == 0 {
			q.busy = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()

		rest, err := c.commit(key, q, batch)
		if err == nil {
			batch, failures = rest, 0
			continue
		}
		q.head = nil
		failures++
		batch = c.giveUp(rest, err)
		if len(batch) > 0 {
			c.pause(err, failures)
		}
	}
}

// giveUp answers the operations that cannot wait any longer, or all when err is
// not worth another try, and returns the others.
func (c *Committer[D]) giveUp(batch []*pending[D], err error) []*pending[D] {
	missed := errors.Is(err, bucket.ErrRevision)
	final := errcode.From(err)
	switch {
	case missed:
		final = errcode.Wrap(errcode.Unavailable, err, "too many write at the same time; try again")
	case errors.Is(err, context.DeadlineExceeded):
		final = errcode.Wrap(errcode.Unavailable, err, "JetStream does not answer")
	}
	retry := missed || final.Retryable
	now := time.Now()
	kept := batch[:0]
	for _, p := range batch {
		switch {
		case c.base.Err() != nil:
			p.finish(Result{}, errStopping)
		case !retry || now.After(p.deadline):
			p.finish(Result{}, final)
		default:
			kept = append(kept, p)
		}
	}
	return kept
}

func (c *Committer[D]) pause(err error, failures int) {
	unit := 20 * time.Millisecond
	if errors.Is(err, bucket.ErrRevision) {
		if failures == 1 {
			return
		}
		unit = time.Millisecond / 2
	}
	d := rand.N(unit << min(failures, 4))
	select {
	case <-c.base.Done():
	case <-time.After(d):
	}
}

// load reads a key's last message, with Bucket's Last or Read.
func (c *Committer[D]) load(key string, read func(context.Context, string) (bucket.Message, error)) (*head[D], error) {
	ctx, cancel := context.WithTimeout(c.base, tryTimeout)
	defer cancel()
	m, err := read(ctx, key)
	if err != nil {
		return nil, err
	}
	h := &head[D]{seq: m.Seq, at: time.Now(), sure: m.Current}
	// A log that cannot be read is none: the value counts more than the ids.
	h.log, _ = oplog.Decode(m.Header.Get(oplog.Header), m.Seq)
	if m.Seq != 0 && !m.Marker {
		h.state.Live = true
		if h.state.Data, h.state.Expires, err = c.codec.Decode(m.Data); err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "key %s: %v", key, err)
		}
	}
	return h, nil
}

// commit applies batch once. It answers what it can and returns the operations
// still to do: those that must wait for a revision, without an error, or the
// whole unanswered batch with one.
func (c *Committer[D]) commit(key string, q *queue[D], batch []*pending[D]) ([]*pending[D], error) {
	h := q.head
	kept := h != nil && time.Since(h.at) < headAge && q.cold == 0
	if !kept {
		if q.cold > 0 {
			q.cold--
		}
		var err error
		if h, err = c.load(key, c.bucket.Last); err != nil {
			return batch, err
		}
	}
	q.head = nil // until it is known again
	r := c.apply(h, batch)
	if len(r.written) == 0 && (kept || !h.sure) && len(r.answered) > 0 {
		// Nothing is published that would prove the value current, and these
		// answers depend on it.
		var err error
		if h, err = c.load(key, c.bucket.Read); err != nil {
			return batch, err
		}
		r = c.apply(h, batch)
	}
	if len(r.written) > 0 {
		seq, err := c.publish(key, h, r)
		if err != nil {
			switch missed := errors.Is(err, bucket.ErrRevision); {
			case !missed:
				r.doubt()
			case kept:
				q.cold = coldCommits
			}
			return batch, err
		}
		h.log.Settle(seq)
		h.seq, h.at = seq, time.Now()
	}
	q.head = h
	for _, w := range append(r.written, r.replayed...) {
		w.finish(w.entry)
	}
	for _, a := range r.answered {
		a.p.finish(a.result, a.err)
	}
	return r.rest, nil
}

// round is what became of a batch. Nobody has been told yet.
type round[D any] struct {
	now      time.Time
	written  []recorded[D] // depends on the publish
	replayed []recorded[D] // found in the log
	answered []answered[D] // failed or idle, as of the state they saw
	rest     []*pending[D] // not looked at
}

type recorded[D any] struct {
	p     *pending[D]
	entry *oplog.Entry
}

type answered[D any] struct {
	p      *pending[D]
	result Result
	err    error
}

// doubt remembers that what was to be written may have been: by the next try so
// many others may have written that the log does not tell.
func (r *round[D]) doubt() {
	for _, w := range r.written {
		if w.p.first.IsZero() {
			w.p.first = r.now.Add(-clockSkew)
		}
	}
}

// apply applies a batch to h, whose state and log it changes.
func (c *Committer[D]) apply(h *head[D], batch []*pending[D]) *round[D] {
	now := time.UnixMilli(c.now().UnixMilli())
	r := &round[D]{now: now}
	s := &h.state
	if s.Live && !s.Expires.IsZero() && !now.Before(s.Expires) {
		*s = State[D]{}
	}
	current := uint64(0)
	if s.Live {
		current = h.seq
	}
	stood, logged := s.Live, h.log.Len()
	for i, p := range batch {
		if p.ctx.Err() != nil {
			r.answered = append(r.answered, answered[D]{p: p, err: errcode.From(p.ctx.Err())})
			continue
		}
		if e := h.log.Find(p.id); e != nil {
			switch {
			case e.Kind != p.Kind:
				r.answered = append(r.answered, answered[D]{p: p, err: errcode.Field("opId", "was used for another kind of operation")})
			case e.Revision >= oplog.PendingBelow: // a retry beside its first try
				r.written = append(r.written, recorded[D]{p, e})
			default:
				r.replayed = append(r.replayed, recorded[D]{p, e})
			}
			continue
		}
		if !p.first.IsZero() && h.mayHaveForgotten(p.first, stood, now) {
			r.answered = append(r.answered, answered[D]{p: p, err: errForgotten()})
			continue
		}
		if p.IfRevision != nil && h.log.Len() > logged {
			// The revision before it is not known until this much is published.
			r.rest = batch[i:]
			break
		}
		if p.IfRevision != nil && *p.IfRevision != current {
			r.answered = append(r.answered, answered[D]{p: p, err: conflict(*p.IfRevision, current)})
			continue
		}
		ans, err := p.Apply(s, now)
		if err != nil {
			r.answered = append(r.answered, answered[D]{p: p, err: err})
			continue
		}
		if ans.Idle && p.ID == "" {
			r.answered = append(r.answered, answered[D]{p: p, result: Result{Text: ans.Text}})
			continue
		}
		e := &oplog.Entry{ID: p.id, Kind: p.Kind, At: now, Answer: ans.Text}
		if !ans.None {
			e.Revision = oplog.PendingHead
			if !s.Expires.IsZero() {
				e.TTL = s.Expires.Sub(now)
			}
		}
		h.log.Supersede(logged)
		h.log.Add(e)
		r.written = append(r.written, recorded[D]{p, e})
	}
	if n := h.log.Len() - logged; n > 0 {
		h.log.Trim(now, n)
	}
	return r
}

// mayHaveForgotten tells whether an operation of since or later may be in the
// value and not in its log. A value that stood without one had it all dropped,
// unless it never had any; only age does that.
func (h *head[D]) mayHaveForgotten(since time.Time, stood bool, now time.Time) bool {
	if h.log.Len() == 0 {
		return stood && now.Sub(since) > oplog.Retention
	}
	return h.log.MayHaveForgotten(since)
}

// errForgotten is a timeout, since that is what the caller's first try ended in,
// but another try would not find out either.
func errForgotten() error {
	e := errcode.New(errcode.Timeout, "too much was written since this was first sent to tell whether it was done")
	e.Retryable = false
	return e
}

func conflict(want, current uint64) error {
	switch {
	case want == 0:
		return errcode.ConflictAt(current, "it exists already, at revision %d", current)
	case current == 0:
		return errcode.ConflictAt(0, "it does not exist; revision %d was expected", want)
	}
	return errcode.ConflictAt(current, "it is at revision %d, not %d", current, want)
}

func (c *Committer[D]) publish(key string, h *head[D], r *round[D]) (uint64, error) {
	ctx, cancel := context.WithTimeout(c.base, tryTimeout)
	defer cancel()
	header := nats.Header{oplog.Header: []string{h.log.Encode()}}
	var seq uint64
	var err error
	if s := h.state; !s.Live {
		seq, err = c.bucket.Remove(ctx, key, header, oplog.Retention, h.seq)
	} else {
		ttl := time.Duration(0)
		if !s.Expires.IsZero() {
			ttl = s.Expires.Sub(r.now)
		}
		seq, err = c.bucket.Put(ctx, key, header, c.codec.Encode(s.Data, s.Expires), ttl, h.seq)
	}
	if errors.Is(err, bucket.ErrRevision) {
		c.conflicts.Inc()
	}
	return seq, err
}

func (p *pending[D]) finish(r Result, err error) { p.done <- outcome{r, err} }

func (w recorded[D]) finish(e *oplog.Entry) {
	r := Result{Text: e.Answer, Revision: e.Revision}
	if e.TTL > 0 {
		r.Expires = e.At.Add(e.TTL)
	}
	w.p.finish(r, nil)
}
