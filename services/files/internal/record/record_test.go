package record

import (
	"crypto/sha256"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What is written is read again, whatever was appended in whichever pieces.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := sha256.New()
		r := &Record{Path: rapid.String().Draw(t, "path"), ID: "id"}
		var before []*Record
		for i, part := range rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "parts") {
			whole.Write(part)
			h, err := r.Hash()
			if err != nil {
				t.Fatal(err)
			}
			h.Write(part)
			r.Size, r.Chunks, r.Tail = r.Size+int64(len(part)), r.Chunks+1, uint64(i+1)
			if err := r.SetHash(h); err != nil {
				t.Fatal(err)
			}
			now := time.Unix(1_700_000_000+int64(i), 0)
			kept, _ := r.Carry(now, 1)
			r.Ops = append(kept, Op{Key: KeyOf(rapid.String().Draw(t, "op")), Kind: KindAppend, At: now.Unix(), Bytes: int64(len(part)), Size: r.Size})
			data, err := r.Encode("bucket")
			if err != nil {
				t.Fatal(err)
			}
			rev := uint64(i + 10)
			r.Move, r.From = &Move{ID: "m", To: "t", Expect: rev, Op: r.Ops[0]}, &Origin{ID: "o", Path: "\x00"}
			r.Keep(4, before...)
			if data, err = r.Encode("bucket"); err != nil {
				t.Fatal(err)
			}
			got, err := Decode(data, rev, now)
			if err != nil {
				t.Fatal(err)
			}
			want := *r
			want.Revision, want.Modified = rev, now
			if want.Born == 0 {
				want.Born = rev
			}
			want.Ops[len(want.Ops)-1].Revision = rev
			if !reflect.DeepEqual(*got, want) {
				t.Fatalf("got  %+v\nwant %+v", *got, want)
			}
			r, before = got, []*Record{&want}
		}
		if r.State != nil && string(r.Digest) != string(whole.Sum(nil)) {
			t.Fatal("the continued digest differs from the whole content's")
		}
	})
}

func TestCarry(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	r := &Record{}
	for i := range MaxOps + 10 {
		r.Ops = append(r.Ops, Op{Bytes: int64(i), At: now.Unix()})
	}
	kept, spill := r.Carry(now, 6)
	if len(kept)+6 > MaxOps || len(kept)+len(spill) != len(r.Ops) || spill[0].Bytes != 0 || kept[0].Bytes != spill[len(spill)-1].Bytes+1 {
		t.Errorf("%d are carried on, %d go to a page", len(kept), len(spill))
	}
	r.Ops = kept
	if kept, spill = r.Carry(now, 6); len(spill) > 0 || len(kept) != len(r.Ops) {
		t.Errorf("%d are carried on, %d go to a page again", len(kept), len(spill))
	}
	if kept, spill = r.Carry(now.Add(OpAge+2*time.Second), 1); len(kept)+len(spill) != 0 {
		t.Errorf("%d old ones are carried on", len(kept)+len(spill))
	}
}

func TestPage(t *testing.T) {
	want := Page{Prev: 7, Ops: []Op{{Key: KeyOf("a"), Kind: KindAppend, At: 5, Bytes: 1, Size: 2, Revision: 3}, {Key: KeyOf("b"), Kind: KindCreate, At: 6, Revision: 4}}}
	got := DecodePage(want.Encode())
	if !reflect.DeepEqual(got, want) || got.Newest() != 6 {
		t.Errorf("got %+v", got)
	}
	if op, ok := got.Find(KeyOf("b")); !ok || op.Revision != 4 {
		t.Errorf("found %+v, %v", op, ok)
	}
	for _, broken := range []string{"", "x", "x AAAA", "9"} {
		if p := DecodePage([]byte(broken)); len(p.Ops) != 0 {
			t.Errorf("%q is %+v", broken, p)
		}
	}
}

// Only who has the key seals a group, and nothing of it can be changed.
func TestGroup(t *testing.T) {
	key := NewKey()
	for _, want := range []Group{
		{Base: 9, Count: 1, Ops: []Op{{Key: KeyOf("a"), Kind: KindAppend, At: 5, Bytes: 1, Size: 2}}},
		{Base: 9, Index: 2, Count: 3, Source: "SRC", Ops: []Op{{Key: KeyOf("a"), Kind: KindAppend}, {Key: KeyOf("b"), Kind: KindAppend}}},
	} {
		sealed := want.Seal(key)
		if got, ok := OpenGroup(sealed, key); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v", got, ok)
		}
		if _, ok := OpenGroup(sealed, NewKey()); ok {
			t.Error("another key opens it")
		}
		for i := range sealed {
			b := []byte(sealed)
			b[i] ^= 1
			if _, ok := OpenGroup(string(b), key); ok {
				t.Errorf("changed at %d it opens", i)
			}
		}
	}
	for _, bad := range []Group{
		{Base: 9, Count: 1},
		{Base: 9, Index: 1, Count: 1, Ops: []Op{{}}},
		{Base: 9, Index: 0, Count: 2, Ops: []Op{{}}},
	} {
		if _, ok := OpenGroup(bad.Seal(key), key); ok {
			t.Errorf("%+v is taken", bad)
		}
	}
	if _, ok := OpenGroup(Group{Base: 9, Count: 1, Ops: []Op{{}}}.Seal(""), ""); ok {
		t.Error("a group without a key is taken")
	}
}

func FuzzOpenGroup(f *testing.F) {
	f.Add(Group{Base: 9, Count: 1, Ops: []Op{{}}}.Seal("key"))
	f.Fuzz(func(t *testing.T, header string) {
		if g, ok := OpenGroup(header, "key"); ok && g.Seal("key") != header {
			t.Errorf("%q opens as %+v", header, g)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"a","bucket":"b","nuid":"c","size":1,"mtime":"0001-01-01T00:00:00Z","chunks":1,"digest":"SHA-256=x","metadata":{"toolbus-ops":"AAAA","toolbus-sha256-state":"eA","toolbus-tail":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data, 7, time.Time{})
		if err != nil {
			return
		}
		if r.State != nil {
			if _, err := r.Hash(); err != nil {
				t.Fatalf("a state that cannot be continued was taken: %v", err)
			}
		}
		for _, op := range r.Ops {
			if op.Revision == 0 && op.Kind != KindRefused {
				t.Fatal("an operation without a revision")
			}
		}
	})
}
