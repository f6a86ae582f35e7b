// Package crew runs functions on goroutines that stay a while: a fresh one pays
// for growing its stack, which for a short request costs as much as the rest.
package crew

import (
	"sync"
	"sync/atomic"
	"time"
)

// Crew is a set of goroutines. It limits how many of them are idle, not how many
// are at work; those that stay idle go, but for a few. Close it.
type Crew struct {
	work    chan func() // nil sends one home
	end     chan struct{}
	once    sync.Once
	idle    atomic.Int64
	maxIdle int64

	thinning atomic.Bool // thin will run
	timer    *time.Timer // runs thin
}

const (
	thinEvery = 5 * time.Second // half of the idle go
	fewIdle   = 8               // stay
)

// New makes a Crew without anybody in it, of which at most maxIdle wait for
// work.
func New(maxIdle int) *Crew {
	c := &Crew{work: make(chan func()), end: make(chan struct{}), maxIdle: int64(maxIdle)}
	c.timer = time.AfterFunc(thinEvery, c.thin)
	c.timer.Stop()
	return c
}

// Go runs f on a goroutine, at once, whatever the others do. f may end its
// goroutine (runtime.Goexit). Go works on a closed Crew too.
func (c *Crew) Go(f func()) {
	select {
	case c.work <- f:
	default: // nobody is idle
		go c.member(f)
	}
}

func (c *Crew) member(f func()) {
	for {
		f()
		if c.idle.Add(1) > c.maxIdle {
			c.idle.Add(-1)
			return
		}
		if !c.thinning.Load() && c.thinning.CompareAndSwap(false, true) {
			c.timer.Reset(thinEvery)
		}
		select {
		case f = <-c.work:
			c.idle.Add(-1)
			if f == nil {
				return
			}
		case <-c.end:
			c.idle.Add(-1)
			return
		}
	}
}

// thin sends half of the idle goroutines home, until few are left: what a burst
// needed shall not stay for good.
func (c *Crew) thin() {
	n := c.idle.Load()
	if n <= fewIdle {
		c.thinning.Store(false) // whoever is idle next begins again
		return
	}
	for range (n - fewIdle + 1) / 2 {
		select {
		case c.work <- nil:
		default: // at work meanwhile
		}
	}
	c.timer.Reset(thinEvery)
}

// Close has the idle goroutines end, and the others after what they do. Safe to
// call twice.
func (c *Crew) Close() {
	c.once.Do(func() {
		close(c.end)
		c.timer.Stop()
	})
}
