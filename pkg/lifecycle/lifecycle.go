// Package lifecycle starts and stops the parts of a process in order: named
// clean-ups run last in, first out, within one deadline, and a second failure
// does not hide the first.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Service is a part that can be started once and stopped. Stop is safe before
// Start, after a failed Start, and twice; it returns when nothing of the
// service runs any more, or when ctx ends.
type Service interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
}

// Stack collects clean-ups while something is built up.
type Stack struct {
	mu    sync.Mutex
	items []item
}

type item struct {
	name string
	fn   func(context.Context) error
}

// Push adds a clean-up; name stands in its error.
func (s *Stack) Push(name string, fn func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = append(s.items, item{name, fn})
}

// Close runs all clean-ups, last in first, each with the same ctx, and forgets
// them. It joins their errors.
func (s *Stack) Close(ctx context.Context) error {
	s.mu.Lock()
	items := s.items
	s.items = nil
	s.mu.Unlock()
	var errs []error
	for i := len(items) - 1; i >= 0; i-- {
		if err := items[i].fn(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", items[i].name, err))
		}
	}
	return errors.Join(errs...)
}

// heapFloor, in bytes, is what the garbage collector takes for in use beside what
// is. Without it a process that keeps little would be collected dozens of times a
// second under load, for every 4 MiB of short-lived garbage. Nobody touches it, so
// it takes no memory itself; the garbage that it lets stand does, at most as much.
const heapFloor = 16 << 20

// Run starts svc, waits for SIGINT, SIGTERM or the end of ctx, and stops svc
// within timeout. A second signal ends the process at once.
func Run(ctx context.Context, svc Service, timeout time.Duration) error {
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	ctx, cancel := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer cancel()
	err := svc.Start(ctx)
	if err == nil {
		<-ctx.Done()
	}
	cancel() // the next signal has its default effect: the end
	stopCtx, done := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer done()
	return errors.Join(err, svc.Stop(stopCtx))
}
