package ticks

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// lostAfter is how long a worker that has begun to beat (it does so every second)
// may be silent before it counts as lost.
const lostAfter = 5 * time.Second

// hearBeats asks in the headers of a job request for beats, and ends the returned
// context with worker_lost when they stop coming. A worker that never beats is one
// that knows nothing of beats: it is waited for as long as the run may take.
func (r *Runner) hearBeats(ctx context.Context, n *run, msg *nats.Msg) (_ context.Context, stop func(), err error) {
	id := uuid.NewString()
	msg.Header.Set(message.HeaderBeats, "1")
	msg.Header.Set(message.HeaderCallID, id)
	ctx, lost := context.WithCancelCause(ctx)
	p := &pulse{lost: func() {
		lost(errcode.New(errcode.WorkerLost, "the worker that ran %s of %s has not been heard of for %s", n.e.JobType, n.e.Tool, lostAfter))
	}}
	sub, err := r.nc.Subscribe(subject.AgentProgress(n.e.Tenant, n.e.Agent, id), func(*nats.Msg) { p.beat() })
	if err != nil {
		lost(nil)
		return nil, nil, errcode.Wrap(errcode.Unavailable, err, "listen for beats: %v", err)
	}
	return ctx, func() {
		_ = sub.Unsubscribe() // fails on a closed connection only
		p.stop()
		lost(nil)
	}, nil
}

// pulse calls lost when beats have begun and stop.
type pulse struct {
	lost func()

	mu    sync.Mutex
	timer *time.Timer // nil: no beat yet
	ended bool
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
	case p.timer == nil:
		p.timer = time.AfterFunc(lostAfter, p.lost)
	default:
		p.timer.Reset(lostAfter)
	}
}

func (p *pulse) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
}
