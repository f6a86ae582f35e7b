package tooltest_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/envtest"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

// The Env does what the services do.
func TestEnvIsLikeTheServices(t *testing.T) {
	env := tooltest.New(t)
	envtest.Run(t, envtest.Harness{State: env.State, Store: env.Store, Files: env.Files, Pass: env.Advance})
}

func TestStateExpires(t *testing.T) {
	ctx, env := t.Context(), tooltest.New(t)
	env.SetNow(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := env.State("c1", "ns")
	set := func(opts ...tool.StateOption) {
		t.Helper()
		if err := s.Set(ctx, "k", 1, opts...); err != nil {
			t.Fatal(err)
		}
	}
	there := func() bool {
		t.Helper()
		ok, err := s.Get(ctx, "k", new(int))
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	set()
	env.Advance(24*time.Hour - time.Millisecond)
	if !there() {
		t.Error("gone before 24 hours")
	}
	if _, err := s.Append(ctx, "other", 1); err != nil { // gives the whole document a new life
		t.Fatal(err)
	}
	env.Advance(24*time.Hour - time.Millisecond)
	if !there() {
		t.Error("a write did not extend the document")
	}
	env.Advance(time.Millisecond)
	if there() {
		t.Error("still there at its end")
	}
	set(tool.TTL(1500 * time.Millisecond))
	env.Advance(1499 * time.Millisecond)
	if !there() {
		t.Error("gone before its TTL")
	}
	env.Advance(time.Millisecond)
	if all, err := s.All(ctx); err != nil || len(all) != 0 {
		t.Errorf("still there after its TTL: %s %v", all, err)
	}
	if n, err := s.Append(ctx, "other", 1); err != nil || n != 1 {
		t.Errorf("what expired came back: %d %v", n, err)
	}
}

// A list that is far too long is refused soon, also when its values must be
// unique: a test of that limit must not take minutes.
func TestLongUniqueAppend(t *testing.T) {
	long := make([]string, 20_000)
	for i := range long {
		long[i] = strconv.Itoa(i)
	}
	start := time.Now()
	_, err := tooltest.New(t).State("c1", "ns").AppendAll(t.Context(), "k", long, tool.Unique())
	if took := time.Since(start); !errors.Is(err, errcode.TooLarge) || took > 20*time.Second {
		t.Errorf("got %v after %v", err, took)
	}
}
