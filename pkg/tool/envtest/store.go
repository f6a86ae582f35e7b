package envtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
)

var storeChecks = []check{
	{"store/values", storeValues},
	{"store/compare and set", storeCompare},
	{"store/apart", storeApart},
	{"store/refuses", storeRefuses},
	{"store/many keys", storeManyKeys},
	{"store/parallel", storeParallel},
}

func storeValues(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.Store("values", "tool")
	if v, found, err := s.Get(ctx, "offset"); v != "" || found || err != nil {
		t.Errorf("get of nothing: %q, %v, %v", v, found, err)
	}
	if keys, err := s.List(ctx, ""); keys == nil || len(keys) != 0 || err != nil {
		t.Errorf("list of nothing: %v, %v", keys, err)
	}
	for _, kv := range [][2]string{{"offset", "42"}, {"empty", ""}, {"a/b c", "ü"}, {"a/b.c", "<&>\x00\n"}, {"offset", "43"}} {
		if err := s.Set(ctx, kv[0], kv[1]); err != nil {
			t.Fatal(err)
		}
		if v, found, err := s.Get(ctx, kv[0]); v != kv[1] || !found || err != nil {
			t.Errorf("get %s: %q, %v, %v", kv[0], v, found, err)
		}
	}
	for prefix, want := range map[string][]string{"": {"a/b c", "a/b.c", "empty", "offset"}, "a/b.": {"a/b.c"}, "b": {}, "*": {}} {
		if keys, err := s.List(ctx, prefix); !slices.Equal(keys, want) || err != nil {
			t.Errorf("list %q: %q, %v", prefix, keys, err)
		}
	}
	for _, want := range []bool{true, false} {
		if deleted, err := s.Delete(ctx, "offset"); deleted != want || err != nil {
			t.Errorf("delete: %v, %v, want %v", deleted, err, want)
		}
	}
	if _, found, err := s.Get(ctx, "offset"); found || err != nil {
		t.Errorf("a deleted key is found: %v", err)
	}
	if keys, err := s.List(ctx, "o"); len(keys) != 0 || err != nil {
		t.Errorf("a deleted key is listed: %v, %v", keys, err)
	}
}

func storeCompare(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.Store("compare", "tool")
	conflict := func(what string, stands uint64, err error) {
		t.Helper()
		if !errors.Is(err, errcode.Conflict) {
			t.Fatalf("%s: %v", what, err)
		}
		if d := errcode.From(err).Details; d == nil || d.Revision == nil || *d.Revision != stands {
			t.Errorf("%s: %+v, want revision %d", what, d, stands)
		}
	}
	if v, err := s.Read(ctx, "k"); v.Found || v.Revision != 0 || err != nil {
		t.Errorf("%+v, %v", v, err)
	}
	_, err := s.SetIf(ctx, "k", "x", 7)
	conflict("set of what is not there", 0, err)
	conflict("delete of what is not there", 0, s.DeleteIf(ctx, "k", 7))
	one, err := s.SetIf(ctx, "k", "1", 0)
	if err != nil || one == 0 {
		t.Fatal(one, err)
	}
	_, err = s.SetIf(ctx, "k", "x", 0)
	conflict("create what is there", one, err)
	two, err := s.SetIf(ctx, "k", "2", one)
	if err != nil || two <= one {
		t.Fatalf("revision %d after %d, %v", two, one, err)
	}
	_, err = s.SetIf(ctx, "k", "x", one)
	conflict("set at an old revision", two, err)
	conflict("delete at an old revision", two, s.DeleteIf(ctx, "k", one))
	if v, err := s.Read(ctx, "k"); !v.Found || v.Value != "2" || v.Revision != two || err != nil {
		t.Errorf("%+v, %v", v, err)
	}
	if err := s.Set(ctx, "k", "3"); err != nil {
		t.Fatal(err)
	}
	three, err := s.Read(ctx, "k")
	if err != nil || three.Revision <= two {
		t.Fatalf("%+v after %d, %v", three, two, err)
	}
	if err := s.DeleteIf(ctx, "k", three.Revision); err != nil {
		t.Fatal(err)
	}
	_, err = s.SetIf(ctx, "k", "x", three.Revision)
	conflict("set of what was deleted", 0, err)
	if four, err := s.SetIf(ctx, "k", "4", 0); err != nil || four <= three.Revision {
		t.Errorf("revision %d after %d, %v", four, three.Revision, err)
	}
}

func storeApart(t *testing.T, h Harness) {
	ctx := t.Context()
	if err := h.Store("apart", "tool").Set(ctx, "k", "mine"); err != nil {
		t.Fatal(err)
	}
	for _, other := range []tool.RevisionStore{h.Store("apart", "Tool"), h.Store("apart2", "tool"), h.Store("Apart", "tool")} {
		if _, found, err := other.Get(ctx, "k"); found || err != nil {
			t.Errorf("another's value is seen: %v", err)
		}
		if keys, err := other.List(ctx, ""); len(keys) != 0 || err != nil {
			t.Errorf("another's keys are seen: %v, %v", keys, err)
		}
		if deleted, err := other.Delete(ctx, "k"); deleted || err != nil {
			t.Errorf("another's value was deleted: %v", err)
		}
	}
	if v, _, err := h.Store("apart", "tool").Get(ctx, "k"); v != "mine" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

func storeRefuses(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.Store("refuses", "tool")
	gone, cancel := context.WithCancel(ctx)
	cancel()
	const bad, limit = errcode.InvalidRequest, 256 << 10
	fits, long := strings.Repeat("x", limit), strings.Repeat("x", 257)
	if err := s.Set(ctx, "k", fits); err != nil {
		t.Fatal(err)
	}
	_, _, get := s.Get(ctx, "")
	_, read := s.Read(ctx, "a\xff")
	_, list := s.List(ctx, "a\n")
	_, deleted := s.Delete(ctx, long)
	_, setIf := s.SetIf(ctx, "a\x00", "x", 0)
	refused(t, []refusal{
		{"get no key", get, bad, "key", 0},
		{"read a key that is not UTF-8", read, bad, "key", 0},
		{"set no key", s.Set(ctx, "", "x"), bad, "key", 0},
		{"set a value that is not UTF-8", s.Set(ctx, "k", "\xff"), bad, "value", 0},
		{"set if, a key with a control character", setIf, bad, "key", 0},
		{"delete a key that is too long", deleted, bad, "key", 0},
		{"delete what does not exist", s.DeleteIf(ctx, "k", 0), bad, "ifRevision", 0},
		{"list by a bad prefix", list, bad, "prefix", 0},
		{"a value that is too large", s.Set(ctx, "k", fits+"x"), errcode.TooLarge, "", limit},
		{"cancelled", s.Set(gone, "k", "x"), errcode.Cancelled, "", 0},
	})
	if v, _, err := s.Get(ctx, "k"); v != fits || err != nil {
		t.Errorf("the value was damaged: %d bytes, %v", len(v), err)
	}
}

// A list of keys may take many requests.
func storeManyKeys(t *testing.T, h Harness) {
	s := h.Store("many", "tool")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // on a busy machine
	defer cancel()
	const n = 1100
	var want []string
	var wg sync.WaitGroup
	limit := make(chan struct{}, 32)
	for i := range n {
		key := fmt.Sprintf("%04d", i)
		want = append(want, key)
		limit <- struct{}{}
		wg.Go(func() {
			if err := s.Set(ctx, key, "v"); err != nil {
				t.Error(err)
			}
			<-limit
		})
	}
	wg.Wait()
	if keys, err := s.List(ctx, ""); !slices.Equal(keys, want) || err != nil {
		t.Errorf("%d keys, want %d: %v", len(keys), n, err)
	}
	if keys, err := s.List(ctx, "02"); !slices.Equal(keys, want[200:300]) || err != nil {
		t.Errorf("%d keys, want 100: %v", len(keys), err)
	}
}

func storeParallel(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.Store("parallel", "tool")
	const n = 20
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for {
				was, err := s.Read(ctx, "k")
				if err != nil {
					t.Error(err)
					return
				}
				_, err = s.SetIf(ctx, "k", was.Value+"x", was.Revision)
				if err == nil {
					return
				}
				if !errors.Is(err, errcode.Conflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if v, _, err := s.Get(ctx, "k"); len(v) != n || err != nil {
		t.Errorf("%d of %d, %v", len(v), n, err)
	}
}
