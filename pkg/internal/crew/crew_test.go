package crew_test

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/pkg/internal/crew"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// members counts the goroutines of all crews.
func members() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "crew.(*Crew).member(")
}

// Nobody waits for another to finish, whatever maxIdle says.
func TestAllRunAtOnce(t *testing.T) {
	synctest.Test(t, func(*testing.T) { // which waits for the goroutines' ends
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
	})
}

func TestGoroutinesStayUpToALimitUntilClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew.New(3)
		left := func() int { synctest.Wait(); return members() }
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

func TestIdleGoroutinesGoButForAFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew.New(100)
		defer c.Close()
		for range 2 { // it begins again after the next burst
			release := make(chan struct{})
			for range 100 {
				c.Go(func() { <-release })
			}
			synctest.Wait()
			close(release)
			synctest.Wait()
			if n := members(); n != 100 {
				t.Errorf("%d goroutines right after the burst, want 100", n)
			}
			time.Sleep(time.Minute) // of the bubble's clock
			synctest.Wait()
			if n := members(); n != 8 {
				t.Errorf("%d goroutines a minute later, want 8", n)
			}
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
