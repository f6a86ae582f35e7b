package tooltest

import (
	"sync"
	"time"
)

// clock is the real one until it is set.
type clock struct {
	mu     sync.Mutex
	frozen bool
	at     time.Time     // when frozen
	shift  time.Duration // when not
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen {
		return c.at
	}
	return time.Now().Add(c.shift)
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen, c.at = true, t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen {
		c.at = c.at.Add(d)
	} else {
		c.shift += d
	}
}
