package record

import (
	"slices"
	"testing"
)

func revisions(r *Record) (out []uint64) {
	for _, v := range r.Versions() {
		out = append(out, v.Revision)
	}
	return out
}

// At most so many versions are kept, the newest; of those that share chunks the
// longest counts.
func TestKeep(t *testing.T) {
	r := &Record{Revision: 1, ID: "a", Size: 1}
	for _, next := range []*Record{{Revision: 2, ID: "a", Size: 3}, {Revision: 5, ID: "b", Size: 10}, {Revision: 6, ID: "b", Size: 11}} {
		next.Keep(3, r)
		r = next
	}
	if got := revisions(r); !slices.Equal(got, []uint64{6, 5, 2}) || r.Bytes() != 14 || !r.Names("a") || !r.Names("b") || r.Names("c") {
		t.Errorf("kept are %v of %d bytes", got, r.Bytes())
	}
	if v, ok := r.At(5); !ok || v.Size != 10 {
		t.Errorf("revision 5 is %+v, %v", v, ok)
	}
	if _, ok := r.At(1); ok {
		t.Error("the oldest is still there")
	}
	next := &Record{Revision: 9, ID: "b", Size: 11}
	next.Inherit(3, r, &Record{Revision: 4, ID: "d", Size: 7})
	if got := revisions(next); !slices.Equal(got, []uint64{9, 5, 4}) {
		t.Errorf("after a move kept are %v", got)
	}
	for _, all := range []int{0, 1} {
		if next.Keep(all, r); len(next.Kept) != 0 || next.Bytes() != 11 {
			t.Errorf("of %d versions kept are %v", all, revisions(next))
		}
	}
	gone := &Record{Revision: 10, Deleted: true, ID: "b", Size: 11}
	if gone.Bytes() != 0 || gone.Names("b") || len(gone.Held()) != 0 {
		t.Errorf("a deleted file holds %v", gone.Held())
	}
}
