package area

import (
	"context"
	"sync"
	"time"
)

// janitor removes what a commit superseded, behind the caller's back: nothing
// names it any more, and the sweep would find what a crash leaves.
type janitor struct {
	a     *Area
	tasks chan func(context.Context) error
	wg    sync.WaitGroup

	mu     sync.RWMutex
	closed bool
}

const (
	janitorQueue   = 1024
	janitorTimeout = 10 * time.Second
)

func startJanitor(a *Area) *janitor {
	j := &janitor{a: a, tasks: make(chan func(context.Context) error, janitorQueue)}
	j.wg.Go(func() {
		for t := range j.tasks {
			j.run(a.base, t)
		}
	})
	return j
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

func (j *janitor) purgeChunks(ctx context.Context, b *bucket, id string) {
	j.do(ctx, func(ctx context.Context) error { return b.reader.Purge(ctx, b.chunk(id)) })
}
