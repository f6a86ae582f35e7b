package area

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// A stream's leader that was deposed answers with what was last in its days until
// it hears so (ADR 0011). What is followed by a compare-and-set may rest on it:
// that is then refused. What is answered without one may not: it is read behind a
// mark, a message that a majority has stored.

const (
	markTimeout = 2 * time.Second
	// Pauses until a member that has not got the mark yet is asked again.
	behindPause    = 100 * time.Microsecond
	maxBehindPause = 10 * time.Millisecond
)

// mark is where marks are written. No path has a page of this name.
func (b *bucket) mark() string { return "$O." + b.name + ".P.~mark" }

// current is load that sees whatever was committed before it was called, whatever
// leader was deposed.
func (a *Area) current(ctx context.Context, b *bucket, path string) (*record.Record, error) {
	if !b.reader.Replicated {
		return a.load(ctx, b, path)
	}
	mark, err := b.marks.next(ctx, a, b)
	switch {
	case errors.Is(err, errNoStream):
		return a.load(ctx, b, path)
	case err != nil:
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	meta, marks := b.meta(path), b.mark()
	for wait := behindPause; ; wait = min(2*wait, maxBehindPause) {
		msgs, err := jet.Last(ctx, a.js, b.reader.Name, meta, marks)
		if err != nil {
			return nil, away(err)
		}
		rec, seen := &record.Record{Path: path}, uint64(0)
		for _, m := range msgs {
			switch m.Subject {
			case marks:
				seen = m.Sequence
			case meta:
				if rec, err = record.Decode(m.Data, m.Sequence, m.Time); err != nil {
					return nil, err
				}
			}
		}
		if seen >= mark {
			return rec, nil
		}
		if err := rest(ctx, wait); err != nil {
			return nil, away(err)
		}
	}
}

// rest is pause for about d.
func rest(ctx context.Context, d time.Duration) error { return pause(ctx, d/2+rand.N(d)) }

// away is an error of JetStream's with a code.
func away(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errcode.Wrap(errcode.Unavailable, err, "JetStream did not answer in time")
	}
	return err
}

// errNoStream is that there is nowhere to write a mark.
var errNoStream = errors.New("no stream takes the mark")

// writeMark writes a mark and returns its sequence; those before it go soon.
func (a *Area) writeMark(b *bucket) (uint64, error) {
	ctx, cancel := context.WithTimeout(a.base, markTimeout)
	defer cancel()
	ack, err := a.js.PublishMsg(ctx, nats.NewMsg(b.mark()), jetstream.WithRetryAttempts(1))
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return 0, errNoStream
	case err != nil:
		return 0, away(jet.PublishError(err))
	}
	a.jan.supersede(ctx, b, b.mark(), ack.Sequence)
	return ack.Sequence, nil
}

// marks writes one mark after another for a tenant's readers: each serves all who
// asked before it was written.
type marks struct {
	mu      sync.Mutex
	writing bool
	waiting *mark // of those who came since; nil: nobody
}

type mark struct {
	done chan struct{}
	seq  uint64
	err  error
}

// next returns the sequence of a mark that is written after next was called.
func (m *marks) next(ctx context.Context, a *Area, b *bucket) (uint64, error) {
	m.mu.Lock()
	if m.waiting == nil {
		m.waiting = &mark{done: make(chan struct{})}
	}
	mine := m.waiting
	if !m.writing {
		m.writing = true
		a.wg.Go(func() { m.write(a, b) })
	}
	m.mu.Unlock()
	select {
	case <-mine.done:
		return mine.seq, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (m *marks) write(a *Area, b *bucket) {
	for {
		m.mu.Lock()
		now := m.waiting
		m.waiting = nil
		m.writing = now != nil
		m.mu.Unlock()
		if now == nil {
			return
		}
		now.seq, now.err = a.writeMark(b)
		close(now.done)
	}
}
