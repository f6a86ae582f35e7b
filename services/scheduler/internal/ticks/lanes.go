package ticks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/toolbus/toolbus/services/scheduler/internal/configs"
)

// lane lets a number of runs pass at once, and of each agent a smaller one, so
// that an agent whose runs hang leaves room for the others. It is safe for
// concurrent use.
type lane struct {
	total, each int // at once: in all, and of one agent
	queue       int // that wait in all; of one agent as many as may run in all

	mu      sync.Mutex
	running int
	of      map[configs.Ref]int
	waiting []*waiter // in the order they came
}

type waiter struct {
	ref    configs.Ref
	passed chan struct{} // closed when it may run
}

func newLane(total, each, queue int) *lane {
	return &lane{total: total, each: each, queue: queue, of: map[configs.Ref]int{}}
}

// enter waits for a place; false when there is none within patience. Whoever got
// one leaves.
func (l *lane) enter(ctx context.Context, ref configs.Ref, patience time.Duration) bool {
	l.mu.Lock()
	if l.free(ref) {
		l.take(ref)
		l.mu.Unlock()
		return true
	}
	mine := 0
	for _, w := range l.waiting {
		if w.ref == ref {
			mine++
		}
	}
	if len(l.waiting) >= l.queue || mine >= l.total {
		l.mu.Unlock()
		return false
	}
	w := &waiter{ref: ref, passed: make(chan struct{})}
	l.waiting = append(l.waiting, w)
	l.mu.Unlock()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-w.passed:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, w)
	if i < 0 {
		return true // just now
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return false
}

func (l *lane) leave(ref configs.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if l.of[ref]--; l.of[ref] == 0 {
		delete(l.of, ref)
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w *waiter) bool {
		if !l.free(w.ref) {
			return false
		}
		l.take(w.ref)
		close(w.passed)
		return true
	})
}

func (l *lane) free(ref configs.Ref) bool { return l.running < l.total && l.of[ref] < l.each }

func (l *lane) take(ref configs.Ref) {
	l.running++
	l.of[ref]++
}

// lanes are one lane for each tool, as long as somebody is in it.
type lanes struct {
	total int // see lane

	mu    sync.Mutex
	tools map[string]*usedLane
}

type usedLane struct {
	*lane
	users int
}

func newLanes(total int) *lanes { return &lanes{total: total, tools: map[string]*usedLane{}} }

// enter is lane.enter for a tool's lane.
func (l *lanes) enter(ctx context.Context, tool string, ref configs.Ref, patience time.Duration) (leave func(), ok bool) {
	l.mu.Lock()
	u := l.tools[tool]
	if u == nil {
		u = &usedLane{lane: newLane(l.total, share(l.total), queued*l.total)}
		l.tools[tool] = u
	}
	u.users++
	l.mu.Unlock()
	gone := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if u.users--; u.users == 0 {
			delete(l.tools, tool)
		}
	}
	if !u.lane.enter(ctx, ref, patience) {
		gone()
		return nil, false
	}
	return func() { u.lane.leave(ref); gone() }, true
}

// queued is how many checks of a tool may wait for each that may run.
const queued = 16

// share is how much of something one agent may take.
func share(total int) int { return max(1, total/4) }
