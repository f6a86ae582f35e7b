package bucket

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
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
// any member that has got it: that one has got all that came before. The reads
// that come while others are under way share a mark and a request.

// markKey is where marks are written. No document or value has a key of one
// token.
const markKey = "_mark"

const (
	markLife     = time.Minute // a mark is of use for milliseconds
	groupTimeout = time.Second
	groupKeys    = 128 // at most 64 KiB each by default
	groupsAtOnce = 4
	// Pauses until a member that is behind is asked again: it hears within a round
	// trip that the mark stands.
	behindPause    = 100 * time.Microsecond
	maxBehindPause = 10 * time.Millisecond
)

// Read reads a key's last message, Seq 0 when there is none, as Last does; but
// whatever was written before Read was called is seen. The Message is Current.
func (b *Bucket) Read(ctx context.Context, key string) (Message, error) {
	if !b.leader {
		return b.Last(ctx, key)
	}
	m, err := b.reads.do(ctx, key)
	if errors.Is(err, context.DeadlineExceeded) {
		err = readError(err)
	}
	// Others may have got the same message: each may do with its own as it likes.
	m.Data = slices.Clone(m.Data)
	return m, err
}

// readCurrent reads keys' last messages, those that there are.
func (b *Bucket) readCurrent(ctx context.Context, keys []string) (map[string]Message, error) {
	mark, err := b.mark(ctx)
	if err != nil {
		return nil, err
	}
	filters := make([]string, 0, len(keys)+1)
	for _, k := range append(keys, markKey) {
		filters = append(filters, jet.KVSubject(b.name, k))
	}
	for pause := behindPause; ; pause = min(2*pause, maxBehindPause) {
		msgs, err := jet.Last(ctx, b.js, "KV_"+b.name, filters...)
		if err != nil {
			return nil, err
		}
		out := make(map[string]Message, len(msgs))
		for _, m := range msgs {
			found := b.message(m)
			found.Current = true
			out[found.Key] = found
		}
		if out[markKey].Seq >= mark {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause/2 + rand.N(pause)):
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

// groups reads for all who ask at the same time together.
type groups struct {
	read  func(context.Context, []string) (map[string]Message, error)
	room  func() int    // bytes of one group's keys
	turns chan struct{} // a token for each group that is being read

	mu   sync.Mutex
	open *group // takes more keys; nil: nobody waits
}

type group struct {
	keys  []string // no more once it is taken
	size  int      // of keys, in bytes
	taken bool
	done  chan struct{} // closed when out and err are known
	out   map[string]Message
	err   error
}

func newGroups(read func(context.Context, []string) (map[string]Message, error), room func() int) *groups {
	return &groups{read: read, room: room, turns: make(chan struct{}, groupsAtOnce)}
}

// do returns a key's message from a read that began after do was called.
func (g *groups) do(ctx context.Context, key string) (Message, error) {
	r := g.join(key)
	select {
	case g.turns <- struct{}{}: // one of those who wait reads for them
		g.serve(ctx, r)
		<-g.turns
	case <-r.done:
	case <-ctx.Done():
		return Message{}, ctx.Err()
	}
	select {
	case <-r.done: // perhaps by somebody else
	case <-ctx.Done():
		return Message{}, ctx.Err()
	}
	if r.err != nil {
		return Message{}, r.err
	}
	m, found := r.out[key]
	if !found {
		m = Message{Key: key, Current: true}
	}
	return m, nil
}

func (g *groups) join(key string) *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.open; r != nil && slices.Contains(r.keys, key) {
		return r
	} else if r == nil || len(r.keys) == groupKeys || r.size+len(key) > g.room() {
		g.open = &group{done: make(chan struct{})}
	}
	g.open.keys = append(g.open.keys, key)
	g.open.size += len(key)
	return g.open
}

// serve reads for a group, unless somebody does. Called with a turn.
func (g *groups) serve(ctx context.Context, r *group) {
	g.mu.Lock()
	taken := r.taken
	r.taken = true
	if g.open == r {
		g.open = nil // who comes from now on needs another
	}
	g.mu.Unlock()
	if taken {
		return
	}
	// Others wait for it too, however long this caller does.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTimeout)
	defer cancel()
	r.out, r.err = g.read(ctx, r.keys)
	close(r.done)
}
