package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setup(t *testing.T) (*natstest.Server, jetstream.JetStream, Reader) {
	t.Helper()
	s := natstest.Start(t)
	nc := s.Connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	return s, js, Reader{Conn: nc, Name: "S"}
}

func publish(t *testing.T, js jetstream.JetStream, subject, data string) uint64 {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Header.Set("K", "v")
	m.Data = []byte(data)
	ack, err := js.PublishMsg(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return ack.Sequence
}

// The leader and any replica give the same message, or the same error.
func TestLast(t *testing.T) {
	_, js, r := setup(t)
	publish(t, js, "s.a", "1")
	seq := publish(t, js, "s.a", "2")
	publish(t, js, "s.b", "3")
	for _, replicated := range []bool{false, true} {
		r.Replicated = replicated
		m, err := r.Last(t.Context(), "s.a")
		if err != nil || m.Seq != seq || string(m.Data) != "2" || m.Header.Get("K") != "v" || m.Subject != "s.a" || m.Time.IsZero() {
			t.Errorf("replicated %v: %+v, %v", replicated, m, err)
		}
		if _, err := r.Last(t.Context(), "s.none"); !errors.Is(err, ErrNone) {
			t.Errorf("replicated %v: %v", replicated, err)
		}
		none := Reader{Conn: r.Conn, Name: "NONE", Replicated: replicated}
		if _, err := none.Last(t.Context(), "s.a"); !errors.Is(err, ErrNoStream) {
			t.Errorf("replicated %v: %v", replicated, err)
		}
		if err := none.Walk(t.Context(), "s.>", 0, 0, func(Msg) error { return nil }); !errors.Is(err, ErrNoStream) {
			t.Errorf("replicated %v: %v", replicated, err)
		}
	}
	if m, err := r.At(t.Context(), seq); err != nil || string(m.Data) != "2" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := r.At(t.Context(), 99); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

// A client sets any header on what it stores; none of them passes for the
// server's word, neither hiding a message nor what stands behind it.
func TestForgedHeaders(t *testing.T) {
	_, js, r := setup(t)
	forged := []nats.Header{
		{"Status": {"204"}, "Nats-Num-Pending": {"0"}},
		{"Status": {"404"}},
		{"Status": {"408"}},
		{"Status": {"503"}},
		{"Nats-Sequence": {"1"}, "Nats-Subject": {"s.other"}, "Nats-Time-Stamp": {"2001-01-01T00:00:00Z"}},
		{"Nats-Sequence": {"99"}, "Status": {"204"}, "Nats-Num-Pending": {"5"}},
		{"Nats-Sequence": {"no number"}, "Nats-Time-Stamp": {"never"}},
	}
	var seqs []uint64
	for _, h := range forged {
		m := nats.NewMsg("s.a")
		m.Header = h
		ack, err := js.PublishMsg(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, ack.Sequence)
		for _, replicated := range []bool{false, true} {
			r.Replicated = replicated
			last, err := r.Last(t.Context(), "s.a")
			if err != nil || last.Seq != ack.Sequence || last.Subject != "s.a" || time.Since(last.Time) > time.Hour {
				t.Errorf("last of %v, replicated %v: %+v, %v", h, replicated, last, err)
			}
		}
		at, err := r.At(t.Context(), ack.Sequence)
		if err != nil || at.Seq != ack.Sequence || at.Subject != "s.a" {
			t.Errorf("message %v: %+v, %v", h, at, err)
		}
	}
	seqs = append(seqs, publish(t, js, "s.a", "behind"))
	var walked []uint64
	err := r.Walk(t.Context(), "s.a", 0, 0, func(m Msg) error { walked = append(walked, m.Seq); return nil })
	if err != nil || !slices.Equal(walked, seqs) {
		t.Errorf("walked %v of %v, %v", walked, seqs, err)
	}
}

func TestWalkAndRemove(t *testing.T) {
	_, js, r := setup(t)
	const n = 2*walkBatch + 7
	for i := range n {
		publish(t, js, fmt.Sprintf("s.%d", i%2), fmt.Sprint(i))
	}
	next := 0
	walk := func(subject string, step int) func(Msg) error {
		return func(m Msg) error {
			if string(m.Data) != fmt.Sprint(next) {
				return fmt.Errorf("got %s, want %d", m.Data, next)
			}
			next += step
			return nil
		}
	}
	for _, hint := range []int64{0, 3000} {
		next = 0
		if err := r.Walk(t.Context(), "s.>", 0, hint, walk("s.>", 1)); err != nil || next != n {
			t.Errorf("hint %d: %d messages, %v", hint, next, err)
		}
	}
	next = 1
	if err := r.Walk(t.Context(), "s.1", 0, 0, walk("s.1", 2)); err != nil || next < n {
		t.Errorf("%d, %v", next, err)
	}
	seen := 0
	if err := r.Walk(t.Context(), "s.>", 0, 0, func(Msg) error { seen++; return Stop }); err != nil || seen != 1 {
		t.Errorf("stopped after %d, %v", seen, err)
	}
	for _, seq := range []uint64{1, 1, 5, 5, n, n} { // the first, one between and the last
		if err := r.Delete(t.Context(), seq); err != nil {
			t.Errorf("message %d: %v", seq, err)
		}
	}
	if err := r.Purge(t.Context(), "s.1"); err != nil {
		t.Error(err)
	}
	st, err := r.Info(t.Context(), "s.>")
	if err != nil || len(st.Subjects) != 1 || st.Subjects["s.0"] != (n+1)/2-3 || st.Bytes == 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// A walk that is cut short says so, and a server that is away is unavailable,
// not empty.
func TestAway(t *testing.T) {
	s, js, r := setup(t)
	publish(t, js, "s.a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Walk(ctx, "s.a", 0, 0, func(Msg) error { return nil }); err == nil {
		t.Error("a cancelled walk ended well")
	}
	s.Down()
	ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := r.Last(ctx, "s.a"); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("got %v", err)
	}
	if err := r.Walk(ctx, "s.a", 0, 0, func(Msg) error { return nil }); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("got %v", err)
	}
}
