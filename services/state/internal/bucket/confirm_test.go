package bucket

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// The leader is frozen, another one is elected and takes a write. Reads that
// reach the old leader when it goes on, before it hears of the new one, must not
// be answered by what it remembers.
func TestReadThroughADeposedLeader(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	open := func(url string) *Bucket {
		t.Helper()
		js, err := jetstream.New(natstest.Connect(t, url))
		if err != nil {
			t.Fatal(err)
		}
		b, err := Open(t.Context(), js, "b", jet.BucketStream("b", 3))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first, err := open(c.URL()).Put(t.Context(), "k", nil, []byte("old"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.WaitCurrent("KV_b")
	leader := c.Leader("KV_b")
	deposed := open(leader.URL())
	if m, err := deposed.Read(t.Context(), "k"); err != nil || string(m.Data) != "old" || m.Seq != first || !m.Current {
		t.Fatalf("before: %+v, %v", m, err)
	}
	if m, err := deposed.Read(t.Context(), "none"); err != nil || m.Seq != 0 || !m.Current {
		t.Fatalf("nothing: %+v, %v", m, err)
	}
	var other *Bucket
	for _, m := range c.Members {
		if m != leader {
			other = open(m.URL())
			break
		}
	}

	leader.Pause()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := other.Put(ctx, "k", nil, []byte("new"), 0, first)
		cancel()
		// The first try may be waiting for the new leader when the second comes.
		if err == nil || errors.Is(err, ErrRevision) {
			break
		}
		if time.Now().After(deadline) {
			leader.Resume()
			t.Fatalf("no other leader: %v", err)
		}
	}
	var sent, readers sync.WaitGroup
	var stale atomic.Int64
	for range 8 {
		sent.Add(1)
		readers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			sent.Done()
			if m, err := deposed.Last(ctx, "k"); err == nil && string(m.Data) == "old" {
				if stale.Add(1); m.Current {
					t.Error("what the deposed leader remembers passes for current")
				}
			}
		})
		sent.Add(1)
		readers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			sent.Done()
			for {
				m, err := deposed.Read(ctx, "k")
				if err == nil {
					if string(m.Data) != "new" || !m.Current {
						t.Errorf("read %q, current %t, after another value was acknowledged", m.Data, m.Current)
					}
					return
				}
				if ctx.Err() != nil {
					t.Errorf("no answer any more: %v", err)
					return
				}
			}
		})
	}
	sent.Wait()
	time.Sleep(50 * time.Millisecond) // into the frozen server's socket; nothing tells when they are there
	leader.Resume()
	readers.Wait()
	t.Logf("%d of 8 plain reads were stale", stale.Load())
}

// Who asks while a mark is being written shares the next one; nobody gets one
// that was begun before.
func TestMarksAreShared(t *testing.T) {
	var begun atomic.Uint64
	entered, release := make(chan struct{}, 10), make(chan struct{})
	m := newMarks(func(context.Context) (uint64, error) {
		n := begun.Add(1)
		entered <- struct{}{}
		<-release
		return n, nil
	})
	var wg sync.WaitGroup
	got := make(chan uint64, 20)
	ask := func() {
		wg.Go(func() {
			seq, err := m.next(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- seq
		})
	}
	ask()
	<-entered // the first is being written
	for range 5 {
		ask()
	}
	waiting := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.open != nil
	}
	for deadline := time.Now().Add(5 * time.Second); !waiting(); time.Sleep(time.Millisecond) { // poll
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
	}
	close(release)
	wg.Wait()
	close(got)
	firsts := 0
	for seq := range got {
		if seq == 1 {
			firsts++
		}
	}
	if firsts != 1 || begun.Load() < 2 || begun.Load() > 6 {
		t.Errorf("%d got the first mark, %d were written", firsts, begun.Load())
	}

	// One that gives up does not take the others' mark with it.
	failed := errors.New("failed")
	m = newMarks(func(ctx context.Context) (uint64, error) {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, failed
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.next(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, failed) {
		t.Error(err)
	}
	if _, err := m.next(t.Context()); !errors.Is(err, failed) {
		t.Errorf("%v, want the write's error", err)
	}
}
