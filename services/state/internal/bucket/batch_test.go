package bucket

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

func TestWriteAll(t *testing.T) {
	b, _ := open(t)
	ctx := t.Context()
	last := func(key string) Message {
		t.Helper()
		m, err := b.Last(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if err := b.WriteAll(ctx, []Write{{Key: "a", Data: []byte("1")}, {Key: "b", Data: []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	a, bb := last("a"), last("b")
	if string(a.Data) != "1" || string(bb.Data) != "1" || a.Seq == bb.Seq {
		t.Fatalf("%+v %+v", a, bb)
	}
	// One that misses, first or last, spoils all.
	for _, wrong := range [][2]uint64{{a.Seq, bb.Seq + 1}, {0, bb.Seq}, {bb.Seq, a.Seq}} {
		err := b.WriteAll(ctx, []Write{{Key: "a", Data: []byte("2"), Expect: wrong[0]}, {Key: "b", Data: []byte("2"), Expect: wrong[1]}})
		if !errors.Is(err, ErrRevision) || last("a").Seq != a.Seq || last("b").Seq != bb.Seq {
			t.Fatalf("expecting %v: %v, a at %d, b at %d", wrong, err, last("a").Seq, last("b").Seq)
		}
	}
	if err := b.WriteAll(ctx, []Write{{Key: "a", Remove: true, Expect: a.Seq}, {Key: "b", Data: []byte("3"), Expect: bb.Seq}}); err != nil {
		t.Fatal(err)
	}
	if m := last("a"); !m.Marker || len(m.Data) != 0 || string(last("b").Data) != "3" {
		t.Fatalf("%+v", m)
	}
	if err := b.WriteAll(ctx, []Write{{Key: "c", Data: []byte("1"), Expect: 7}}); !errors.Is(err, ErrRevision) {
		t.Fatalf("a single write: %v", err)
	}
}

// More batches at once than the server takes: each key is won by one of each
// round, and nothing is lost.
func TestWriteAllAtOnce(t *testing.T) {
	b, _ := open(t)
	var won atomic.Int64
	var wg sync.WaitGroup
	const n = 80
	for i := range n {
		wg.Go(func() {
			err := b.WriteAll(t.Context(), []Write{{Key: "shared", Data: fmt.Append(nil, i)}, {Key: fmt.Sprint("own", i), Data: fmt.Append(nil, i)}})
			if err == nil {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d won", won.Load())
	}
	keys, err := b.Keys(t.Context(), ">")
	if err != nil || len(keys) != 2 {
		t.Errorf("%v, %v", keys, err)
	}
}
