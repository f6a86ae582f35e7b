package jet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/internal/jet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, ns *natstest.Server) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(ns.Connect())
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func bucket(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if _, err := jet.Ensure(t.Context(), js, jet.BucketStream("b", 1)); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, js jetstream.JetStream, key, value string, expect uint64) uint64 {
	t.Helper()
	m := nats.NewMsg(jet.KVSubject("b", key))
	m.Data = []byte(value)
	seq, err := jet.Put(t.Context(), js, m, expect)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func TestEnsure(t *testing.T) {
	ns := natstest.Start(t)
	var wg sync.WaitGroup
	for range 8 {
		js := connect(t, ns)
		wg.Go(func() {
			if _, err := jet.Ensure(t.Context(), js, jet.BucketStream("b", 1)); err != nil {
				t.Errorf("several replicas at once: %v", err)
			}
		})
	}
	wg.Wait()
	js := connect(t, ns)
	put(t, js, "k", "v", 0)

	// An update keeps the data; the result is a bucket for nats.go too.
	cfg := jet.BucketStream("b", 1)
	cfg.MaxBytes = 1 << 20
	st, err := jet.Ensure(t.Context(), js, cfg)
	if err != nil || st.CachedInfo().Config.MaxBytes != 1<<20 || st.CachedInfo().Config.MaxMsgsPerSubject != 1 {
		t.Errorf("%+v, %v", st.CachedInfo().Config, err)
	}
	kv, err := js.KeyValue(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(t.Context(), "k"); err != nil || string(e.Value()) != "v" {
		t.Errorf("%v, %v", e, err)
	}

	// What can never work ends at once.
	cfg.Storage = jetstream.MemoryStorage
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := jet.Ensure(ctx, js, cfg); err == nil || ctx.Err() != nil {
		t.Errorf("an impossible update: %v", err)
	}
}

// A server without room for what a stream reserves is reported, not waited for.
func TestEnsureReportsMissingRoom(t *testing.T) {
	ns := natstest.Start(t)
	js := connect(t, ns)
	cfg := jet.BucketStream("b", 1)
	cfg.MaxBytes = 1 << 60
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := jet.Ensure(ctx, js, cfg)
	if !errors.Is(err, errcode.Unavailable) || ctx.Err() != nil || !strings.Contains(err.Error(), "insufficient storage") {
		t.Errorf("got %v", err)
	}
}

func TestEnsureEndsWithItsContext(t *testing.T) {
	ns := natstest.Start(t)
	js := connect(t, ns)
	ns.Down()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := jet.Ensure(ctx, js, jet.BucketStream("b", 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	ns.Up()
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := jet.Ensure(ctx, js, jet.BucketStream("b", 1)); err != nil {
		t.Errorf("after the server came back: %v", err)
	}
}

func TestPut(t *testing.T) {
	ns := natstest.Start(t)
	js := connect(t, ns)
	bucket(t, js)
	first := put(t, js, "k", "1", 0)
	for _, wrong := range []uint64{0, first + 1} {
		if _, err := jet.Put(t.Context(), js, &nats.Msg{Subject: jet.KVSubject("b", "k")}, wrong); !errors.Is(err, jet.ErrRevision) {
			t.Errorf("expected %d: %v", wrong, err)
		}
	}
	if second := put(t, js, "k", "2", first); second <= first {
		t.Errorf("revision %d after %d", second, first)
	}
	if _, err := jet.Put(t.Context(), js, &nats.Msg{Subject: "$KV.nosuch.k"}, 0); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("no stream: %v", err)
	}
	big := &nats.Msg{Subject: jet.KVSubject("b", "big"), Data: make([]byte, 2<<20)}
	if _, err := jet.Put(t.Context(), js, big, 0); !errors.Is(err, errcode.TooLarge) {
		t.Errorf("over max_payload: %v", err)
	}
	full := jet.BucketStream("b", 1)
	full.MaxBytes = 1024
	if _, err := jet.Ensure(t.Context(), js, full); err != nil {
		t.Fatal(err)
	}
	if _, err := jet.Put(t.Context(), js, &nats.Msg{Subject: jet.KVSubject("b", "x"), Data: make([]byte, 2048)}, 0); !errors.Is(err, errcode.TooLarge) {
		t.Errorf("stream full: %v", err)
	}
}

// Compare-and-set is what every owner builds on: concurrent increments of one
// value lose none.
func TestPutLosesNoUpdate(t *testing.T) {
	ns := natstest.Start(t)
	js := connect(t, ns)
	bucket(t, js)
	put(t, js, "n", "0", 0)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for done := 0; done < 25; {
				msgs, err := jet.Last(t.Context(), js, "KV_b", jet.KVSubject("b", "n"))
				if err != nil || len(msgs) != 1 {
					t.Errorf("%v, %v", msgs, err)
					return
				}
				var n int
				if _, err := fmt.Sscan(string(msgs[0].Data), &n); err != nil {
					t.Error(err)
					return
				}
				m := nats.NewMsg(msgs[0].Subject)
				m.Data = fmt.Append(nil, n+1)
				switch _, err := jet.Put(t.Context(), js, m, msgs[0].Sequence); {
				case err == nil:
					done++
				case !errors.Is(err, jet.ErrRevision):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	msgs, err := jet.Last(t.Context(), js, "KV_b", jet.KVSubject("b", "n"))
	if err != nil || len(msgs) != 1 || string(msgs[0].Data) != "100" {
		t.Errorf("%+v, %v", msgs, err)
	}
}

func TestLast(t *testing.T) {
	ns := natstest.Start(t)
	js := connect(t, ns)
	bucket(t, js)
	last := func(filters ...string) []*jetstream.RawStreamMsg {
		t.Helper()
		msgs, err := jet.Last(t.Context(), js, "KV_b", filters...)
		if err != nil {
			t.Fatal(err)
		}
		return msgs
	}
	if got := last("$KV.b.>"); len(got) != 0 {
		t.Errorf("empty bucket: %v", got)
	}
	if got := last(); len(got) != 0 {
		t.Errorf("no filter: %v", got)
	}
	a := put(t, js, "t1.a", "1", 0)
	put(t, js, "t1.b", "1", 0)
	put(t, js, "t2.c", "1", 0)
	put(t, js, "t1.a", "2", a)
	got := last("$KV.b.t1.*")
	if len(got) != 2 || got[0].Subject != "$KV.b.t1.b" || string(got[1].Data) != "2" || time.Since(got[1].Time) > time.Minute {
		t.Errorf("%+v", got)
	}
	if got := last("$KV.b.t1.a", "$KV.b.t2.>"); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	// Headers and empty values travel, whatever a client has put into them.
	m := nats.NewMsg(jet.KVSubject("b", "t3.x"))
	m.Header.Set("Status", "404")
	m.Header.Set("Toolbus-Op", "x")
	if _, err := jet.Put(t.Context(), js, m, 0); err != nil {
		t.Fatal(err)
	}
	if got := last("$KV.b.t3.>"); len(got) != 1 || got[0].Header.Get("Toolbus-Op") != "x" || len(got[0].Data) != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := jet.Last(t.Context(), js, "KV_nosuch", "$KV.nosuch.>"); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("no stream: %v", err)
	}
}

func TestLastDirect(t *testing.T) {
	ns := natstest.Start(t)
	js := connect(t, ns)
	bucket(t, js)
	if _, err := jet.LastDirect(t.Context(), js, "KV_b", "$KV.b.t1.a"); !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	put(t, js, "t1.a", "1", 0)
	m := nats.NewMsg(jet.KVSubject("b", "t3.x"))
	m.Header.Set("Status", "404") // whatever a client has put into it
	m.Header.Set("Toolbus-Op", "x")
	seq, err := jet.Put(t.Context(), js, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	got, err := jet.LastDirect(t.Context(), js, "KV_b", m.Subject)
	if err != nil || got.Subject != m.Subject || got.Sequence != seq || got.Header.Get("Toolbus-Op") != "x" || len(got.Data) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := jet.LastDirect(t.Context(), js, "KV_b", "$KV.b.t1.a"); err != nil || string(got.Data) != "1" || time.Since(got.Time) > time.Minute {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := jet.LastDirect(t.Context(), js, "KV_nosuch", "$KV.nosuch.a"); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("no stream: %v", err)
	}
}

// Above the 1,024 subjects that one answer of the server holds, while they are
// being written.
func TestLastOfMany(t *testing.T) {
	ns := natstest.Start(t, func(o *server.Options) { o.MaxPayload = 64 << 10 }) // requests are small
	js := connect(t, ns)
	bucket(t, js)
	const n = 3000
	pad := strings.Repeat("x", 150) // long keys make a request's list long
	for i := range n {
		if _, err := js.PublishAsync(jet.KVSubject("b", fmt.Sprintf("t1.%s%d", pad, i)), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	stop := make(chan struct{})
	var writes atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i = (i + 7) % n {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := js.Publish(context.Background(), jet.KVSubject("b", fmt.Sprintf("t1.%s%d", pad, i)), []byte("new")); err != nil {
				t.Error(err)
				return
			}
			writes.Add(1)
		}
	})
	for range 5 {
		msgs, err := jet.Last(t.Context(), js, "KV_b", "$KV.b.t1.>", "$KV.b.t2.>")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i, m := range msgs {
			seen[m.Subject] = true
			if i > 0 && m.Sequence <= msgs[i-1].Sequence {
				t.Fatalf("out of order at %d", i)
			}
		}
		if len(msgs) != n || len(seen) != n {
			t.Fatalf("%d messages, %d subjects, want %d", len(msgs), len(seen), n)
		}
	}
	close(stop)
	wg.Wait()
	if writes.Load() == 0 {
		t.Error("nothing was written meanwhile")
	}
}

// A list that could not be read to its end is an error, not a shorter list.
func TestLastWithoutNATS(t *testing.T) {
	ns := natstest.Start(t)
	js := connect(t, ns)
	bucket(t, js)
	put(t, js, "k", "v", 0)
	ns.Down()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if msgs, err := jet.Last(ctx, js, "KV_b", "$KV.b.>"); err == nil {
		t.Errorf("got %v", msgs)
	}
	ns.Up()
	deadline := time.Now().Add(20 * time.Second)
	for {
		msgs, err := jet.Last(t.Context(), js, "KV_b", "$KV.b.>")
		if err == nil && len(msgs) == 1 {
			return
		}
		if err == nil || time.Now().After(deadline) {
			t.Fatalf("after a restart: %v, %v", msgs, err)
		}
		time.Sleep(20 * time.Millisecond) // poll
	}
}
