package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/tool"
)

var stateChecks = []check{
	{"state/keys", stateKeys},
	{"state/arrays", stateArrays},
	{"state/numbers", stateNumbers},
	{"state/update", stateUpdate},
	{"state/values", stateValues},
	{"state/apart", stateApart},
	{"state/expires", stateExpires},
	{"state/refuses", stateRefuses},
	{"state/limits", stateLimits},
	{"state/parallel", stateParallel},
}

// whole is a document as JSON.
func whole(t *testing.T, s tool.State) string {
	t.Helper()
	all, err := s.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all == nil {
		t.Fatal("All is nil")
	}
	b, err := message.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func stateKeys(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("keys", "ns")
	v := "untouched"
	if found, err := s.Get(ctx, "k", &v); found || err != nil || v != "untouched" {
		t.Errorf("get of nothing: %v, %v, %q", found, err, v)
	}
	if got, err := tool.Get(ctx, s, "k", []string{"default"}); err != nil || !slices.Equal(got, []string{"default"}) {
		t.Errorf("get with a default: %v, %v", got, err)
	}
	if got := whole(t, s); got != "{}" {
		t.Errorf("all of nothing: %s", got)
	}
	for _, err := range []error{s.Clear(ctx), s.Set(ctx, "k", "DHL->DPD"), s.Set(ctx, "k", "GLS->DPD"), s.Set(ctx, "null", nil), s.Set(ctx, "ü/ \"", map[string]any{"b": 1, "a": []int{}})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := tool.Get(ctx, s, "k", ""); err != nil || got != "GLS->DPD" {
		t.Errorf("%q, %v", got, err)
	}
	p := &v
	if found, err := s.Get(ctx, "null", &p); !found || err != nil || p != nil {
		t.Errorf("null is a value: %v, %v, %v", found, err, p)
	}
	if got, want := whole(t, s), `{"k":"GLS->DPD","null":null,"ü/ \"":{"a":[],"b":1}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, want := range []bool{true, false} {
		if deleted, err := s.Delete(ctx, "k"); deleted != want || err != nil {
			t.Errorf("delete: %v, %v, want %v", deleted, err, want)
		}
	}
	if err := s.Clear(ctx); err != nil {
		t.Fatal(err)
	}
	if deleted, err := s.Delete(ctx, "null"); deleted || err != nil {
		t.Errorf("delete after clear: %v, %v", deleted, err)
	}
	if got := whole(t, s); got != "{}" {
		t.Errorf("after clear: %s", got)
	}
}

func stateArrays(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("arrays", "ns")
	for i, c := range []struct {
		values any
		opts   []tool.StateOption
		want   int
	}{
		{"a", nil, 1}, {"b", nil, 2}, {"a", nil, 3},
		{"a", []tool.StateOption{tool.Unique()}, 3},
		{[]string{"c", "d"}, nil, 5},
		{[]string{"d", "e", "e", "a"}, []tool.StateOption{tool.Unique()}, 6},
		{[]string{}, nil, 6}, {[]string(nil), nil, 6},
		{json.RawMessage(`[1, 2.0]`), nil, 8},
		{[]any{2, "x", nil, map[string]any{"x": 1, "y": []int{2}}}, []tool.StateOption{tool.Unique()}, 11},
		{json.RawMessage(`[{"y":[2e0], "x":1.00}, null, 1.0]`), []tool.StateOption{tool.Unique()}, 11},
	} {
		var n int
		var err error
		if one, ok := c.values.(string); ok {
			n, err = s.Append(ctx, "list", one, c.opts...)
		} else {
			n, err = s.AppendAll(ctx, "list", c.values, c.opts...)
		}
		if n != c.want || err != nil {
			t.Errorf("append %d: length %d, %v, want %d", i, n, err, c.want)
		}
	}
	if n, err := s.Append(ctx, "nested", []int{1, 2}); n != 1 || err != nil {
		t.Errorf("an array as one value: %d, %v", n, err)
	}
	if n, err := s.AppendAll(ctx, "none", []int{}); n != 0 || err != nil {
		t.Errorf("no values: %d, %v", n, err)
	}
	if got, want := whole(t, s), `{"list":["a","b","a","c","d","e",1,2.0,"x",null,{"x":1,"y":[2]}],"nested":[[1,2]],"none":[]}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func stateNumbers(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("numbers", "ns")
	for i, c := range []struct{ by, want float64 }{{2, 2}, {-0.5, 1.5}, {0.1, 1.6}, {0.2, 1.8}, {-1.8, 0}, {1e15, 1e15}} {
		if got, err := s.Increment(ctx, "n", c.by); got != c.want || err != nil {
			t.Errorf("increment %d: %v, %v, want %v", i, got, err, c.want)
		}
	}
	if err := s.Set(ctx, "big", json.RawMessage("9007199254740993")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Increment(ctx, "big", 1); err != nil {
		t.Fatal(err)
	}
	if got, want := whole(t, s), `{"big":9007199254740994,"n":1000000000000000}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func stateUpdate(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("update", "ns")
	for i, step := range []struct {
		was string // "" for missing
		to  any
	}{{"", 1}, {"1", json.RawMessage("null")}, {"null", nil}, {"", nil}, {"", []int{2}}} {
		err := s.Update(ctx, "k", func(old json.RawMessage) (any, error) {
			if string(old) != step.was || (old == nil) != (step.was == "") {
				t.Errorf("step %d: old value %q, want %q", i, old, step.was)
			}
			return step.to, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	double := func(n int) (int, error) { return 2 * n, nil }
	for _, want := range []int{10, 20} {
		if got, err := tool.Update(ctx, s, "n", 5, double); got != want || err != nil {
			t.Errorf("typed update: %d, %v, want %d", got, err, want)
		}
	}
	no := errors.New("no")
	if got, err := tool.Update(ctx, s, "n", 5, func(int) (int, error) { return 1, no }); got != 0 || !errors.Is(err, no) {
		t.Errorf("an error of fn: %d, %v", got, err)
	}
	if _, err := tool.Update(ctx, s, "k", 5, double); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("a value of another type: %v", err)
	}
	if got, want := whole(t, s), `{"k":[2],"n":20}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What is stored comes back, digit by digit.
func stateValues(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("values", "ns")
	for i, raw := range []string{`"<&>\u2028 ü"`, `123456789012345678901234567890`, `1.50`, `-0`, `true`, `[ ]`, `{"b":[1 , 2],"a":{}}`, `""`} {
		key := fmt.Sprint(i)
		if err := s.Set(ctx, key, json.RawMessage(raw)); err != nil {
			t.Fatal(err)
		}
		var got json.RawMessage
		if found, err := s.Get(ctx, key, &got); !found || err != nil || string(got) != strings.ReplaceAll(raw, " ", "") && i != 0 {
			t.Errorf("%s came back as %s, %v, %v", raw, got, found, err)
		}
	}
	if got, err := tool.Get(ctx, s, "0", ""); got != "<&>\u2028 ü" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// Another chat or namespace sees nothing, however like its name.
func stateApart(t *testing.T, h Harness) {
	ctx := t.Context()
	type doc struct{ chat, namespace string }
	docs := []doc{
		{"apart", "ns"}, {"Apart", "ns"}, {"apart", "NS"}, {"apart ", "ns"}, {"ap=61rt", "ns"}, {"apart", "ns-"},
		{"+49 170/123", "ns"}, {"user@example.com", "ns"}, {"🙂", "ns"}, {"a.b", "ns"}, {"a*", "ns"}, {">", "ns"},
		{strings.Repeat("ü", 128), "ns"}, {strings.Repeat("x", 256), "ns"}, {strings.Repeat("x", 255), "ns"},
	}
	for i, d := range docs {
		if err := h.State(d.chat, d.namespace).Set(ctx, "k", i); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range docs {
		if got, err := tool.Get(ctx, h.State(d.chat, d.namespace), "k", -1); got != i || err != nil {
			t.Errorf("%v: %d, %v, want %d", d, got, err, i)
		}
	}
	if err := h.State(docs[0].chat, docs[0].namespace).Clear(ctx); err != nil {
		t.Fatal(err)
	}
	for i, d := range docs[1:] {
		if got, err := tool.Get(ctx, h.State(d.chat, d.namespace), "k", -1); got != i+1 || err != nil {
			t.Errorf("%v after another was cleared: %d, %v", d, got, err)
		}
	}
}

func stateExpires(t *testing.T, h Harness) {
	ctx := t.Context()
	there := func(s tool.State) bool {
		t.Helper()
		found, err := s.Get(ctx, "k", new(int))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	const life = time.Second
	short, extended, shortened := h.State("short", "ns"), h.State("extended", "ns"), h.State("shortened", "ns")
	for s, opts := range map[tool.State][]tool.StateOption{short: {tool.TTL(life)}, extended: {tool.TTL(life)}, shortened: nil} {
		if err := s.Set(ctx, "k", 1, opts...); err != nil {
			t.Fatal(err)
		}
	}
	if !there(short) {
		t.Error("gone at once")
	}
	// Any write gives the whole document the default life, or its own.
	if _, err := extended.Append(ctx, "other", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := shortened.Increment(ctx, "other", 1, tool.TTL(life)); err != nil {
		t.Fatal(err)
	}
	h.Pass(life + 100*time.Millisecond)
	if there(short) || !there(extended) || there(shortened) {
		t.Errorf("after a second: %v, %v, %v; want only the second", there(short), there(extended), there(shortened))
	}
	if got := whole(t, short); got != "{}" {
		t.Errorf("all shows what expired: %s", got)
	}
	if deleted, err := short.Delete(ctx, "k"); deleted || err != nil {
		t.Errorf("delete of what expired: %v, %v", deleted, err)
	}
	if n, err := shortened.Append(ctx, "k", 1); n != 1 || err != nil {
		t.Errorf("what expired came back: %d, %v", n, err)
	}
	if got := whole(t, shortened); got != `{"k":[1]}` {
		t.Errorf("what expired came back: %s", got)
	}
}

func stateRefuses(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("refuses", "ns")
	if err := s.Set(ctx, "text", "x"); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	length := func(_ int, err error) error { return err }
	sum := func(_ float64, err error) error { return err }
	found := func(_ bool, err error) error { return err }
	all := func(_ map[string]json.RawMessage, err error) error { return err }
	update := func(key string) error {
		return s.Update(ctx, key, func(json.RawMessage) (any, error) { return 1, nil })
	}
	long := strings.Repeat("x", 257)
	const bad = errcode.InvalidRequest
	refused(t, []refusal{
		{"append to a string", length(s.Append(ctx, "text", 1)), bad, "key", 0},
		{"append all to a string", length(s.AppendAll(ctx, "text", []int{1})), bad, "key", 0},
		{"append all of a number", length(s.AppendAll(ctx, "l", 1)), bad, "values", 0},
		{"append all of an object", length(s.AppendAll(ctx, "l", map[string]int{"a": 1})), bad, "values", 0},
		{"append all without a JSON form", length(s.AppendAll(ctx, "l", []any{func() {}})), bad, "values", 0},
		{"append without a JSON form", length(s.Append(ctx, "l", func() {})), bad, "value", 0},
		{"increment a string", sum(s.Increment(ctx, "text", 1)), bad, "key", 0},
		{"increment out of range", sum(s.Increment(ctx, "n", 1e100)), bad, "key", 0},
		{"get another type", found(s.Get(ctx, "text", new(int))), bad, "", 0},
		{"set without a JSON form", s.Set(ctx, "x", func() {}), bad, "value", 0},
		{"set of broken JSON", s.Set(ctx, "x", json.RawMessage("{")), bad, "value", 0},
		{"no chat", all(h.State("", "ns").All(ctx)), bad, "chatId", 0},
		{"chat too long", all(h.State(long, "ns").All(ctx)), bad, "chatId", 0},
		{"chat with a control character", h.State("a\x00", "ns").Clear(ctx), bad, "chatId", 0},
		{"chat that is not UTF-8", h.State("a\xff", "ns").Set(ctx, "k", 1), bad, "chatId", 0},
		{"namespace", h.State("c", "a.b").Clear(ctx), bad, "namespace", 0},
		{"no namespace", h.State("c", "").Clear(ctx), bad, "namespace", 0},
		{"no key", s.Set(ctx, "", 1), bad, "key", 0},
		{"key too long", s.Set(ctx, long, 1), bad, "key", 0},
		{"get a key that is not UTF-8", found(s.Get(ctx, "a\xff", nil)), bad, "key", 0},
		{"delete a key with a control character", found(s.Delete(ctx, "a\n")), bad, "key", 0},
		{"append to a key that is not UTF-8", length(s.Append(ctx, "a\xff", 1)), bad, "key", 0},
		{"increment no key", sum(s.Increment(ctx, "", 1)), bad, "key", 0},
		{"update no key", update(""), bad, "key", 0},
		{"update a key that is not UTF-8", update("a\xff"), bad, "key", 0},
		{"negative ttl", s.Set(ctx, "x", 1, tool.TTL(-1)), bad, "ttl", 0},
		{"short ttl", s.Set(ctx, "x", 1, tool.TTL(time.Second-1)), bad, "ttl", 0},
		{"long ttl", length(s.Append(ctx, "l", 1, tool.TTL(30*24*time.Hour+1))), bad, "ttl", 0},
		{"cancelled", s.Set(gone, "x", 1), errcode.Cancelled, "", 0},
	})
	if got := whole(t, s); got != `{"text":"x"}` {
		t.Errorf("what was refused left something: %s", got)
	}
}

func stateLimits(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("limits", "ns")
	const bytes, keys, around = 64 << 10, 1024, 51 + len(`"k":""`) // the envelope, and the member
	fits := strings.Repeat("x", bytes-around)
	if err := s.Set(ctx, "k", fits); err != nil {
		t.Fatalf("a document of exactly %d bytes: %v", bytes, err)
	}
	_, appended := s.Append(ctx, "l", 1)
	_, sum := s.Increment(ctx, "n", 1)
	refused(t, []refusal{
		{"set", s.Set(ctx, "k", fits+"x"), errcode.TooLarge, "", bytes},
		{"append", appended, errcode.TooLarge, "", bytes},
		{"increment", sum, errcode.TooLarge, "", bytes},
		{"update", s.Update(ctx, "u", func(json.RawMessage) (any, error) { return 1, nil }), errcode.TooLarge, "", bytes},
	})
	if got, err := tool.Get(ctx, s, "k", ""); got != fits || err != nil {
		t.Errorf("the document was damaged: %d bytes, %v", len(got), err)
	}
	many := h.State("limits", "keys")
	for i := range keys {
		if err := many.Set(ctx, fmt.Sprint(i), i); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, []refusal{{"one key more", many.Set(ctx, "more", 1), errcode.TooLarge, "", keys}})
	if err := many.Set(ctx, "0", "another value of a key that is there"); err != nil {
		t.Error(err)
	}
}

func stateParallel(t *testing.T, h Harness) {
	ctx, s := t.Context(), h.State("parallel", "ns")
	const n = 30
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err1 := s.Append(ctx, "list", i)
			_, err2 := s.AppendAll(ctx, "pairs", []int{i, i})
			_, err3 := s.Increment(ctx, "sum", 1)
			_, err4 := tool.Update(ctx, s, "updated", 0, func(k int) (int, error) { return k + 1, nil })
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := tool.Get(ctx, s, "list", []int{})
	if slices.Sort(list); err != nil || len(slices.Compact(list)) != n {
		t.Errorf("%d of %d appends: %v", len(list), n, err)
	}
	pairs, err := tool.Get(ctx, s, "pairs", []int{})
	if err != nil || len(pairs) != 2*n {
		t.Fatalf("%d of %d appends: %v", len(pairs), 2*n, err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] != pairs[i+1] {
			t.Fatalf("values of one append stand apart: %v", pairs)
		}
	}
	for _, k := range []string{"sum", "updated"} {
		if v, err := tool.Get(ctx, s, k, 0); v != n || err != nil {
			t.Errorf("%s is %d, %v, want %d", k, v, err, n)
		}
	}
}
