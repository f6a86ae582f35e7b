package bucket

import (
	"context"
	"errors"
	"fmt"
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

// Who asks while others' group is read shares the next one; nobody is answered
// by a read that was begun before.
func TestReadsAreGrouped(t *testing.T) {
	var mu sync.Mutex
	var begun [][]string
	entered, release := make(chan struct{}, groupsAtOnce), make(chan struct{})
	g := newGroups(func(_ context.Context, keys []string) (map[string]Message, error) {
		mu.Lock()
		begun = append(begun, keys)
		seq := uint64(len(begun))
		mu.Unlock()
		select {
		case entered <- struct{}{}:
		default: // nobody is interested any more
		}
		<-release
		out := map[string]Message{}
		for _, k := range keys {
			if k != "none" {
				out[k] = Message{Key: k, Seq: seq, Current: true}
			}
		}
		return out, nil
	}, func() int { return askBytes })
	var wg sync.WaitGroup
	ask := func(key string, atLeast uint64) {
		wg.Go(func() {
			m, err := g.do(t.Context(), key)
			switch {
			case err != nil:
				t.Error(err)
			case m.Key != key || !m.Current || (m.Seq == 0) != (key == "none"):
				t.Errorf("asked for %s, got %+v", key, m)
			case key != "none" && m.Seq < atLeast:
				t.Errorf("%s was answered by read %d, begun before it was asked for", key, m.Seq)
			}
		})
	}
	for i := range groupsAtOnce {
		ask("first", uint64(i))
		<-entered // all turns are taken
	}
	const more = 3 * groupKeys
	for i := range more {
		ask(fmt.Sprint("key ", i%(2*groupKeys)), groupsAtOnce+1)
	}
	ask("none", groupsAtOnce+1)
	close(release)
	wg.Wait()
	waited := 0
	for i, keys := range begun {
		if len(keys) > groupKeys {
			t.Errorf("a group of %d keys", len(keys))
		}
		if i >= groupsAtOnce {
			waited += len(keys)
		}
	}
	if waited > more+1 {
		t.Errorf("%d keys were read for %d callers", waited, more+1)
	}
}

// The keys of a group fit a request, however long they are; one key always does.
func TestGroupsFitARequest(t *testing.T) {
	g := newGroups(nil, func() int { return 10 })
	first := g.join("123456")
	if g.join("1234") != first || g.join("123456") != first {
		t.Error("what fits does not share a group")
	}
	second := g.join("x")
	if second == first || g.join("x") != second {
		t.Error("a key too many")
	}
	if g.join("longer than all") == second {
		t.Error("a long key with another")
	}
}

// One that gives up takes nothing from the others, and an error is everybody's.
func TestGroupOutlivesItsCaller(t *testing.T) {
	failed := errors.New("failed")
	g := newGroups(func(ctx context.Context, _ []string) (map[string]Message, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, failed
	}, func() int { return askBytes })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // whichever way its select goes
		if _, err := g.do(ctx, "k"); !errors.Is(err, context.Canceled) && !errors.Is(err, failed) {
			t.Error(err)
		}
	}
	if _, err := g.do(t.Context(), "k"); !errors.Is(err, failed) {
		t.Errorf("%v, want the read's error", err)
	}
}
