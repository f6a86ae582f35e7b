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
			r.Ops = append(r.Carry(now, 1), Op{Key: KeyOf(rapid.String().Draw(t, "op")), Kind: KindAppend, At: now.Unix(), Bytes: int64(len(part)), Size: r.Size})
			data, err := r.Encode("bucket")
			if err != nil {
				t.Fatal(err)
			}
			rev := uint64(i + 10)
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
			r = got
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
	if got := r.Carry(now, 6); len(got) != MaxOps-6 || got[len(got)-1].Bytes != MaxOps+9 {
		t.Errorf("%d are carried on", len(got))
	}
	if got := r.Carry(now.Add(OpAge+2*time.Second), 1); len(got) != 0 {
		t.Errorf("%d old ones are carried on", len(got))
	}
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
			if op.Revision == 0 {
				t.Fatal("an operation without a revision")
			}
		}
	})
}
