package worker

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// callKey names a call; its id is unique within an agent only.
type callKey struct{ tenant, agent, id string }

// running knows the calls under way, so that they can be cancelled.
type running struct {
	mu    sync.Mutex
	calls map[callKey]map[*context.CancelCauseFunc]struct{}
}

// enter adds a call; the returned function takes it out again. A caller may use
// one id for several calls: a cancel then ends all of them.
func (r *running) enter(k callKey, cancel context.CancelCauseFunc) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[callKey]map[*context.CancelCauseFunc]struct{}{}
	}
	if r.calls[k] == nil {
		r.calls[k] = map[*context.CancelCauseFunc]struct{}{}
	}
	r.calls[k][&cancel] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calls[k], &cancel)
		if len(r.calls[k]) == 0 {
			delete(r.calls, k)
		}
	}
}

func (r *running) cancel(k callKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.calls[k] {
		(*c)(errcode.New(errcode.Cancelled, "the call was cancelled"))
	}
}

// beatEvery is how often a running call shows that it lives. Callers take
// several missing beats for a lost worker.
const beatEvery = time.Second

var beat = []byte(`{"beat":true}`)

// firstBeat is how long a call's first beat may wait.
func firstBeat(h nats.Header) time.Duration {
	ms, err := strconv.ParseUint(h.Get(message.HeaderFirstBeat), 10, 16)
	if err != nil {
		return 0
	}
	return min(time.Duration(ms)*time.Millisecond, beatEvery)
}

// startBeats publishes a first beat after a while, or at once, and then one every
// second until stopped. After stop has returned there is none.
func startBeats(nc *nats.Conn, to string, first time.Duration) (stop func()) {
	if first == 0 {
		_ = nc.Publish(to, beat)
		first = beatEvery
	}
	b := &beats{}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = time.AfterFunc(first, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.stopped {
			_ = nc.Publish(to, beat)
			b.next.Reset(beatEvery)
		}
	})
	return b.stop
}

// beats are a call's beats to come. Most calls end before the first.
type beats struct {
	mu      sync.Mutex
	stopped bool
	next    *time.Timer
}

func (b *beats) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.next.Stop()
}
