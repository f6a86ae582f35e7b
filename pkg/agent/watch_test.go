package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAQuietWorkerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		lost := make(chan time.Duration, 10)
		fire := func() { lost <- time.Since(begin) }
		w := &watch{}
		w.heard() // before anybody waits for it
		stop := w.guard(fire)
		for range 3 {
			time.Sleep(lostAfter - time.Second) // fake time
			w.heard()
		}
		last := time.Since(begin)
		if got := <-lost; got != last+lostAfter {
			t.Errorf("lost at %s, last heard of at %s", got, last)
		}
		w.heard() // too late
		time.Sleep(2 * lostAfter)
		stop()
		w.heard()
		w.guard(fire)() // the call ends in time
		w.heard()
		time.Sleep(2 * lostAfter)
		if len(lost) != 0 {
			t.Errorf("lost again, at %s", <-lost)
		}
	})
}
