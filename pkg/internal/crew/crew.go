// Package crew runs functions on goroutines that stay a while: a fresh one pays
// for growing its stack, which for a short request costs as much as the rest.
package crew

import (
	"sync"
	"sync/atomic"
)

// Crew is a set of goroutines. It limits how many of them are idle, not how many
// are at work. Close it.
type Crew struct {
	work    chan func()
	end     chan struct{}
	once    sync.Once
	idle    atomic.Int64
	maxIdle int64
}

// New makes a Crew without anybody in it, of which at most maxIdle wait for
// work.
func New(maxIdle int) *Crew {
	return &Crew{work: make(chan func()), end: make(chan struct{}), maxIdle: int64(maxIdle)}
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
		select {
		case f = <-c.work:
			c.idle.Add(-1)
		case <-c.end:
			c.idle.Add(-1)
			return
		}
	}
}

// Close has the idle goroutines end, and the others after what they do. Safe to
// call twice.
func (c *Crew) Close() { c.once.Do(func() { close(c.end) }) }
