package tooltest_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

func TestStateOps(t *testing.T) {
	ctx, env := t.Context(), tooltest.New(t)
	s := env.State("c1", "ns")

	if got, err := tool.Get(ctx, s, "codes", []string{"none"}); err != nil || len(got) != 1 {
		t.Errorf("%v %v", got, err)
	}
	for i, v := range []string{"a", "b", "a"} {
		if n, err := s.Append(ctx, "codes", v); err != nil || n != i+1 {
			t.Errorf("append %d: %d %v", i, n, err)
		}
	}
	if n, err := s.Append(ctx, "codes", "a", tool.Unique()); err != nil || n != 3 {
		t.Errorf("unique: %d %v", n, err)
	}
	if n, err := s.Append(ctx, "objects", map[string]any{"x": 1, "y": []int{2}}, tool.Unique()); err != nil || n != 1 {
		t.Errorf("%d %v", n, err)
	}
	if n, err := s.Append(ctx, "objects", json.RawMessage(`{"y": [2], "x": 1}`), tool.Unique()); err != nil || n != 1 {
		t.Errorf("the order of fields makes no difference: %d %v", n, err)
	}
	if v, err := s.Increment(ctx, "n", 2); err != nil || v != 2 {
		t.Error(v, err)
	}
	if v, err := s.Increment(ctx, "n", -0.5); err != nil || v != 1.5 {
		t.Error(v, err)
	}
	if err := s.Set(ctx, "direction", "DHL->DPD"); err != nil {
		t.Error(err)
	}
	if err := s.Update(ctx, "direction", func(old json.RawMessage) (any, error) {
		if string(old) != `"DHL->DPD"` {
			t.Errorf("old is %s", old)
		}
		return "GLS->DPD", nil
	}); err != nil {
		t.Error(err)
	}
	all, err := s.All(ctx)
	if err != nil || len(all) != 4 || string(all["direction"]) != `"GLS->DPD"` || string(all["codes"]) != `["a","b","a"]` || string(all["n"]) != "1.5" {
		t.Errorf("%s %v", all, err)
	}
	for range 2 { // the second time there is nothing to remove
		if err := s.Update(ctx, "objects", func(json.RawMessage) (any, error) { return nil, nil }); err != nil {
			t.Error(err)
		}
		if ok, err := s.Get(ctx, "objects", new(any)); ok || err != nil {
			t.Errorf("what Update makes nil is there: %v %v", ok, err)
		}
	}
	if ok, err := s.Delete(ctx, "n"); !ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := s.Delete(ctx, "n"); ok || err != nil {
		t.Error(ok, err)
	}
	var list []string
	if ok, err := s.Get(ctx, "codes", &list); !ok || err != nil || len(list) != 3 {
		t.Error(ok, err, list)
	}

	// Another chat, namespace or tenant sees nothing.
	for _, other := range []tool.State{env.State("c2", "ns"), env.State("c1", "ns2")} {
		if all, err := other.All(ctx); err != nil || all == nil || len(all) != 0 {
			t.Errorf("%v %v", all, err)
		}
	}
	if err := s.Clear(ctx); err != nil {
		t.Error(err)
	}
	if all, err := s.All(ctx); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
}

func TestStateRefuses(t *testing.T) {
	env := tooltest.New(t)
	s := env.State("c1", "ns")
	if err := s.Set(t.Context(), "text", "x"); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		do   func(context.Context) error
		ctx  context.Context
		code errcode.Code
		text string
	}{
		"append to a string":   {do: func(ctx context.Context) error { _, err := s.Append(ctx, "text", 1); return err }, code: errcode.InvalidRequest, text: "not an array"},
		"increment a string":   {do: func(ctx context.Context) error { _, err := s.Increment(ctx, "text", 1); return err }, code: errcode.InvalidRequest, text: "not a number"},
		"no chat":              {do: func(ctx context.Context) error { _, err := env.State("", "ns").All(ctx); return err }, code: errcode.InvalidRequest, text: "chatId"},
		"namespace":            {do: func(ctx context.Context) error { return env.State("c", "a.b").Clear(ctx) }, code: errcode.InvalidRequest, text: "namespace"},
		"key":                  {do: func(ctx context.Context) error { return s.Set(ctx, "", 1) }, code: errcode.InvalidRequest, text: "key"},
		"no JSON form":         {do: func(ctx context.Context) error { return s.Set(ctx, "x", func() {}) }, code: errcode.InvalidRequest, text: "value"},
		"negative ttl":         {do: func(ctx context.Context) error { return s.Set(ctx, "x", 1, tool.TTL(-1)) }, code: errcode.InvalidRequest, text: "ttl"},
		"short ttl":            {do: func(ctx context.Context) error { return s.Set(ctx, "x", 1, tool.TTL(time.Second-1)) }, code: errcode.InvalidRequest, text: "ttl"},
		"long ttl":             {do: func(ctx context.Context) error { return s.Set(ctx, "x", 1, tool.TTL(30*24*time.Hour+1)) }, code: errcode.InvalidRequest, text: "ttl"},
		"a value that is else": {do: func(ctx context.Context) error { _, err := s.Get(ctx, "text", new(int)); return err }, code: errcode.InvalidRequest},
		"too large":            {do: func(ctx context.Context) error { return s.Set(ctx, "big", strings.Repeat("x", 64<<10)) }, code: errcode.TooLarge, text: "65536"},
		"too large by append":  {do: func(ctx context.Context) error { _, err := s.Append(ctx, "l", strings.Repeat("x", 64<<10)); return err }, code: errcode.TooLarge},
		"cancelled":            {do: func(ctx context.Context) error { return s.Set(ctx, "x", 1) }, ctx: gone, code: errcode.Cancelled},
		"fn says no": {do: func(ctx context.Context) error {
			return s.Update(ctx, "x", func(json.RawMessage) (any, error) { return nil, errcode.NotFound })
		}, code: errcode.NotFound},
	} {
		ctx := c.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		if err := c.do(ctx); !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: want %s about %q, got %v", name, c.code, c.text, err)
		}
	}
	if all, err := s.All(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("a refused write left something: %s %v", all, err)
	}
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

func TestStateIsAtomic(t *testing.T) {
	ctx, env := t.Context(), tooltest.New(t)
	s := env.State("c1", "ns")
	const n = 50
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err1 := s.Append(ctx, "list", i)
			_, err2 := s.Increment(ctx, "sum", 1)
			err3 := s.Update(ctx, "updated", func(old json.RawMessage) (any, error) {
				k := 0
				if old != nil {
					if err := json.Unmarshal(old, &k); err != nil {
						return nil, err
					}
				}
				return k + 1, nil
			})
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := tool.Get(ctx, s, "list", []int{})
	if err != nil || len(list) != n {
		t.Errorf("%d of %d appends, %v", len(list), n, err)
	}
	for _, k := range []string{"sum", "updated"} {
		if v, err := tool.Get(ctx, s, k, 0); err != nil || v != n {
			t.Errorf("%s is %d, want %d, %v", k, v, n, err)
		}
	}
}
