package bucket

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/services/internal/jet"
)

// A stream's leader does not know that it was deposed until it hears so: one that
// was frozen, or cut off, answers reads with what was last in its days. Only a
// write proves that a leader leads, since a majority must store it. So with
// replicas a read that must be current writes a mark first, and is answered by
// any member that has got it: that one has got all that came before. One mark
// serves all reads that were waiting when it was written.

// markKey is where marks are written. No document or value has a key of one
// token.
const markKey = "_mark"

const (
	markLife    = time.Minute // a mark is of use for milliseconds
	markTimeout = time.Second
	behindPause = 2 * time.Millisecond // until a member that is behind is asked again
)

// Read reads a key's last message, Seq 0 when there is none, as Last does; but
// whatever was written before Read was called is seen. The Message is Current.
func (b *Bucket) Read(ctx context.Context, key string) (Message, error) {
	if !b.leader {
		return b.Last(ctx, key)
	}
	mark, err := b.marks.next(ctx)
	if err != nil {
		return Message{}, err
	}
	of, at := jet.KVSubject(b.name, key), jet.KVSubject(b.name, markKey)
	for {
		msgs, err := jet.Last(ctx, b.js, "KV_"+b.name, of, at)
		if err != nil {
			return Message{}, err
		}
		out, current := Message{Key: key}, false
		for _, m := range msgs {
			switch m.Subject {
			case of:
				out = b.message(m)
			case at:
				current = m.Sequence >= mark
			}
		}
		if current {
			out.Current = true
			return out, nil
		}
		select {
		case <-ctx.Done():
			return Message{}, ctx.Err()
		case <-time.After(behindPause/2 + rand.N(behindPause)):
		}
	}
}

// mark writes a mark and returns its sequence.
func (b *Bucket) mark(ctx context.Context) (uint64, error) {
	header := nats.Header{}
	markRemoved(header) // so that it goes without a word
	ack, err := b.js.PublishMsg(ctx, b.msg(markKey, header, nil, markLife), jetstream.WithRetryAttempts(1))
	if err != nil {
		return 0, jet.PublishError(err)
	}
	return ack.Sequence, nil
}

// marks writes one mark for all who ask for one at the same time.
type marks struct {
	write func(context.Context) (uint64, error)
	turn  chan struct{} // holds one token: who put it there writes

	mu   sync.Mutex
	open *markRound // the next to be written; nil: nobody waits
}

type markRound struct {
	done chan struct{} // closed when seq and err are known
	seq  uint64
	err  error
}

func newMarks(write func(context.Context) (uint64, error)) *marks {
	return &marks{write: write, turn: make(chan struct{}, 1)}
}

// next returns the sequence of a mark whose writing began after next was called.
func (m *marks) next(ctx context.Context) (uint64, error) {
	m.mu.Lock()
	if m.open == nil {
		m.open = &markRound{done: make(chan struct{})}
	}
	r := m.open
	m.mu.Unlock()
	select {
	case m.turn <- struct{}{}:
		m.serve(ctx, r)
		<-m.turn
	case <-r.done:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	// Who had the turn before us may have served r, but then it is done.
	<-r.done
	return r.seq, r.err
}

// serve writes r's mark, unless that has been done. Called with the turn.
func (m *marks) serve(ctx context.Context, r *markRound) {
	m.mu.Lock()
	if m.open != r {
		m.mu.Unlock()
		return
	}
	m.open = nil // who comes from now on needs another
	m.mu.Unlock()
	// Others wait for it too, however long this caller does.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	r.seq, r.err = m.write(ctx)
	close(r.done)
}
