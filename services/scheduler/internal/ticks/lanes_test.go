package ticks

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolbus/toolbus/services/scheduler/internal/configs"
)

func TestLaneSharesItsPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := configs.Ref{Tenant: "t", Agent: "a"}, configs.Ref{Tenant: "t", Agent: "b"}
		l := newLane(3, 2, 3)
		try := func(r configs.Ref) bool { return l.enter(t.Context(), r, 0) }
		for place, want := range []bool{true, true, false} {
			if try(a) != want {
				t.Fatalf("an agent has two places: entered at %d: %v", place, !want)
			}
		}
		if !try(b) || try(b) {
			t.Fatal("one is left for the other, and no more")
		}
		passed := make(chan configs.Ref, 3)
		wait := func(r configs.Ref) {
			go func() {
				if l.enter(t.Context(), r, time.Minute) {
					passed <- r
				}
			}()
			synctest.Wait()
		}
		wait(a)
		wait(a)
		wait(b)
		if l.enter(t.Context(), b, time.Minute) {
			t.Error("a fourth waits")
		}
		l.leave(b) // the agent that waits longest has its share already
		if r := <-passed; r != b {
			t.Errorf("%s passed", r.Agent)
		}
		l.leave(a)
		if r := <-passed; r != a {
			t.Errorf("%s passed", r.Agent)
		}
		time.Sleep(time.Minute) // the last one's patience
		synctest.Wait()
		l.leave(a)
		select {
		case r := <-passed:
			t.Errorf("%s passed, which had given up", r.Agent)
		default:
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if !l.enter(ctx, b, time.Minute) || l.enter(ctx, b, time.Minute) {
			t.Error("a free place is taken, and none is waited for after the end of ctx")
		}
	})
}

func TestLanesAreForgotten(t *testing.T) {
	l := newLanes(1)
	ref := configs.Ref{Tenant: "t", Agent: "a"}
	leave, ok := l.enter(t.Context(), "Mail", ref, 0)
	if !ok {
		t.Fatal("no place")
	}
	other, ok := l.enter(t.Context(), "Other", ref, 0)
	if !ok {
		t.Fatal("one tool fills another's lane")
	}
	if _, ok := l.enter(t.Context(), "Mail", ref, 0); ok {
		t.Fatal("two places")
	}
	leave()
	other()
	if len(l.tools) != 0 {
		t.Errorf("kept: %v", l.tools)
	}
}
