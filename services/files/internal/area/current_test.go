package area

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// The leader is frozen, another one is elected and takes a write. What is asked
// of the old leader when it goes on, before it hears of the new one, is not
// answered by what it remembers: neither reads nor what writes find without
// writing.
func TestReadThroughADeposedLeader(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	replicated := func(cfg *Config) { cfg.Replicas = 3 }
	first := replicaOn(t, c.Connect(), replicated)
	out := apply(t, first, record.KindOverwrite, "f", "old")
	old := out.Revision
	apply(t, first, record.KindOverwrite, "gone", "x")
	apply(t, first, record.KindDelete, "gone", "")
	b := first.bucket(tenant)
	c.WaitCurrent(b.reader.Name)
	leader := c.Leader(b.reader.Name)
	deposed := replicaOn(t, natstest.Connect(t, leader.URL()), replicated)
	if got := read(t, deposed, "f"); got != "old" {
		t.Fatalf("before: %q", got)
	}
	if got := read(t, deposed, "none"); got != none {
		t.Fatalf("nothing: %q", got)
	}
	var other *Area
	for _, m := range c.Members {
		if m != leader {
			other = replicaOn(t, natstest.Connect(t, m.URL()), replicated)
			break
		}
	}

	leader.Pause()
	for deadline := time.Now().Add(30 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := other.js.PublishMsg(ctx, nats.NewMsg(b.mark()))
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			leader.Resume()
			t.Fatalf("no other leader: %v", err)
		}
	}
	for _, path := range []string{"f", "gone"} { // the new leader may still ask the frozen one at first
		op := Change{Path: path, Kind: record.KindOverwrite, Content: []byte("new"), OpID: bus.NewOpID()}
		_, err := other.Apply(t.Context(), tenant, op)
		for range 5 {
			if err == nil || !errcode.From(err).Retryable {
				break
			}
			_, err = other.Apply(t.Context(), tenant, op)
		}
		if err != nil {
			leader.Resume()
			t.Fatal(err)
		}
	}
	var sent, readers sync.WaitGroup
	var stale atomic.Int64
	ask := func(what string, f func(ctx context.Context) (fault, err error)) {
		sent.Add(1)
		readers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			sent.Done()
			for {
				fault, err := f(ctx)
				if fault != nil {
					t.Errorf("%s: %v", what, fault)
				}
				if err == nil {
					return
				}
				if ctx.Err() != nil {
					t.Errorf("%s: no answer any more: %v", what, err)
					return
				}
			}
		})
	}
	for range 8 {
		ask("load", func(ctx context.Context) (error, error) {
			if r, err := deposed.load(ctx, deposed.bucket(tenant), "f"); err == nil && r.Current() == old {
				stale.Add(1)
			}
			return nil, nil
		})
		ask("read", func(ctx context.Context) (fault, err error) {
			r, err := deposed.Read(ctx, tenant, message.FileRead{Path: "f", Encoding: message.EncodingUTF8})
			if err == nil && *r.Content != "new" {
				fault = fmt.Errorf("%q", *r.Content)
			}
			return fault, err
		})
		ask("stat", func(ctx context.Context) (fault, err error) {
			r, err := deposed.Stat(ctx, tenant, "gone")
			if err == nil && !r.Exists {
				fault = errors.New("it is not there")
			}
			return fault, err
		})
	}
	ask("condition", func(ctx context.Context) (fault, err error) {
		none := uint64(0)
		_, err = deposed.Apply(ctx, tenant, Change{Path: "gone", Kind: record.KindOverwrite, IfRevision: &none, OpID: bus.NewOpID()})
		if err == nil {
			return errors.New("it was written over"), nil
		}
		if errors.Is(err, errcode.Conflict) {
			return nil, nil
		}
		return nil, err
	})
	ask("move", func(ctx context.Context) (fault, err error) {
		_, err = deposed.Move(ctx, tenant, Move{Path: "f", To: "gone", OpID: bus.NewOpID()})
		switch {
		case err == nil:
			return errors.New("it was moved over"), nil
		case errors.Is(err, errcode.Conflict):
			return nil, nil
		}
		return nil, err
	})
	sent.Wait()
	time.Sleep(50 * time.Millisecond) // into the frozen server's socket; nothing tells when they are there
	leader.Resume()
	readers.Wait()
	t.Logf("%d of 8 plain reads were stale", stale.Load())
	settle(t, deposed)
	if st, err := other.bucket(tenant).reader.Info(t.Context(), b.mark()); err != nil || st.Subjects[b.mark()] > 8 {
		t.Errorf("%d marks are left, %v", st.Subjects[b.mark()], err)
	}
}
