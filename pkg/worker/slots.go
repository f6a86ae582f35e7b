package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// slots are what a worker has to run calls in: so many in all, for each tool, and,
// where that is set, for each tenant and for an agent's use of a tool. Calls beyond a
// limit wait in line: per tool one line for each tenant, which take turns, so that a
// tenant's thousand calls do not keep another's one waiting.
//
// No call waits longer than it has: one whose turn would come after its deadline, as
// far as earlier calls tell, is refused at once.
type slots struct {
	max       int // calls at once in this worker; 0: no limit
	perTenant int // of one tenant; 0: no limit

	changed func() // a tool has become full, or free again

	mu      sync.Mutex
	used    int
	tenants map[string]int
	agents  map[agentTool]int
	lines   []*toolSlots // tools with calls that wait, in turn
}

// toolSlots are a tool's slots.
type toolSlots struct {
	name string
	max  int

	used    int
	waiting int
	lines   []*line       // of tenants, in turn
	took    time.Duration // a call, on average of the latest
}

// line is what waits of one tenant, first come first.
type line struct {
	tenant string
	first  []*waiter
}

type waiter struct {
	claim
	ready chan struct{} // closed when it has its slot
	has   bool
}

// claim is whose call takes a slot.
type claim struct {
	tool   *toolSlots
	tenant string
	agent  string
	most   int // of this agent's calls of the tool; 0: no limit
}

type agentTool struct{ tenant, agent, tool string }

func (c claim) key() agentTool { return agentTool{c.tenant, c.agent, c.tool.name} }

func newSlots(most, perTenant int) *slots {
	return &slots{max: most, perTenant: perTenant, tenants: map[string]int{}, agents: map[agentTool]int{}}
}

// try takes a slot if there is one now.
func (s *slots) try(c claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Whoever waits does so for a limit that has been reached.
	if !s.fits(c) {
		return false
	}
	s.take(c)
	return true
}

// acquire waits for a slot until ctx ends. overloaded is that there is none before
// deadline; it says when to try again. Give the slot back with release.
func (s *slots) acquire(ctx context.Context, c claim, deadline time.Time) error {
	s.mu.Lock()
	if s.fits(c) {
		s.take(c)
		s.mu.Unlock()
		return nil
	}
	wait := s.wait(c.tool)
	if !deadline.IsZero() && wait > time.Until(deadline) {
		s.mu.Unlock()
		return overloaded(c.tool.name, wait)
	}
	w := &waiter{claim: c, ready: make(chan struct{})}
	s.enqueue(w)
	s.mu.Unlock()
	var late <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(patience(time.Until(deadline)))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-w.ready:
		return nil
	case <-late:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.has {
		s.give(c)
	} else {
		s.drop(w)
	}
	if ctx.Err() != nil && errcode.Of(context.Cause(ctx)) != errcode.Timeout {
		return ended(ctx)
	}
	return overloaded(c.tool.name, s.wait(c.tool))
}

// patience is how long a call waits that has so much time: what is left at the end is
// for the refusal to arrive.
func patience(left time.Duration) time.Duration { return left - min(left/10, 100*time.Millisecond) }

// minRetryAfter is the least that a caller is asked to wait.
const minRetryAfter = 100 * time.Millisecond

// overloaded refuses a call that has not begun.
func overloaded(tool string, wait time.Duration) *errcode.Error {
	err := errcode.New(errcode.Overloaded, "%s has no free slot in this worker before the call's deadline", tool)
	wait = max(wait, minRetryAfter).Round(minRetryAfter)
	err.Details = &errcode.Details{RetryAfter: wait.String(), NotStarted: true}
	return err
}

// wait is how long the next call of a tool would wait, as far as the latest tell.
// Called with mu.
func (s *slots) wait(t *toolSlots) time.Duration {
	n := t.max
	if s.max > 0 {
		n = min(n, s.max)
	}
	return t.took * time.Duration(t.waiting+1) / time.Duration(n)
}

// release gives a slot back after a call that took so long; 0 tells nothing.
func (s *slots) release(c claim, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case took <= 0:
	case c.tool.took == 0:
		c.tool.took = took
	default:
		c.tool.took += (took - c.tool.took) / 8
	}
	s.give(c)
}

// fits tells whether no limit keeps a call from running now. Called with mu.
func (s *slots) fits(c claim) bool {
	return s.room() && c.tool.used < c.tool.max && s.mayRun(c)
}

func (s *slots) room() bool { return s.max == 0 || s.used < s.max }

// mayRun looks at the limits of the tenant and the agent.
func (s *slots) mayRun(c claim) bool {
	return (s.perTenant == 0 || s.tenants[c.tenant] < s.perTenant) && (c.most == 0 || s.agents[c.key()] < c.most)
}

func (s *slots) take(c claim) { s.add(c, 1) }

// give gives a slot back and hands out what has become free.
func (s *slots) give(c claim) {
	s.add(c, -1)
	s.hand()
}

func (s *slots) add(c claim, n int) {
	before := s.left(c.tool)
	s.used += n
	c.tool.used += n
	if s.changed != nil && (before > 0) != (s.left(c.tool) > 0) {
		s.changed()
	}
	if s.perTenant > 0 {
		count(s.tenants, c.tenant, n)
	}
	if c.most > 0 {
		count(s.agents, c.key(), n)
	}
}

func count[K comparable](m map[K]int, k K, n int) {
	if m[k] += n; m[k] == 0 {
		delete(m, k)
	}
}

func (s *slots) enqueue(w *waiter) {
	t := w.tool
	i := slices.IndexFunc(t.lines, func(l *line) bool { return l.tenant == w.tenant })
	if i < 0 {
		i = len(t.lines)
		t.lines = append(t.lines, &line{tenant: w.tenant})
	}
	t.lines[i].first = append(t.lines[i].first, w)
	if t.waiting++; t.waiting == 1 {
		s.lines = append(s.lines, t)
	}
}

// drop takes one out of its line.
func (s *slots) drop(w *waiter) {
	t := w.tool
	i := slices.IndexFunc(t.lines, func(l *line) bool { return l.tenant == w.tenant })
	l := t.lines[i]
	l.first = slices.DeleteFunc(l.first, func(x *waiter) bool { return x == w })
	if len(l.first) == 0 {
		t.lines = slices.Delete(t.lines, i, i+1)
	}
	if t.waiting--; t.waiting == 0 {
		s.lines = slices.DeleteFunc(s.lines, func(x *toolSlots) bool { return x == t })
	}
}

// hand lets run what may, the tools and their tenants in turn.
func (s *slots) hand() {
	for s.room() {
		i := slices.IndexFunc(s.lines, func(t *toolSlots) bool { return t.used < t.max && s.next(t) })
		if i < 0 {
			return
		}
	}
}

// next lets the next call of a tool run; false when none may.
func (s *slots) next(t *toolSlots) bool {
	for i, l := range t.lines {
		for _, w := range l.first {
			if !s.mayRun(w.claim) {
				continue
			}
			// To the end of the turn: the tenant, and the tool.
			t.lines = append(slices.Delete(t.lines, i, i+1), l)
			j := slices.Index(s.lines, t)
			s.lines = append(slices.Delete(s.lines, j, j+1), t)
			s.drop(w)
			w.has = true
			s.take(w.claim)
			close(w.ready)
			return true
		}
	}
	return false
}

// free is how many more calls of a tool could run now.
func (s *slots) free(t *toolSlots) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left(t)
}

// left is free, called with mu.
func (s *slots) left(t *toolSlots) int {
	n := t.max - t.used
	if s.max > 0 {
		n = min(n, s.max-s.used)
	}
	return max(n, 0)
}

// load is how many calls of a tool run and wait here.
func (s *slots) load(t *toolSlots) (running, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.used, t.waiting
}
