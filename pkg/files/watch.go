package files

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/paths"
)

// Hint says where to look: a file may have changed, or be gone. It says neither
// what became of the file nor that anything did.
type Hint struct {
	Path string // checked; "" for any file: events may have been missed
}

// Watcher tells which files may have changed.
type Watcher struct {
	hints chan Hint
	done  chan struct{}
	stop  context.CancelFunc

	mu      sync.Mutex
	waiting map[string]bool // paths not told yet, each once
	any     bool            // events may have been missed
	wake    chan struct{}
}

// maxWaiting is how many paths wait to be told; with more, all of the tenant's
// files are to be looked at.
const maxWaiting = 4096

// Watch tells of each change from its return on, until ctx ends or Stop, or the
// connection is closed. Events travel at most once: after a lost connection, and
// when its reader was very slow, the watch tells so by the hint for any file.
// Who must miss nothing compares with List now and then as well.
//
// It needs no JetStream permission, only to subscribe to the tenant's change
// events; not_allowed when the connection may not.
func (c *Client) Watch(ctx context.Context) (*Watcher, error) {
	if err := subject.CheckTenant(c.tenant); err != nil {
		return nil, err
	}
	w := &Watcher{hints: make(chan Hint), done: make(chan struct{}), waiting: map[string]bool{}, wake: make(chan struct{}, 1)}
	status := c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	to := subject.ChangesFile(c.tenant, "*")
	sub, err := c.nc.Subscribe(to, func(m *nats.Msg) {
		if _, path, err := subject.ParseChangesFile(m.Subject); err == nil && paths.Check(path) == nil {
			w.note(path)
		}
	})
	if err != nil {
		c.nc.RemoveStatusListener(status)
		return nil, errcode.Wrap(errcode.Unavailable, err, "watch: %v", err)
	}
	end := func() {
		_ = sub.Unsubscribe() // fails only when the connection is closed
		c.nc.RemoveStatusListener(status)
	}
	if err := c.confirm(ctx, to); err != nil {
		end()
		return nil, err
	}
	ctx, w.stop = context.WithCancel(ctx)
	go func() {
		defer close(w.done)
		defer close(w.hints)
		defer end()
		defer w.stop()
		w.run(ctx, status)
	}()
	return w, nil
}

// confirm waits until the server has the subscription, or has refused it.
func (c *Client) confirm(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "watch: %v", err)
	}
	if err := c.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), to) {
		return errcode.Wrap(errcode.NotAllowed, err, "the connection may not hear of changes: %v", err)
	}
	return nil
}

// Hints are the hints. It is closed when the watch has ended.
func (w *Watcher) Hints() <-chan Hint { return w.hints }

// Stop ends the watch and waits for that.
func (w *Watcher) Stop() {
	w.stop()
	<-w.done
}

// note remembers a path; "" is any.
func (w *Watcher) note(path string) {
	w.mu.Lock()
	if path == "" || len(w.waiting) >= maxWaiting {
		w.any = true
		clear(w.waiting) // looking at all of them looks at these
	} else if !w.any {
		w.waiting[path] = true
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns what waits and forgets it.
func (w *Watcher) take() []Hint {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.any {
		w.any = false
		return []Hint{{}}
	}
	var out []Hint
	for p := range w.waiting {
		out = append(out, Hint{p})
	}
	clear(w.waiting)
	return out
}

func (w *Watcher) run(ctx context.Context, status <-chan nats.Status) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, open := <-status:
			if !open || s == nats.CLOSED {
				return
			}
			w.note("")
		case <-w.wake:
			for _, h := range w.take() {
				select {
				case w.hints <- h:
				case <-ctx.Done():
					return
				}
			}
		}
	}
}
