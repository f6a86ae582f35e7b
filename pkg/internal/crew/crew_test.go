package crew_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/pkg/internal/crew"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Nobody waits for another to finish, whatever maxIdle says.
func TestAllRunAtOnce(t *testing.T) {
	c := crew.New(2)
	defer c.Close()
	const n = 20
	var together sync.WaitGroup
	together.Add(n)
	var ran sync.WaitGroup
	ran.Add(n)
	for range n {
		c.Go(func() {
			together.Done()
			together.Wait() // for every other one
			ran.Done()
		})
	}
	ran.Wait()
}

func TestGoroutinesStayUpToALimitUntilClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew.New(3)
		before := runtime.NumGoroutine()
		left := func() int { synctest.Wait(); return runtime.NumGoroutine() - before }
		release := make(chan struct{})
		for range 10 {
			c.Go(func() { <-release })
		}
		if n := left(); n != 10 {
			t.Errorf("%d goroutines at work, want 10", n)
		}
		close(release)
		if n := left(); n != 3 {
			t.Errorf("%d goroutines idle, want 3", n)
		}
		for range 100 {
			c.Go(func() {})
			synctest.Wait()
		}
		if n := left(); n != 3 {
			t.Errorf("%d goroutines after more work, want the same 3", n)
		}
		c.Close()
		c.Close()
		if n := left(); n != 0 {
			t.Errorf("%d goroutines after Close", n)
		}
		var ran atomic.Bool
		c.Go(func() { ran.Store(true) })
		if n := left(); n != 0 || !ran.Load() {
			t.Errorf("after Close: ran %v, %d goroutines", ran.Load(), n)
		}
	})
}

func TestAGoroutineMayEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew.New(1)
		defer c.Close()
		var ran atomic.Int64
		for range 5 {
			c.Go(func() { runtime.Goexit() })
			c.Go(func() { ran.Add(1) })
			synctest.Wait()
		}
		if n := ran.Load(); n != 5 {
			t.Errorf("%d of 5 ran", n)
		}
	})
}
