package state_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/services/state"
)

func TestStoreOps(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	ctx := t.Context()
	s := store.New(nc, "acme", "support", "Mail")
	if v, found, err := s.Get(ctx, "offset"); err != nil || found || v != "" {
		t.Fatalf("get of nothing: %q, %t, %v", v, found, err)
	}
	for _, kv := range [][2]string{{"offset", "42"}, {"empty", ""}, {"a/b c", "ü"}, {"a/b.c", "<>"}, {"offset", "43"}} {
		if err := s.Set(ctx, kv[0], kv[1]); err != nil {
			t.Fatal(err)
		}
		if v, found, err := s.Get(ctx, kv[0]); err != nil || !found || v != kv[1] {
			t.Fatalf("get %s: %q, %t, %v", kv[0], v, found, err)
		}
	}
	if keys, err := s.List(ctx, ""); err != nil || !slices.Equal(keys, []string{"a/b c", "a/b.c", "empty", "offset"}) {
		t.Fatalf("list: %q, %v", keys, err)
	}
	if keys, err := s.List(ctx, "a/b."); err != nil || !slices.Equal(keys, []string{"a/b.c"}) {
		t.Fatalf("list by prefix: %q, %v", keys, err)
	}
	for _, want := range []bool{true, false} {
		if deleted, err := s.Delete(ctx, "offset"); err != nil || deleted != want {
			t.Fatalf("delete: %t, %v, want %t", deleted, err, want)
		}
	}
	if keys, err := s.List(ctx, "off"); err != nil || len(keys) != 0 || keys == nil {
		t.Fatalf("a deleted key is listed: %q, %v", keys, err)
	}
	if _, found, err := s.Get(ctx, "offset"); err != nil || found {
		t.Fatalf("a deleted key is found: %v", err)
	}
	if err := s.Set(ctx, "offset", "again"); err != nil {
		t.Fatal(err)
	}

	// Nobody else's keys collide.
	for _, other := range []*store.Store{
		store.New(nc, "acme2", "support", "Mail"), store.New(nc, "acme", "support2", "Mail"), store.New(nc, "acme", "support", "mail"),
	} {
		if keys, err := other.List(ctx, ""); err != nil || len(keys) != 0 {
			t.Errorf("foreign keys: %q, %v", keys, err)
		}
		if deleted, err := other.Delete(ctx, "offset"); err != nil || deleted {
			t.Errorf("foreign delete: %t, %v", deleted, err)
		}
	}

	// Readable as a plain KV entry.
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(ctx, "toolbus_store")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(ctx, "acme.support.Mail.a=2Fb=2Ec"); err != nil || string(e.Value()) != "<>" {
		t.Fatalf("kv: %v", err)
	}
}

func TestStoreCompareAndSet(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	s := store.New(ns.Connect(), "acme", "support", "Mail")
	ctx := t.Context()
	var mu sync.Mutex
	var won []uint64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			rev, err := s.SetIf(ctx, "lock", "x", 0)
			switch {
			case err == nil:
				mu.Lock()
				won = append(won, rev)
				mu.Unlock()
			case !errors.Is(err, errcode.Conflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d created the same key", len(won))
	}
	if err := s.DeleteIf(ctx, "lock", won[0]+1); !errors.Is(err, errcode.Conflict) || *errcode.From(err).Details.Revision != won[0] {
		t.Fatalf("delete at a wrong revision: %v", err)
	}
	if err := s.DeleteIf(ctx, "lock", won[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetIf(ctx, "lock", "x", won[0]); !errors.Is(err, errcode.Conflict) || *errcode.From(err).Details.Revision != 0 {
		t.Fatalf("set of a deleted key: %v", err)
	}
	if _, err := s.SetIf(ctx, "lock", "x", 0); err != nil {
		t.Fatal(err)
	}
}

func TestStoreRetryGetsTheFirstAnswer(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	do := func(op, body string) string {
		t.Helper()
		var out json.RawMessage
		if err := bus.Request(t.Context(), nc, subject.Store("acme", "a", "t", op), json.RawMessage(body), &out); err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	ops := [][2]string{
		{"delete", `{"key":"k","opId":"0"}`}, {"set", `{"key":"k","value":"1","opId":"1"}`}, {"set", `{"key":"k","value":"2","opId":"2"}`},
		{"delete", `{"key":"k","opId":"3"}`}, {"set", `{"key":"k","value":"4","opId":"4"}`},
	}
	var answers []string
	for _, o := range ops {
		answers = append(answers, do(o[0], o[1]))
	}
	before := do("get", `{"key":"k"}`)
	for i, o := range ops {
		if again := do(o[0], o[1]); again != answers[i] {
			t.Errorf("%v again: %s, first %s", o, again, answers[i])
		}
	}
	if after := do("get", `{"key":"k"}`); after != before {
		t.Errorf("retries had an effect: %s, before %s", after, before)
	}
}

func TestStoreBadRequests(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns, func(c *state.Config) { c.ValueLimit = 2048 })
	nc := ns.Connect()
	do := func(to, body string) error {
		return bus.Request(t.Context(), nc, to, json.RawMessage(body), nil)
	}
	for _, c := range []struct{ to, body, field string }{
		{subject.Store("acme", "a", "t", "fly"), `{}`, "op"},
		{subject.Store("acme", "a", "t", "get"), `{}`, "key"},
		{subject.Store("acme", "a", "t", "get"), `{"key":"a\u0007"}`, "key"},
		{subject.Store("acme", "a", "t", "set"), `{"key":"k"}`, "value"},
		{subject.Store("acme", "a", "t", "set"), `{"key":"k","value":1}`, "value"},
		{subject.Store("acme", "a", "t", "list"), `{"prefix":"` + strings.Repeat("x", 257) + `"}`, "prefix"},
		{subject.Store("_x", "a", "t", "list"), `{}`, "tenant"},
		{subject.Store("acme", "a=", "t", "list"), `{}`, "agent"},
		{subject.Store("acme", "a", "ü", "list"), `{}`, "tool"},
	} {
		wantCode(t, do(c.to, c.body), errcode.InvalidRequest, c.field)
	}
	if err := do(subject.Store("acme", "a", "t", "set"), `{"key":"k","value":"old"}`); err != nil {
		t.Fatal(err)
	}
	err := do(subject.Store("acme", "a", "t", "set"), `{"key":"k","value":"`+strings.Repeat("x", 2049)+`"}`)
	wantCode(t, err, errcode.TooLarge, "")
	if d := errcode.From(err).Details; *d.Limit != 2048 || *d.Actual != 2049 {
		t.Errorf("%+v", d)
	}
	if v, _, err := store.New(nc, "acme", "a", "t").Get(t.Context(), "k"); err != nil || v != "old" {
		t.Errorf("the old value is damaged: %q, %v", v, err)
	}
}

// The stream answers at most 1,024 subjects at once.
func TestStoreListsManyKeys(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	s := store.New(ns.Connect(), "acme", "support", "Mail")
	const n = 1100
	var wg sync.WaitGroup
	limit := make(chan struct{}, 64)
	for i := range n {
		limit <- struct{}{}
		wg.Go(func() {
			if err := s.Set(t.Context(), fmt.Sprintf("key %04d", i), "v"); err != nil {
				t.Error(err)
			}
			<-limit
		})
	}
	wg.Wait()
	keys, err := s.List(t.Context(), "key ")
	if err != nil || len(keys) != n || !slices.IsSorted(keys) {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
}
