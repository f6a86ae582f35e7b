package worker

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
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

// startBeats publishes a beat at once and every second until stopped.
func startBeats(nc *nats.Conn, to string) (stop func()) {
	_ = nc.Publish(to, beat)
	t := time.NewTicker(beatEvery)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-t.C:
				_ = nc.Publish(to, beat)
			case <-done:
				return
			}
		}
	}()
	return func() { t.Stop(); close(done) }
}
