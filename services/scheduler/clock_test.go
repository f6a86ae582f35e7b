package scheduler

import (
	"sync/atomic"
	"time"
)

// Clock is the machine's, and may be put forward: what a test would otherwise wait
// for has passed then.
type Clock struct{ ahead atomic.Int64 }

// Now is what the clock shows.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Forward puts the clock forward by whole seconds.
func (c *Clock) Forward(seconds int) { c.ahead.Add(int64(time.Duration(seconds) * time.Second)) }

// UseClock gives a service that has not started a clock by which slots are due.
func (s *Service) UseClock(c *Clock) { s.now = c.Now }
