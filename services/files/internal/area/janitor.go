package area

import (
	"context"
	"sync"
	"time"

	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

// janitor removes what commits superseded, behind the callers' backs: nothing
// names it any more, and the sweep would find what a crash leaves. It lets a
// little come together first: of a file that is written often, one request then
// removes the metadata of many superseded versions, and most writes meet no
// removal under way, which costs the server as much as a write.
type janitor struct {
	a     *Area
	tasks chan func(context.Context) error
	wake  *time.Timer
	wg    sync.WaitGroup

	mu      sync.RWMutex
	closed  bool
	waiting int
	old     map[oldKey]uint64 // metadata below a sequence
	ids     map[oldKey]bool   // chunks
}

// oldKey is a subject of a stream.
type oldKey struct {
	reader  stream.Reader
	subject string
}

const (
	janitorQueue   = 1024
	janitorDelay   = 250 * time.Millisecond
	janitorAtOnce  = 1 << 20 // bytes of a version that does not wait
	janitorTimeout = 10 * time.Second
)

func startJanitor(a *Area) *janitor {
	j := &janitor{
		a: a, tasks: make(chan func(context.Context) error, janitorQueue), wake: time.NewTimer(time.Hour),
		old: map[oldKey]uint64{}, ids: map[oldKey]bool{},
	}
	j.wg.Go(func() {
		defer j.wake.Stop()
		for {
			select {
			case t, ok := <-j.tasks:
				j.flush(a.base)
				if !ok {
					return
				}
				j.run(a.base, t)
			case <-j.wake.C:
				j.flush(a.base)
			}
		}
	})
	return j
}

// flush removes what has come together.
func (j *janitor) flush(ctx context.Context) {
	j.mu.Lock()
	old, ids := j.old, j.ids
	j.old, j.ids, j.waiting = map[oldKey]uint64{}, map[oldKey]bool{}, 0
	j.mu.Unlock()
	for k, seq := range old {
		j.run(ctx, func(ctx context.Context) error { return k.reader.PurgeBelow(ctx, k.subject, seq) })
	}
	for k := range ids {
		j.run(ctx, func(ctx context.Context) error { return k.reader.Purge(ctx, k.subject) })
	}
}

// collect has add note something for the next flush; whoever fills it up
// flushes itself.
func (j *janitor) collect(ctx context.Context, add func()) {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return // the sweep of another replica will do it
	}
	add()
	if j.waiting++; j.waiting == 1 {
		j.wake.Reset(janitorDelay)
	}
	full := j.waiting >= janitorQueue
	j.mu.Unlock()
	if full {
		j.flush(context.WithoutCancel(ctx))
	}
}

// stop finishes what is queued, until ctx ends.
func (j *janitor) stop(ctx context.Context) {
	j.mu.Lock()
	if !j.closed {
		j.closed = true
		close(j.tasks)
	}
	j.mu.Unlock()
	done := make(chan struct{})
	go func() { j.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		j.a.cancel()
		<-done
	}
}

// do queues a task; a full queue makes the writers that fill it wait.
func (j *janitor) do(ctx context.Context, t func(context.Context) error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return // the sweep of another replica will do it
	}
	select {
	case j.tasks <- t:
	default:
		j.run(context.WithoutCancel(ctx), t)
	}
}

func (j *janitor) run(ctx context.Context, t func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, janitorTimeout)
	defer cancel()
	if err := t(ctx); err != nil {
		j.a.log.Debug("clean-up left to the sweep", "err", err)
	}
}

func (j *janitor) deleteMsg(ctx context.Context, b *bucket, seqs ...uint64) {
	for _, seq := range seqs {
		j.do(ctx, func(ctx context.Context) error { return b.reader.Delete(ctx, seq) })
	}
}

// supersede removes the metadata of a subject below a sequence.
func (j *janitor) supersede(ctx context.Context, b *bucket, meta string, seq uint64) {
	k := oldKey{b.reader, meta}
	j.collect(ctx, func() { j.old[k] = max(j.old[k], seq) })
}

// dropChunks removes the chunks that next, which is committed, does not need any
// more, but what it superseded did; much at once.
func (j *janitor) dropChunks(ctx context.Context, b *bucket, next *record.Record, old ...*record.Record) {
	for _, r := range old {
		for id, size := range r.Held() {
			switch {
			case next.Exists() && next.Names(id):
			case size < janitorAtOnce:
				j.purgeChunks(ctx, b, id)
			default:
				j.do(ctx, func(ctx context.Context) error { return b.reader.Purge(ctx, b.chunk(id)) })
			}
		}
	}
}

// purgeChunks removes all chunks of an id.
func (j *janitor) purgeChunks(ctx context.Context, b *bucket, id string) {
	j.collect(ctx, func() { j.ids[oldKey{b.reader, b.chunk(id)}] = true })
}
