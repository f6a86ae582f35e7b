package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Tenants take turns, and so do tools, however many calls one of them has waiting.
func TestSlotsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1, 0)
		a, b := &toolSlots{name: "a", max: 5}, &toolSlots{name: "b", max: 5}
		first := claim{tool: a, tenant: "busy"}
		if !s.try(first) || s.try(first) {
			t.Fatal("one call must run, and a second must not")
		}
		var order []string
		wait := func(name string, c claim) {
			go func() {
				if err := s.acquire(t.Context(), c, time.Time{}); err != nil {
					t.Error(err)
				}
				order = append(order, name)
				s.release(c, time.Millisecond)
			}()
			synctest.Wait()
		}
		for i := range 3 {
			wait(fmt.Sprint("busy ", i), claim{tool: a, tenant: "busy"})
		}
		wait("other", claim{tool: a, tenant: "other"})
		wait("busy b", claim{tool: b, tenant: "busy"})
		s.release(first, time.Millisecond)
		synctest.Wait()
		if want := []string{"busy 0", "busy b", "other", "busy 1", "busy 2"}; !slices.Equal(order, want) {
			t.Errorf("ran in the order %q, want %q", order, want)
		}
		if s.used != 0 || len(s.lines) != 0 || a.waiting+b.waiting+len(a.lines)+len(b.lines) != 0 {
			t.Errorf("left: %+v, %+v, %+v", s, a, b)
		}
	})
}

// What a tenant or an agent may not run keeps nobody else waiting.
func TestSlotsOfTenantsAndAgents(t *testing.T) {
	s := newSlots(0, 2)
	tool := &toolSlots{name: "t", max: 10}
	c := func(tenant, agent string, most int) claim {
		return claim{tool: tool, tenant: tenant, agent: agent, most: most}
	}
	for _, x := range []struct {
		c   claim
		has bool
	}{
		{c("one", "a", 1), true}, {c("one", "a", 1), false}, {c("one", "b", 1), true}, {c("one", "c", 0), false},
		{c("two", "a", 1), true}, {c("two", "a", 0), true}, {c("two", "a", 0), false},
	} {
		if got := s.try(x.c); got != x.has {
			t.Errorf("%s of %s: %v", x.c.agent, x.c.tenant, got)
		}
	}
	s.release(c("one", "b", 1), 0)
	if s.try(c("one", "a", 1)) || !s.try(c("one", "c", 0)) {
		t.Error("the agent's limit must stand, the tenant's has room")
	}
}

// A call whose turn comes after its deadline is not kept until then.
func TestSlotsRefuseWhatWouldWaitTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(0, 0)
		tool := &toolSlots{name: "slow", max: 2}
		c := claim{tool: tool, tenant: "acme"}
		for range 40 { // on average
			s.try(c)
			s.release(c, 10*time.Second)
		}
		s.try(c)
		s.try(c)
		begin := time.Now()
		err := s.acquire(t.Context(), c, time.Now().Add(time.Second))
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.Overloaded || !e.Retryable || e.Details == nil || !e.Details.NotStarted {
			t.Fatalf("got %v", err)
		}
		if d, err := time.ParseDuration(e.Details.RetryAfter); err != nil || d < 4*time.Second || d > 6*time.Second {
			t.Errorf("retry after %q, want about 5s", e.Details.RetryAfter)
		}
		if time.Since(begin) > 0 {
			t.Errorf("refused after %s", time.Since(begin))
		}
		// One that has the time waits, in vain at the latest until its deadline.
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errcode.New(errcode.Timeout, "late"))
		defer cancel()
		if err := s.acquire(ctx, c, time.Now().Add(time.Minute)); !errors.Is(err, errcode.Overloaded) || time.Since(begin) != patience(time.Minute) {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { stop(errcode.New(errcode.Cancelled, "enough")) })
		if err := s.acquire(ctx, c, time.Time{}); !errors.Is(err, errcode.Cancelled) {
			t.Errorf("got %v", err)
		}
		if running, waiting := s.load(tool); running != 2 || waiting != 0 {
			t.Errorf("%d run, %d wait", running, waiting)
		}
	})
}

// No limit is ever exceeded, no call is forgotten, and nothing is left, whoever comes,
// waits and gives up.
func TestSlotsHoldTheirLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSlots(rapid.IntRange(0, 4).Draw(t, "max"), rapid.IntRange(0, 3).Draw(t, "per tenant"))
		tools := []*toolSlots{{name: "a", max: rapid.IntRange(1, 3).Draw(t, "a")}, {name: "b", max: rapid.IntRange(1, 3).Draw(t, "b")}}
		var all, gaveUp atomic.Int64
		var tenants [3]atomic.Int64
		var wg sync.WaitGroup
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			tool, tenant := tools[rapid.IntRange(0, 1).Draw(t, "tool")], rapid.IntRange(0, 2).Draw(t, "tenant")
			patience := time.Duration(rapid.IntRange(1, 2000).Draw(t, "patience")) * time.Microsecond
			c := claim{tool: tool, tenant: fmt.Sprint(tenant), agent: "a", most: rapid.IntRange(0, 2).Draw(t, "most")}
			wg.Go(func() {
				ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errcode.New(errcode.Timeout, "late"))
				defer cancel()
				if err := s.acquire(ctx, c, time.Time{}); err != nil {
					gaveUp.Add(1)
					return
				}
				if n := all.Add(1); s.max > 0 && n > int64(s.max) {
					t.Errorf("%d run in all", n)
				}
				if n := tenants[tenant].Add(1); s.perTenant > 0 && n > int64(s.perTenant) {
					t.Errorf("%d run of one tenant", n)
				}
				s.mu.Lock()
				if tool.used > tool.max {
					t.Errorf("%d run of one tool", tool.used)
				}
				s.mu.Unlock()
				tenants[tenant].Add(-1)
				all.Add(-1)
				s.release(c, time.Microsecond)
			})
		}
		wg.Wait()
		if s.used != 0 || len(s.lines)+len(s.tenants)+len(s.agents) != 0 || tools[0].waiting+tools[1].waiting != 0 {
			t.Errorf("left: %+v", s)
		}
	})
}
