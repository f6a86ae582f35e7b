package oplog

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func entries(l Log) []Entry {
	var out []Entry
	for _, e := range l.entries {
		out = append(out, *e)
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Log
		at := time.UnixMilli(1_790_000_000_000)
		revision := rapid.Uint64Range(1, 1<<50)
		for i := range rapid.IntRange(0, 300).Draw(t, "n") {
			at = at.Add(time.Duration(rapid.IntRange(-5, 5000).Draw(t, "ms")) * time.Millisecond)
			l.Add(&Entry{
				ID: Hash(fmt.Sprint(i)), Kind: Kind(rapid.IntRange(0, 15).Draw(t, "kind")),
				Revision: rapid.OneOf(rapid.SampledFrom([]uint64{0, PendingHead, PendingBelow}), revision).Draw(t, "rev"),
				At:       at,
				TTL:      time.Duration(rapid.Int64Range(0, 1<<32).Draw(t, "ttl")) * time.Millisecond,
				Answer:   rapid.StringN(0, 64, 64).Draw(t, "answer"),
			})
		}
		header := l.Encode()
		got, err := Decode(header, 1<<51)
		if err != nil {
			t.Fatal(err)
		}
		l.Settle(1 << 51)
		want := entries(l)
		for i, e := range entries(got) {
			if e != want[i] {
				t.Fatalf("entry %d: %+v, want %+v", i, e, want[i])
			}
			if f := got.Find(e.ID); f == nil || *f != e {
				t.Fatalf("entry %d is not found", i)
			}
		}
		if got.Len() != l.Len() {
			t.Fatalf("%d entries, want %d", got.Len(), l.Len())
		}
	})
}

func TestTrim(t *testing.T) {
	now := time.UnixMilli(1_790_000_000_000)
	fill := func(n int, age time.Duration, answer string) Log {
		var l Log
		for i := range n {
			l.Add(&Entry{ID: Hash(fmt.Sprint(i)), At: now.Add(-age), Answer: answer})
		}
		return l
	}
	for _, c := range []struct {
		name      string
		l         Log
		keep, min int
		max       int
	}{
		{"young ones stay", fill(10, time.Minute, "1"), 0, 10, 10},
		{"old ones go", fill(10, Retention+time.Millisecond, "1"), 0, 0, 0},
		{"old ones of this message stay", fill(10, Retention+time.Millisecond, "1"), 3, 3, 3},
		{"many are cut", fill(MaxEntries+100, 0, ""), 0, 200, MaxEntries},
		{"long ones are cut", fill(MaxEntries, 0, "1234567890123456789012345678901234567890"), 1, 100, 200},
	} {
		l := c.l
		l.Trim(now, c.keep)
		if l.Len() < c.min || l.Len() > c.max || len(l.index) != l.Len() {
			t.Errorf("%s: %d entries, %d found, want %d to %d", c.name, l.Len(), len(l.index), c.min, c.max)
		}
		if n := len(l.Encode()); n > MaxHeader {
			t.Errorf("%s: header of %d bytes", c.name, n)
		}
	}
}

func FuzzDecode(f *testing.F) {
	var l Log
	l.Add(&Entry{ID: Hash("a"), Kind: 3, Revision: 7, At: time.UnixMilli(1), TTL: time.Second, Answer: "x"})
	l.Add(&Entry{ID: Hash("b"), Revision: PendingHead})
	f.Add(l.Encode(), uint64(9))
	f.Add("AQ", uint64(1))
	f.Fuzz(func(t *testing.T, header string, seq uint64) {
		l, err := Decode(header, seq)
		if err != nil {
			return
		}
		again, err := Decode(l.Encode(), seq)
		if err != nil || again.Len() != l.Len() {
			t.Fatalf("decoded log does not come back: %v", err)
		}
	})
}
