package worker

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Queue groups choose a worker blindly. One without a free slot for a call hands it to
// another that has one, on the other's own subject and with the caller's reply subject:
// once, and only while the call has not begun. Who has free slots the workers tell each
// other, when that changes; while nobody is full, nobody says anything.

const (
	loadPause = 5 * time.Millisecond // between two words of one worker
	loadAgain = 2 * time.Second      // while it is full
	loadAge   = 5 * time.Second      // that another's word counts

	// A worker that has just become full hears of the others in a moment.
	idleWait = 25 * time.Millisecond
	idlePoll = 2 * time.Millisecond
)

// peers is what the other workers say of themselves.
type peers struct {
	mu    sync.Mutex
	known map[string]peer // by worker id
}

type peer struct {
	free map[string]int
	at   time.Time
}

func (p *peers) hear(l message.WorkerLoad) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string]peer{}
	}
	p.known[l.WorkerID] = peer{free: maps.Clone(l.Free), at: time.Now()}
}

// idle takes a free slot of another worker, "" when there is none.
func (p *peers) idle(tool string) (worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := 0
	for id, other := range p.known {
		switch free := other.free[tool]; {
		case time.Since(other.at) > loadAge:
			delete(p.known, id)
		case free > most || free == most && free > 0 && rand.N(2) == 0:
			worker, most = id, free
		}
	}
	if worker != "" {
		p.known[worker].free[tool]--
	}
	return worker
}

// teller tells the other workers of free slots.
type teller struct {
	w     *Worker
	wake  chan struct{}
	close func(context.Context) error
}

func startTeller(w *Worker) *teller {
	t := &teller{w: w, wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.close = func(context.Context) error { cancel(); <-done; return nil }
	go func() {
		defer close(done)
		t.run(ctx)
	}()
	return t
}

// changed is called when a tool has become full, or free again.
func (t *teller) changed() {
	select {
	case t.wake <- struct{}{}:
	default: // it looks soon
	}
}

func (t *teller) run(ctx context.Context) {
	again := time.NewTimer(loadAgain)
	again.Stop() // nobody is full
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			t.tell(map[string]int{}, nil) // nothing for others any more
			return
		case <-t.wake:
		case <-again.C:
		}
		free, full := t.w.free()
		t.tell(free, full)
		if len(full) > 0 {
			again.Reset(loadAgain)
		}
		select {
		case <-time.After(loadPause):
		case <-ctx.Done():
		}
	}
}

func (t *teller) tell(free map[string]int, full []string) {
	if b, err := message.Marshal(message.WorkerLoad{WorkerID: t.w.id, Free: free, Full: full}); err == nil {
		_ = t.w.nc.Publish(subject.InstanceLoad(), b)
	}
}

// free is the free slots of every tool, and the tools that have none.
func (w *Worker) free() (free map[string]int, full []string) {
	free = map[string]int{}
	for _, name := range w.names() {
		if n := w.slots.free(w.tools[name].slots); n > 0 {
			free[name] = n
		} else {
			full = append(full, name)
		}
	}
	return free, full
}

// handOn gives a call that would have to wait to a worker that is idle, as far as is known;
// false when there is none, or it was handed on before.
func (w *Worker) handOn(h *hosted, in *bus.Incoming) bool {
	if in.Header.Get(message.HeaderHanded) != "" {
		return false
	}
	to := ""
	for since := time.Now(); ; time.Sleep(idlePoll) {
		if w.slots.free(h.slots) > 0 {
			return false
		}
		if to = w.peers.idle(h.def.Name); to != "" {
			break
		}
		if time.Since(since) > idleWait {
			return false
		}
	}
	m := &nats.Msg{Subject: subject.InstanceCall(to), Reply: in.Reply, Data: in.Data, Header: maps.Clone(in.Header)}
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	m.Header.Set(message.HeaderHanded, in.Subject)
	return w.nc.PublishMsg(m) == nil
}

// serveHanded answers a call that another worker has handed on.
func (w *Worker) serveHanded(ctx context.Context, in *bus.Incoming) (any, error) {
	in.Subject = in.Header.Get(message.HeaderHanded)
	who, err := subject.ParseAgent(in.Subject)
	if err != nil {
		return nil, err
	}
	h := w.tools[who.ID]
	if h == nil || who.Verb != subject.VerbCall {
		return nil, errcode.New(errcode.Unavailable, "this worker does not host %q", who.ID)
	}
	return w.serve(ctx, h, in)
}

// hearLoads listens to the other workers, and answers those that are full.
func (w *Worker) hearLoads(t *teller) (*nats.Subscription, error) {
	return w.nc.Subscribe(subject.InstanceLoad(), func(m *nats.Msg) {
		var l message.WorkerLoad
		if json.Unmarshal(m.Data, &l) == nil && l.WorkerID != w.id && subject.CheckName("workerId", l.WorkerID) == nil {
			w.peers.hear(l)
			for _, tool := range l.Full {
				if h := w.tools[tool]; h != nil && w.slots.free(h.slots) > 0 {
					t.changed()
				}
			}
		}
	})
}
