// Package cache keeps answers of a remote owner in memory: asked once, dropped
// when the owner says they changed, and never older than a limit, since change
// events are at most once.
package cache

import (
	"context"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Cache is safe for concurrent use. Concurrent gets of one key share one load.
type Cache[K comparable, V any] struct {
	load   func(ctx context.Context, key K) (V, error)
	maxAge time.Duration
	now    func() time.Time

	mu      sync.Mutex
	gen     uint64 // grows with every drop, so that a load begun before one is not kept
	entries map[K]*entry[V]
}

type entry[V any] struct {
	v       V
	filled  bool
	at      time.Time     // when the load that filled it began
	gen     uint64        // the generation that load began in
	loading chan struct{} // closed when the load under way ends
	lastErr error         // of the last load
	lastGen uint64        // the generation the last load began in
}

// loadTimeout limits a load; it runs apart from the caller's context, since
// others may wait for the same.
const loadTimeout = 5 * time.Second

// New makes a cache. Values older than maxAge are loaded again; from half that
// age on this happens in the background, so that a busy key never waits.
func New[K comparable, V any](maxAge time.Duration, load func(context.Context, K) (V, error)) *Cache[K, V] {
	return &Cache[K, V]{load: load, maxAge: maxAge, now: time.Now, entries: map[K]*entry[V]{}}
}

// Get returns the value of key, loading it when need be. Failures are not
// kept; while the owner is unavailable a value stands until it is too old.
func (c *Cache[K, V]) Get(ctx context.Context, key K) (V, error) {
	for {
		c.mu.Lock()
		e := c.entries[key]
		if e == nil {
			e = &entry[V]{}
			c.entries[key] = e
		}
		age := c.now().Sub(e.at)
		fresh := e.filled && e.gen == c.gen && age < c.maxAge
		if (!fresh || age > c.maxAge/2) && e.loading == nil {
			e.loading = make(chan struct{})
			go c.fill(key, e, c.gen)
		}
		v, wait := e.v, e.loading
		c.mu.Unlock()
		if fresh {
			return v, nil
		}
		select {
		case <-ctx.Done():
			var zero V
			return zero, ctx.Err()
		case <-wait:
		}
		c.mu.Lock()
		// Good enough for whoever waited, unless a drop came after the load began.
		v, err, ok := e.v, e.lastErr, e.lastGen == c.gen
		c.mu.Unlock()
		if ok {
			return v, err
		}
	}
}

func (c *Cache[K, V]) fill(key K, e *entry[V], gen uint64) {
	at := c.now()
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	v, err := c.load(ctx, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.lastErr, e.lastGen = err, gen
	switch {
	case err == nil:
		e.v, e.filled, e.gen, e.at = v, true, gen, at
	case errcode.From(err).Retryable && e.filled:
		// The owner is away: what is known stands until it is too old.
	default:
		e.filled = false
		if c.entries[key] == e {
			delete(c.entries, key) // keep no rubbish for names that do not exist
		}
	}
	close(e.loading)
	e.loading = nil
}

// Peek returns the value of key that is kept, though it may be too old; ok is false
// when there is none. It never loads.
func (c *Cache[K, V]) Peek(key K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil && e.filled {
		return e.v, true
	}
	return v, false
}

// Drop forgets everything: the next Get of any key loads.
func (c *Cache[K, V]) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen++
}

// Fresh loads key now, whatever is kept.
func (c *Cache[K, V]) Fresh(ctx context.Context, key K) (V, error) {
	c.DropKey(key)
	return c.Get(ctx, key)
}

// DropKey forgets one key.
func (c *Cache[K, V]) DropKey(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		delete(c.entries, key)
	}
}
