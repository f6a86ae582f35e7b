package area

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// Files that go round in circles, are written, restored and removed by several
// replicas at once end under one name each, can all be read, and what is counted
// is what is there.
func TestMovesInCircles(t *testing.T) {
	s := natstest.Start(t)
	mod := func(c *Config) { c.Default = Limits{Bytes: 64 << 20, Versions: 3} }
	replicas := []*Area{replica(t, s, mod), replica(t, s, mod), replica(t, s, mod)}
	names := []string{"a", "b", "c"}
	for _, n := range names {
		apply(t, replicas[0], record.KindOverwrite, n, n)
	}
	var wg sync.WaitGroup
	var moved atomic.Int64
	for w := range 6 {
		wg.Go(func() {
			a := replicas[w%len(replicas)]
			for i := range 40 {
				from, to, op := names[(w+i)%3], names[(w+i+1)%3], fmt.Sprintf("%d-%d", w, i)
				switch rand.N(6) {
				case 0:
					_, _ = a.Apply(t.Context(), tenant, Change{Path: from, Kind: record.KindAppend, Content: []byte("x"), OpID: op})
				case 1:
					_, _ = a.Apply(t.Context(), tenant, Change{Path: from, Kind: record.KindOverwrite, Content: []byte(op), OpID: op})
				case 2:
					if vs, err := a.Versions(t.Context(), tenant, from); err == nil && len(vs.Versions) > 1 {
						_, _ = a.Apply(t.Context(), tenant, Change{Path: from, Kind: record.KindRestore, Version: vs.Versions[1].Revision, OpID: op})
					}
				default:
					if _, err := a.Move(t.Context(), tenant, Move{Path: from, To: to, Overwrite: rand.N(2) == 0, OpID: op}); err == nil {
						moved.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	if moved.Load() == 0 {
		t.Error("nothing was moved")
	}
	for _, n := range names { // what the last one to look has left is ended first
		if _, err := replicas[0].settled(t.Context(), replicas[0].bucket(tenant), n); err != nil {
			t.Fatal(err)
		}
	}
	type usage struct{ bytes, files int64 }
	var counted []usage // before the markers of what is gone go, too
	for _, a := range replicas {
		settle(t, a)
		if err := a.sweep(t.Context(), a.bucket(tenant)); err != nil {
			t.Fatal(err)
		}
		var u usage
		var err error
		if u.bytes, u.files, err = a.used(t.Context(), a.bucket(tenant), ""); err != nil {
			t.Fatal(err)
		}
		counted = append(counted, u)
	}
	fresh := replica(t, s, mod)
	later := time.Now().Add(3 * time.Hour)
	fresh.now = func() time.Time { return later }
	if err := fresh.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh.now = time.Now
	var sum, files int64
	held := map[string]int{}
	for _, n := range names {
		rec, err := fresh.settled(t.Context(), fresh.bucket(tenant), n)
		if err != nil {
			t.Fatal(err)
		}
		if !rec.Exists() {
			continue
		}
		files++
		sum += rec.Bytes()
		for id := range rec.Held() {
			held[id]++
		}
		for _, v := range rec.Versions() {
			length := v.Size
			out, err := fresh.Read(t.Context(), tenant, message.FileRead{Path: n, Revision: &v.Revision, Length: &length, Encoding: "utf8"})
			if err != nil || out.Length != v.Size {
				t.Errorf("%s at %d: %d bytes of %d, %v", n, v.Revision, out.Length, v.Size, err)
			}
		}
		if got := object(t, fresh, n); int64(len(got)) != rec.Size {
			t.Errorf("object %s has %d bytes of %d", n, len(got), rec.Size)
		}
	}
	for id, n := range held {
		if n > 1 {
			t.Errorf("chunks %s are those of %d files", id, n)
		}
	}
	for i, u := range counted {
		if u != (usage{sum, files}) {
			t.Errorf("replica %d counts %+v of %d bytes in %d files", i, u, sum, files)
		}
	}
	info, err := fresh.bucket(tenant).reader.Info(t.Context(), fresh.bucket(tenant).chunks())
	if err != nil || len(info.Subjects) > len(held) {
		t.Errorf("%d chunk ids stand, files need %d, %v", len(info.Subjects), len(held), err)
	}
}
