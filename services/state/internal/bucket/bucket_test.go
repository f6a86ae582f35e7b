package bucket

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/internal/jet"
)

func open(t *testing.T) (*Bucket, *nats.Conn) {
	t.Helper()
	nc := natstest.Start(t).Connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jet.BucketStream("b", 1)
	cfg.SubjectDeleteMarkerTTL = time.Second
	cfg.RePublish = &jetstream.RePublish{Source: "$KV.b.>", Destination: "changes.>"}
	b, err := Open(t.Context(), js, "b", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b, nc
}

// Both ways of reading see the same: the direct one, and the leader's.
func TestLastFromLeader(t *testing.T) {
	b, _ := open(t)
	ctx := t.Context()
	for _, leader := range []bool{false, true} {
		b.leader = leader
		if m, err := b.Last(ctx, "none"); err != nil || m.Seq != 0 {
			t.Fatalf("leader %t: nothing is %+v, %v", leader, m, err)
		}
		before, err := b.Last(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		seq, err := b.Put(ctx, "k", nats.Header{"X": {"1"}}, []byte("value"), 0, before.Seq)
		if err != nil {
			t.Fatal(err)
		}
		m, err := b.Last(ctx, "k")
		if err != nil || m.Key != "k" || m.Seq != seq || string(m.Data) != "value" || m.Header.Get("X") != "1" || m.Marker {
			t.Fatalf("leader %t: %+v, %v", leader, m, err)
		}
		if _, err := b.Put(ctx, "k", nats.Header{}, nil, 0, before.Seq); !errors.Is(err, ErrRevision) {
			t.Fatalf("a stale write: %v", err)
		}
		gone, err := b.Remove(ctx, "k", nats.Header{"X": {"2"}}, time.Minute, seq)
		if err != nil {
			t.Fatal(err)
		}
		if m, err = b.Last(ctx, "k"); err != nil || !m.Marker || m.Seq != gone || m.Header.Get("X") != "2" {
			t.Fatalf("leader %t: marker %+v, %v", leader, m, err)
		}
	}
}

// What is removed was announced already: its marker goes without another word,
// while what expires is announced.
func TestMarkersGoSilently(t *testing.T) {
	b, nc := open(t)
	ctx := t.Context()
	changes, err := nc.SubscribeSync("changes.>")
	if err != nil {
		t.Fatal(err)
	}
	seq, err := b.Put(ctx, "removed", nats.Header{}, []byte("v"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Remove(ctx, "removed", nats.Header{}, time.Second, seq); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "expired", nats.Header{}, []byte("v"), 1100*time.Millisecond, 0); err != nil { // 2 s
		t.Fatal(err)
	}
	var got []string
	for range 4 {
		m, err := changes.NextMsg(8 * time.Second)
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, strings.TrimPrefix(m.Subject, "changes.")+" "+m.Header.Get("KV-Operation")+" "+m.Header.Get("Nats-Marker-Reason"))
	}
	want := []string{"removed  ", "removed DEL Remove", "expired  ", "expired  MaxAge"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Fatalf("announced %q, want %q", got, want)
	}
	if m, err := b.Last(ctx, "removed"); err != nil || m.Seq != 0 {
		t.Fatalf("the marker stays: %+v, %v", m, err)
	}
}

func TestFetch(t *testing.T) {
	b, _ := open(t)
	ctx := t.Context()
	want := []string{"z", "a", "m"}
	for _, k := range []string{"a", "m", "z"} {
		if _, err := b.Put(ctx, k, nats.Header{}, []byte(k), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	for step := 1; step < 5; step++ {
		var got []string
		if err := b.Fetch(ctx, []string{"z", "none", "a", "m"}, step, func(m Message) bool {
			got = append(got, string(m.Data))
			return true
		}); err != nil || strings.Join(got, "") != strings.Join(want, "") {
			t.Errorf("step %d: %q, %v", step, got, err)
		}
	}
	n := 0
	if err := b.Fetch(ctx, want, 10, func(Message) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("went on after false: %d, %v", n, err)
	}
}

func TestWholeSeconds(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		1: time.Second, time.Millisecond: time.Second, time.Second: time.Second, time.Second + 1: 2 * time.Second,
		1999 * time.Millisecond: 2 * time.Second, 24 * time.Hour: 24 * time.Hour,
	} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}
