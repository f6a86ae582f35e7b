package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/services/state"
)

func text(s string) *string { return &s }

func wake(id string) *message.Wake {
	return &message.Wake{WakeID: id, Mode: message.WakeChat, Message: "3 new lines", Source: message.WakeSource{Kind: message.SourceToolJob, ID: "poll", Tool: "Mail"}}
}

func commit(t testing.TB, s *store.Store, c message.StoreCommit) bool {
	t.Helper()
	ok, err := s.Commit(t.Context(), c)
	if err != nil {
		t.Fatalf("commit %s: %v", c.TickID, err)
	}
	return ok
}

func outbox(t testing.TB, s *store.Store, job string) message.StoreOutboxRecord {
	t.Helper()
	r, err := s.Outbox(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func value(t testing.TB, s *store.Store, key string) string {
	t.Helper()
	v, found, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return "-"
	}
	return v
}

func TestCommit(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	s := store.New(nc, "acme", "support", "Mail")
	if r := outbox(t, s, "poll"); r.Found || r.TickID != "" || r.Wake != nil {
		t.Fatalf("outbox of nothing: %+v", r)
	}
	if err := s.Set(t.Context(), "old", "x"); err != nil {
		t.Fatal(err)
	}
	first := message.StoreCommit{JobID: "poll", TickID: "poll-1000", Slot: 1000, Attempt: 1, Wake: wake("w1"), Writes: []message.StoreWrite{
		{Key: "offset", Value: text("42")}, {Key: "old"}, {Key: "empty", Value: text("")}, {Key: "never"}, {Key: "a/b c", Value: text("ü")},
	}}
	if !commit(t, s, first) {
		t.Fatal("the first commit was refused")
	}
	got := fmt.Sprint(value(t, s, "offset"), value(t, s, "old"), value(t, s, "empty"), value(t, s, "never"), value(t, s, "a/b c"))
	if want := fmt.Sprint("42", "-", "", "-", "ü"); got != want {
		t.Fatalf("values %q, want %q", got, want)
	}
	if r := outbox(t, s, "poll"); r.TickID != "poll-1000" || r.Slot != 1000 || r.Wake == nil || r.Wake.WakeID != "w1" || r.Wake.Message != "3 new lines" {
		t.Fatalf("outbox: %+v", r)
	}

	// The outbox is out of a tool's reach.
	if keys, err := s.List(t.Context(), ""); err != nil || !slices.Equal(keys, []string{"a/b c", "empty", "offset"}) {
		t.Fatalf("list: %q, %v", keys, err)
	}
	for _, key := range []string{"outbox.poll", "outbox", "outbox=2Epoll"} {
		if v := value(t, s, key); v != "-" {
			t.Errorf("%s shows %q", key, v)
		}
		if err := s.Set(t.Context(), key, "broken"); err != nil {
			t.Fatal(err)
		}
	}

	// Nothing changes for the same, an earlier or an equally late tick.
	for _, c := range []message.StoreCommit{
		first,
		{JobID: "poll", TickID: "poll-1000", Slot: 2000, Attempt: 2},
		{JobID: "poll", TickID: "poll-999", Slot: 999},
		{JobID: "poll", TickID: "other-1000", Slot: 1000},
	} {
		c.Writes = []message.StoreWrite{{Key: "offset", Value: text("wrong")}}
		if commit(t, s, c) {
			t.Errorf("%s at %d was committed", c.TickID, c.Slot)
		}
	}
	// A later one would lose the wake.
	second := message.StoreCommit{JobID: "poll", TickID: "poll-2000", Slot: 2000, Attempt: 1, Writes: []message.StoreWrite{{Key: "offset", Value: text("43")}}}
	if _, err := s.Commit(t.Context(), second); !errors.Is(err, errcode.Conflict) {
		t.Fatalf("over an unsettled wake: %v", err)
	}
	if v := value(t, s, "offset"); v != "42" {
		t.Fatalf("offset %q", v)
	}
	for _, tick := range []string{"poll-999", "poll-1000", "poll-1000"} {
		if err := s.Settle(t.Context(), "poll", tick); err != nil {
			t.Fatal(err)
		}
		if r := outbox(t, s, "poll"); !r.Found || r.TickID != "poll-1000" || (r.Wake == nil) != (tick == "poll-1000") {
			t.Fatalf("after settling %s: %+v", tick, r)
		}
	}
	if !commit(t, s, second) || value(t, s, "offset") != "43" {
		t.Fatal("the second tick was refused")
	}

	// Other jobs, tools, agents and tenants have fences of their own.
	for _, c := range []struct {
		s   *store.Store
		job string
	}{{s, "sweep"}, {store.New(nc, "acme", "support", "mail"), "poll"}, {store.New(nc, "acme", "other", "Mail"), "poll"}, {store.New(nc, "other", "support", "Mail"), "poll"}} {
		if r := outbox(t, c.s, c.job); r.Found {
			t.Errorf("a foreign outbox: %+v", r)
		}
		if err := c.s.Settle(t.Context(), c.job, "poll-2000"); err != nil {
			t.Error(err)
		}
		if !commit(t, c.s, message.StoreCommit{JobID: c.job, TickID: "poll-1000", Slot: 1000}) {
			t.Error("fenced off by another's commit")
		}
	}
	if v := value(t, s, "offset"); v != "43" {
		t.Fatalf("offset %q", v)
	}
}

// What is recorded without writes is one message, and so is what is settled.
func TestCommitWithoutWritesIsOneMessage(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	s := store.New(nc, "acme", "support", "Mail")
	batches := 0
	for i, c := range []message.StoreCommit{
		{JobID: "poll", TickID: "1", Slot: 1},
		{JobID: "poll", TickID: "2", Slot: 2, Wake: wake("w")},
		{JobID: "poll", TickID: "3", Slot: 3, Writes: []message.StoreWrite{{Key: "k", Value: text("v")}}},
	} {
		if !commit(t, s, c) {
			t.Fatal(c.TickID)
		}
		if err := s.Settle(t.Context(), "poll", c.TickID); err != nil {
			t.Fatal(err)
		}
		m, err := stream(t, nc, "KV_toolbus_store").GetLastMsgForSubject(t.Context(), "$KV.toolbus_store."+subject.OutboxKey("acme", "support", "Mail", "poll"))
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get("Nats-Batch-Id") != "" {
			batches++
		}
		if want := i / 2; batches != want {
			t.Errorf("%d batches after tick %s, want %d", batches, c.TickID, want)
		}
	}
}

// A newer scheduler's fields come back as they were.
func TestOutboxKeepsUnknownFieldsOfAWake(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	ask := func(op, body string) string {
		t.Helper()
		var out json.RawMessage
		if err := bus.Request(t.Context(), nc, subject.Store("acme", "a", "t", op), json.RawMessage(body), &out); err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	w := `{"wakeId":"w","mode":"chat","message":"<&>","priority":{"of":"tomorrow"}}`
	if got := ask("commit", `{"jobId":"j","tickId":"t","slot":5,"attempt":1,"wake":`+w+`}`); got != `{"committed":true}` {
		t.Fatal(got)
	}
	if got, want := ask("outbox", `{"jobId":"j"}`), `{"found":true,"tickId":"t","slot":5,"wake":`+w+`}`; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	if got := ask("settle", `{"jobId":"j","tickId":"t"}`); got != `{}` {
		t.Fatal(got)
	}
	if got, want := ask("outbox", `{"jobId":"j"}`), `{"found":true,"tickId":"t","slot":5}`; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

func TestCommitBadRequests(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns, func(c *state.Config) { c.ValueLimit = 2048 })
	nc := ns.Connect()
	do := func(op, body string) error {
		return bus.Request(t.Context(), nc, subject.Store("acme", "a", "t", op), json.RawMessage(body), nil)
	}
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `{"key":"k%d","value":""},`, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	head := `{"jobId":"j","tickId":"t","slot":1,`
	for _, c := range []struct {
		op, body, field string
		code            errcode.Code
	}{
		{"commit", `{}`, "jobId", errcode.InvalidRequest},
		{"commit", `{"jobId":"a.b","tickId":"t","slot":1}`, "jobId", errcode.InvalidRequest},
		{"commit", `{"jobId":"j","slot":1}`, "tickId", errcode.InvalidRequest},
		{"commit", `{"jobId":"j","tickId":"t"}`, "slot", errcode.InvalidRequest},
		{"commit", `{"jobId":"j","tickId":"t","slot":-1}`, "slot", errcode.InvalidRequest},
		{"commit", head + `"attempt":-1}`, "attempt", errcode.InvalidRequest},
		{"commit", head + `"writes":[{"key":"a","value":"1"},{"value":"1"}]}`, "writes[1].key", errcode.InvalidRequest},
		{"commit", head + `"writes":[{"key":"a\u0007","value":"1"}]}`, "writes[0].key", errcode.InvalidRequest},
		{"commit", head + `"writes":[{"key":"a","value":"1"},{"key":"b","value":"1"},{"key":"a","value":null}]}`, "writes[2].key", errcode.InvalidRequest},
		{"commit", head + `"writes":[{"key":"a"}]}`, "writes[0].value", errcode.InvalidRequest},
		{"commit", head + `"writes":[{"key":"a","value":1}]}`, "writes[0].value", errcode.InvalidRequest},
		{"commit", head + `"writes":[{"key":"a","value":"` + strings.Repeat("x", 2049) + `"}]}`, "writes[0].value", errcode.TooLarge},
		{"commit", head + `"writes":[` + many(201) + `]}`, "writes", errcode.TooLarge},
		{"commit", head + `"wake":{"mode":"chat","message":"m"}}`, "wake.wakeId", errcode.InvalidRequest},
		{"commit", head + `"wake":{"wakeId":"w","mode":"loud","message":"m"}}`, "wake.mode", errcode.InvalidRequest},
		{"commit", head + `"wake":7}`, "wake", errcode.InvalidRequest},
		{"commit", head + `"wake":{"wakeId":"w","mode":"chat","message":"` + strings.Repeat("x", 2049) + `"}}`, "wake", errcode.TooLarge},
		{"outbox", `{"jobId":"*"}`, "jobId", errcode.InvalidRequest},
		{"settle", `{"jobId":"j"}`, "tickId", errcode.InvalidRequest},
		{"settle", `{"tickId":"t"}`, "jobId", errcode.InvalidRequest},
	} {
		err := do(c.op, c.body)
		wantCode(t, err, c.code, c.field)
	}
	s := store.New(nc, "acme", "a", "t")
	if keys, err := s.List(t.Context(), ""); err != nil || len(keys) != 0 || outbox(t, s, "j").Found {
		t.Fatalf("a refused commit left %q, %v", keys, err)
	}
	if err := do("commit", head+`"writes":[`+many(200)+`],"wake":null}`); err != nil {
		t.Fatal(err)
	}
	if keys, err := s.List(t.Context(), ""); err != nil || len(keys) != 200 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
}

// Whoever asks which replica: a tick is committed once, and all of it is the
// same commit's.
func TestCommitOfOneTickByMany(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	var stores []*store.Store
	for range 3 {
		stores = append(stores, store.New(ns.Connect(), "acme", "support", "Mail"))
	}
	for tick := range int64(6) {
		id := fmt.Sprintf("poll-%d", tick)
		var won atomic.Int64
		var winner atomic.Value
		var wg sync.WaitGroup
		for i, s := range stores {
			wg.Go(func() {
				me := fmt.Sprintf("%s by %d", id, i)
				c := message.StoreCommit{JobID: "poll", TickID: id, Slot: tick + 1, Wake: wake(me), Writes: []message.StoreWrite{
					{Key: "a", Value: &me}, {Key: "b", Value: &me},
				}}
				if tick%2 == 1 {
					c.Writes = nil
				}
				switch ok, err := s.Commit(t.Context(), c); {
				case err != nil:
					t.Error(err)
				case ok:
					won.Add(1)
					winner.Store(me)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%s was committed %d times", id, won.Load())
		}
		me := winner.Load().(string)
		if r := outbox(t, stores[0], "poll"); r.TickID != id || r.Wake.WakeID != me {
			t.Fatalf("%s won, outbox %+v", me, r)
		}
		if a, b := value(t, stores[1], "a"), value(t, stores[2], "b"); tick%2 == 0 && (a != me || b != me) {
			t.Fatalf("%s won, values %q and %q", me, a, b)
		}
		if err := stores[0].Settle(t.Context(), "poll", id); err != nil {
			t.Fatal(err)
		}
	}
}

// A retry of an ordinary write finds its id in the log though a commit has
// written the key since: it has no second effect.
func TestCommitKeepsTheLogOfWrites(t *testing.T) {
	ns := natstest.Start(t)
	for range 2 {
		start(t, ns)
	}
	nc := ns.Connect()
	s := store.New(nc, "acme", "a", "t")
	set := func(body string) string {
		t.Helper()
		var out json.RawMessage
		if err := bus.Request(t.Context(), nc, subject.Store("acme", "a", "t", "set"), json.RawMessage(body), &out); err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	const again = `{"key":"k","value":"tool","opId":"1"}`
	first := set(again)
	for slot, want := range []*string{text("job"), nil, text("job again")} {
		if !commit(t, s, message.StoreCommit{JobID: "j", TickID: fmt.Sprint(slot), Slot: int64(slot + 1), Writes: []message.StoreWrite{{Key: "k", Value: want}}}) {
			t.Fatal("refused")
		}
		if got := set(again); got != first {
			t.Errorf("the retry was answered %s, first %s", got, first)
		}
		if v := value(t, s, "k"); want == nil && v != "-" || want != nil && v != *want {
			t.Errorf("the retry had an effect: %q", v)
		}
	}
}

// Ordinary writes, with a condition and without, and commits meet on one key
// through three replicas. Each writer also has a key that nobody else writes, in
// which it must find what it wrote last; whoever is answered last on the common
// key finds that there.
func TestCommitBesideOrdinaryWrites(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	nc := ns.Connect()
	s := store.New(nc, "acme", "a", "t")
	const writers, commits = 3, 10
	stop := make(chan struct{})
	var writing sync.WaitGroup
	var sets atomic.Int64
	for i := range writers {
		writing.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				mine := fmt.Sprintf("tool %d.%d", i, n)
				was, err := s.Read(t.Context(), "shared")
				if err != nil {
					t.Error(err)
					return
				}
				switch rev, err := s.SetIf(t.Context(), "shared", mine, was.Revision); {
				case err == nil && rev <= was.Revision:
					t.Errorf("revision %d after %d", rev, was.Revision)
				case err == nil:
					sets.Add(1)
				case !errors.Is(err, errcode.Conflict):
					t.Error(err)
					return
				}
				if err := s.Set(t.Context(), fmt.Sprint("tool", i), mine); err != nil {
					t.Error(err)
					return
				}
				if got := value(t, s, fmt.Sprint("tool", i)); got != mine {
					t.Errorf("own write lost: %q, want %q", got, mine)
				}
			}
		})
	}
	for c := range commits {
		mine := fmt.Sprintf("job %d", c)
		if !commit(t, s, message.StoreCommit{JobID: "j", TickID: mine, Slot: int64(c + 1), Writes: []message.StoreWrite{
			{Key: "shared", Value: &mine}, {Key: "job", Value: &mine},
		}}) {
			t.Errorf("%s was refused", mine)
		}
		if got := value(t, s, "job"); got != mine {
			t.Errorf("commit lost: %q, want %q", got, mine)
		}
	}
	eventually(t, "ordinary writes get through", func() bool { return t.Failed() || sets.Load() >= commits })
	close(stop)
	writing.Wait()
	if !commit(t, s, message.StoreCommit{JobID: "j", TickID: "last", Slot: 1000, Writes: []message.StoreWrite{{Key: "shared", Value: text("last")}}}) || value(t, s, "shared") != "last" {
		t.Error("the last write does not stand")
	}
}

// NATS goes away while ticks are committed: writes and outbox stand at the same
// tick whenever anybody looks, and no tick is committed twice.
func TestCommitIsAllOrNothingAcrossRestarts(t *testing.T) {
	ns := natstest.Start(t)
	for range 2 {
		start(t, ns)
	}
	s := store.New(ns.Connect(nats.MaxReconnects(-1)), "acme", "a", "t")
	keys := []string{"a", "b", "c", "d"}
	slot, committed := int64(0), int64(0)
	next := func() {
		slot++
		id := fmt.Sprint(slot)
		c := message.StoreCommit{JobID: "j", TickID: id, Slot: slot}
		for _, k := range keys {
			c.Writes = append(c.Writes, message.StoreWrite{Key: k, Value: &id})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		switch ok, err := s.Commit(ctx, c); {
		case err == nil && ok:
			committed = slot
		case err != nil && !errcode.From(err).Retryable:
			t.Errorf("tick %s: %v", id, err)
		}
	}
	for round := range 2 {
		begun, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			next()
			close(begun)
			for range 4 {
				next()
			}
		}()
		<-begun
		ns.Down()
		ns.Up()
		<-done
		var r message.StoreOutboxRecord
		eventually(t, "answers after the restart", func() bool {
			var err error
			r, err = s.Outbox(t.Context(), "j")
			return err == nil
		})
		for _, k := range keys {
			if v := value(t, s, k); v != r.TickID {
				t.Fatalf("round %d: %s stands at tick %s, the outbox at %s", round, k, v, r.TickID)
			}
		}
		if r.Slot < committed {
			t.Fatalf("round %d: tick %d was committed, the outbox stands at %d", round, committed, r.Slot)
		}
	}
}

// Any sequence of commits, retries, settles and ordinary writes does what it
// does to a model.
func TestFenceAgainstModel(t *testing.T) {
	ns := natstest.Start(t)
	for range 2 {
		start(t, ns)
	}
	nc := ns.Connect()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		s := store.New(nc, "acme", fmt.Sprint("agent", run), "t")
		type job struct {
			tick string
			slot int64
			wake string
		}
		jobs, values := map[string]*job{"x": {}, "y": {}}, map[string]string{}
		name := rapid.SampledFrom([]string{"x", "y"})
		key := rapid.SampledFrom([]string{"a", "b", "c"})
		n := 0
		rt.Repeat(map[string]func(*rapid.T){
			"commit": func(rt *rapid.T) {
				id := name.Draw(rt, "job")
				j := jobs[id]
				slot := rapid.Int64Range(max(1, j.slot), j.slot+2).Draw(rt, "slot")
				c := message.StoreCommit{JobID: id, Slot: slot, TickID: fmt.Sprintf("%s-%d", id, slot), Attempt: 1}
				for _, k := range rapid.SliceOfNDistinct(key, 0, 3, rapid.ID[string]).Draw(rt, "keys") {
					n++
					w := message.StoreWrite{Key: k}
					if rapid.Bool().Draw(rt, "set") {
						w.Value = text(fmt.Sprint(n))
					}
					c.Writes = append(c.Writes, w)
				}
				if rapid.Bool().Draw(rt, "wakes") {
					n++
					c.Wake = wake(fmt.Sprint("w", n))
				}
				ok, err := s.Commit(t.Context(), c)
				switch {
				case slot <= j.slot:
					if err != nil || ok {
						rt.Fatalf("slot %d after %d: %t, %v", slot, j.slot, ok, err)
					}
				case j.wake != "":
					if !errors.Is(err, errcode.Conflict) {
						rt.Fatalf("over wake %s: %t, %v", j.wake, ok, err)
					}
				default:
					if err != nil || !ok {
						rt.Fatalf("slot %d after %d: %t, %v", slot, j.slot, ok, err)
					}
					*j = job{tick: c.TickID, slot: slot}
					if c.Wake != nil {
						j.wake = c.Wake.WakeID
					}
					for _, w := range c.Writes {
						delete(values, w.Key)
						if w.Value != nil {
							values[w.Key] = *w.Value
						}
					}
				}
			},
			"settle": func(rt *rapid.T) {
				id := name.Draw(rt, "job")
				j := jobs[id]
				tick := fmt.Sprintf("%s-%d", id, rapid.Int64Range(max(0, j.slot-1), j.slot).Draw(rt, "slot"))
				if err := s.Settle(t.Context(), id, tick); err != nil {
					rt.Fatal(err)
				}
				if tick == j.tick {
					j.wake = ""
				}
			},
			"set": func(rt *rapid.T) {
				n++
				k := key.Draw(rt, "key")
				values[k] = fmt.Sprint(n)
				if err := s.Set(t.Context(), k, values[k]); err != nil {
					rt.Fatal(err)
				}
			},
			"delete": func(rt *rapid.T) {
				k := key.Draw(rt, "key")
				_, was := values[k]
				if deleted, err := s.Delete(t.Context(), k); err != nil || deleted != was {
					rt.Fatalf("delete: %t, %v, want %t", deleted, err, was)
				}
				delete(values, k)
			},
			"outbox": func(rt *rapid.T) {
				id := name.Draw(rt, "job")
				j := jobs[id]
				r, err := s.Outbox(t.Context(), id)
				got := ""
				if r.Wake != nil {
					got = r.Wake.WakeID
				}
				if err != nil || r.Found != (j.tick != "") || r.TickID != j.tick || r.Slot != j.slot || got != j.wake {
					rt.Fatalf("outbox %s: %+v (%v), model %+v", id, r, err, *j)
				}
			},
			"values": func(rt *rapid.T) {
				keys, err := s.List(t.Context(), "")
				if err != nil || len(keys) != len(values) {
					rt.Fatalf("keys %q, model %v (%v)", keys, values, err)
				}
				for _, k := range keys {
					if v := value(t, s, k); v != values[k] {
						rt.Fatalf("%s is %q, model %q", k, v, values[k])
					}
				}
			},
		})
	})
}
