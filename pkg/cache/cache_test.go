package cache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestLoadsOnceAndAgainWhenOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		c := New(5*time.Second, func(context.Context, string) (int64, error) { return n.Add(1), nil })
		get := func(want int64) {
			t.Helper()
			if v, err := c.Get(t.Context(), "k"); v != want || err != nil {
				t.Errorf("got %d, %v, want %d", v, err, want)
			}
		}
		get(1)
		get(1)
		time.Sleep(3 * time.Second) // past half its age: served, and loaded in the background
		get(1)
		synctest.Wait()
		get(2)
		time.Sleep(6 * time.Second) // too old to serve
		get(3)
		c.Drop()
		get(4)
		c.DropKey("k")
		get(5)
	})
}

func TestALoadBegunBeforeADropIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		gate := make(chan struct{})
		c := New(time.Hour, func(context.Context, string) (int64, error) {
			v := n.Add(1)
			if v == 1 {
				<-gate
			}
			return v, nil
		})
		got := make(chan int64)
		go func() { v, _ := c.Get(t.Context(), "k"); got <- v }()
		synctest.Wait()
		c.Drop() // what the load will return may be the old state
		close(gate)
		if v := <-got; v != 2 {
			t.Errorf("got the value of load %d", v)
		}
	})
}

func TestConcurrentGetsShareALoadAndFailuresAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		var n atomic.Int64
		c := New(time.Hour, func(context.Context, string) (int64, error) {
			v := n.Add(1)
			time.Sleep(time.Second)
			if v == 1 {
				return 0, boom
			}
			return v, nil
		})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.Get(t.Context(), "k"); !errors.Is(err, boom) {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if v, err := c.Get(t.Context(), "k"); v != 2 || err != nil {
			t.Errorf("got %d, %v", v, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Fresh(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		time.Sleep(2 * time.Second)
	})
}

func TestAValueOutlivesItsOwnersAbsenceButNotItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		c := New(4*time.Second, func(context.Context, string) (int, error) { return 1, err })
		if _, e := c.Get(t.Context(), "k"); e != nil {
			t.Fatal(e)
		}
		err = errcode.New(errcode.Unavailable, "away")
		time.Sleep(3 * time.Second)
		for range 2 { // the failing load in the background takes nothing away
			if v, e := c.Get(t.Context(), "k"); v != 1 || e != nil {
				t.Errorf("got %d, %v", v, e)
			}
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		if _, e := c.Get(t.Context(), "k"); !errors.Is(e, errcode.Unavailable) {
			t.Errorf("got %v", e)
		}
		err = nil
		if _, e := c.Get(t.Context(), "k"); e != nil {
			t.Fatal(e)
		}
		c.Drop()
		err = errcode.New(errcode.NotFound, "gone")
		if _, e := c.Get(t.Context(), "k"); !errors.Is(e, errcode.NotFound) {
			t.Errorf("got %v", e)
		}
	})
}
