package commit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
	"github.com/toolbus/toolbus/services/state/internal/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lossy is a bucket whose publishes land, and whose every n-th acknowledgement
// is lost.
type lossy struct {
	*bucket.Bucket
	every int64
	count atomic.Int64
}

func (l *lossy) Put(ctx context.Context, key string, h nats.Header, data []byte, ttl time.Duration, expect uint64) (uint64, error) {
	seq, err := l.Bucket.Put(ctx, key, h, data, ttl, expect)
	if l.every > 0 && l.count.Add(1)%l.every == 0 {
		return 0, context.DeadlineExceeded
	}
	return seq, err
}

var texts = Codec[string]{
	Decode: func(b []byte) (string, time.Time, error) { return string(b), time.Time{}, nil },
	Encode: func(s string, _ time.Time) []byte { return []byte(s) },
}

func add(s, id string) Op[string] {
	return Op[string]{ID: id, Kind: 1, Apply: func(st *State[string], _ time.Time) (Answer, error) {
		if s == "bad" {
			return Answer{}, errcode.Field("s", "is bad")
		}
		st.Live = true
		st.Data += s + ","
		return Answer{Text: fmt.Sprint(strings.Count(st.Data, ","))}, nil
	}}
}

func open(t *testing.T, every int64, n int) ([]*Committer[string], *bucket.Bucket) {
	t.Helper()
	js, err := jetstream.New(natstest.Start(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	b, err := bucket.Open(t.Context(), js, "b", jet.BucketStream("b", 1))
	if err != nil {
		t.Fatal(err)
	}
	var cs []*Committer[string]
	for range n {
		c := New(&lossy{Bucket: b, every: every}, texts, time.Now, prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}))
		t.Cleanup(c.Close)
		cs = append(cs, c)
	}
	return cs, b
}

// Lost acknowledgements, several replicas, operations with and without an id,
// and some that fail: each good one lands once, with its own answer.
func TestLostAcknowledgements(t *testing.T) {
	cs, b := open(t, 3, 3)
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]bool{}
	const n = 90
	for i := range n {
		wg.Go(func() {
			if i%9 == 8 {
				if _, err := cs[i%3].Do(t.Context(), "k", add("bad", "")); !errors.Is(err, errcode.InvalidRequest) {
					t.Errorf("a bad operation: %v", err)
				}
				return
			}
			id := ""
			if i%2 == 0 {
				id = fmt.Sprint("op", i)
			}
			r, err := cs[i%3].Do(t.Context(), "k", add(fmt.Sprint(i), id))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if answers[r.Text] {
				t.Errorf("answer %s twice", r.Text)
			}
			answers[r.Text] = true
		})
	}
	wg.Wait()
	m, err := b.Last(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for s := range strings.SplitSeq(strings.TrimSuffix(string(m.Data), ","), ",") {
		got[s]++
	}
	if len(got) != n-n/9 || len(answers) != n-n/9 {
		t.Fatalf("%d values and %d answers, want %d: %s", len(got), len(answers), n-n/9, m.Data)
	}
	for s, c := range got {
		if c != 1 {
			t.Errorf("%s landed %d times", s, c)
		}
	}
}

// flooded is a bucket of which one acknowledgement is lost, after which others
// write before the key is read again.
type flooded struct {
	*bucket.Bucket
	once  sync.Once
	flood func()
}

func (f *flooded) Put(ctx context.Context, key string, h nats.Header, data []byte, ttl time.Duration, expect uint64) (uint64, error) {
	seq, err := f.Bucket.Put(ctx, key, h, data, ttl, expect)
	f.once.Do(func() {
		f.flood()
		seq, err = 0, context.DeadlineExceeded
	})
	return seq, err
}

// A publish whose acknowledgement was lost, and which the log has forgotten
// since, is not made again: nobody can tell whether it was done.
func TestLostAcknowledgementOfABusyKey(t *testing.T) {
	cs, b := open(t, 0, 1)
	others := func() {
		var wg sync.WaitGroup
		for range oplog.MaxEntries + 50 {
			wg.Go(func() {
				if _, err := cs[0].Do(t.Context(), "k", add("other", "")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for _, id := range []string{"", "mine"} {
		c := New(&flooded{Bucket: b, flood: others}, texts, time.Now, prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}))
		t.Cleanup(c.Close)
		text := "it" + id
		r, err := c.Do(t.Context(), "k", add(text, id))
		if !errors.Is(err, errcode.Timeout) || errcode.From(err).Retryable {
			t.Errorf("id %q: %+v, %v, want a timeout that is final", id, r, err)
		}
		m, err := b.Last(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(","+string(m.Data), ","+text+","); n != 1 {
			t.Errorf("id %q: it was done %d times", id, n)
		}
	}
}

// A log forgets operations by their age, too. A retry from before then is not
// done again.
func TestRetryOlderThanTheLog(t *testing.T) {
	_, b := open(t, 0, 0)
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	c := New(b, texts, clock, prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}))
	t.Cleanup(c.Close)
	do := func(s, id string, age time.Duration) error {
		op := add(s, id)
		op.Age = age
		_, err := c.Do(t.Context(), "k", op)
		return err
	}
	if err := do("once", "retried", 0); err != nil {
		t.Fatal(err)
	}
	ahead.Add(int64(oplog.Retention + 10*time.Second))
	// Nothing was written since: the log tells, of what it holds and what not.
	if err := errors.Join(do("once", "retried", oplog.Retention+10*time.Second), do("new", "", 0)); err != nil {
		t.Fatal(err)
	}
	if err := do("once", "retried", oplog.Retention+10*time.Second); !errors.Is(err, errcode.Timeout) || errcode.From(err).Retryable {
		t.Errorf("a retry that the log has forgotten: %v", err)
	}
	if err := do("young", "retried once", time.Second); err != nil {
		t.Errorf("a retry that came soon: %v", err)
	}
	// A value whose whole log was dropped, as a job's writes may.
	m, err := b.Last(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), "k", nil, m.Data, 0, m.Seq); err != nil {
		t.Fatal(err)
	}
	if err := do("once", "retried", oplog.Retention+10*time.Second); !errors.Is(err, errcode.Timeout) {
		t.Errorf("a late retry on a value without a log: %v", err)
	}
	m, err = b.Last(t.Context(), "k")
	if err != nil || string(m.Data) != "once,new,young," {
		t.Errorf("in the end: %s, %v", m.Data, err)
	}
}

// A kept value that another replica has replaced must not decide an answer.
func TestKeptValueIsNotTrusted(t *testing.T) {
	cs, _ := open(t, 0, 2)
	ctx := t.Context()
	one, err := cs[0].Do(ctx, "k", add("1", ""))
	if err != nil {
		t.Fatal(err)
	}
	two, err := cs[1].Do(ctx, "k", add("2", ""))
	if err != nil || two.Revision <= one.Revision {
		t.Fatal(two, err)
	}
	stale := add("3", "")
	stale.IfRevision = &one.Revision
	if _, err := cs[0].Do(ctx, "k", stale); !errors.Is(err, errcode.Conflict) || *errcode.From(err).Details.Revision != two.Revision {
		t.Fatalf("a stale compare-and-set: %v, current is %d", err, two.Revision)
	}
	fresh := add("3", "")
	fresh.IfRevision = &two.Revision
	if r, err := cs[0].Do(ctx, "k", fresh); err != nil || r.Text != "3" {
		t.Fatalf("a fresh compare-and-set: %+v, %v", r, err)
	}
	idle := Op[string]{Kind: 2, Apply: func(st *State[string], _ time.Time) (Answer, error) {
		return Answer{Text: st.Data, None: true, Idle: true}, nil
	}}
	if r, err := cs[1].Do(ctx, "k", idle); err != nil || r.Text != "1,2,3," {
		t.Fatalf("an idle operation saw %q, %v", r.Text, err)
	}
}

func TestCancelledAndClosed(t *testing.T) {
	cs, b := open(t, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cs[0].Do(ctx, "k", add("1", "")); !errors.Is(err, errcode.Cancelled) {
		t.Errorf("cancelled: %v", err)
	}
	cs[0].Close()
	if _, err := cs[0].Do(t.Context(), "k", add("2", "")); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("closed: %v", err)
	}
	if m, err := b.Last(t.Context(), "k"); err != nil || m.Seq != 0 {
		t.Errorf("something was written: %+v, %v", m, err)
	}
}

// Keys that nobody writes any more take no memory, and cost no work.
func TestIdleKeysAreForgotten(t *testing.T) {
	cs, _ := open(t, 0, 1)
	c := cs[0]
	for i := range 3 * maxHotQueues {
		if _, err := c.Do(t.Context(), fmt.Sprint("k", i), add("x", "")); err != nil {
			t.Fatal(err)
		}
	}
	known := func() (queues int, armed bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.queues), c.armed
	}
	if n, armed := known(); n == 0 || n > maxHotQueues || !armed {
		t.Fatalf("%d queues right after the writes, timer armed: %v", n, armed)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		n, armed := known()
		if n == 0 && !armed {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d queues are left, timer armed: %v", n, armed)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if r, err := c.Do(t.Context(), "k0", add("y", "")); err != nil || r.Text != "2" {
		t.Errorf("a forgotten key: %+v, %v", r, err)
	}
}
