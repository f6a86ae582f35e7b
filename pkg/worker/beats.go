package worker

import (
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
)

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

// lostAfter is how long a call of another tool may go without a beat before its worker
// counts as lost.
const lostAfter = 5 * time.Second

// watchCall calls lost when nothing is heard on a call's progress subject for too long. It
// listens only once the call has taken a moment: most are over by then.
func watchCall(nc *nats.Conn, progress string, lost func()) (stop func()) {
	w := &callWatch{}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(beatEvery/2, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.over {
			return
		}
		var err error
		if w.sub, err = nc.Subscribe(progress, func(*nats.Msg) { w.heard() }); err != nil {
			return // the call ends by itself
		}
		w.timer = time.AfterFunc(lostAfter, lost)
	})
	return w.stop
}

type callWatch struct {
	mu    sync.Mutex
	over  bool
	timer *time.Timer
	sub   *nats.Subscription
}

func (w *callWatch) heard() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over && w.timer.Stop() { // once lost is lost
		w.timer.Reset(lostAfter)
	}
}

func (w *callWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	if w.sub != nil {
		_ = w.sub.Unsubscribe() // an error means that the connection is gone
	}
}
