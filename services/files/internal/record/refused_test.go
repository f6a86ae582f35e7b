package record

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// A refused operation comes back from the metadata with its answer, and takes no
// part in the revisions of what the message committed.
func TestRefused(t *testing.T) {
	for name, want := range map[string]*errcode.Error{
		"nothing to do": nil,
		"conflict":      errcode.ConflictAt(334, "x"),
		"none stands":   errcode.ConflictAt(0, "x"),
		"too large":     errcode.OverLimit(errcode.TooLarge, 10, 20, "x"),
		"quota":         errcode.OverLimit(errcode.QuotaExceeded, 30, 40, "x"),
		"not found":     errcode.New(errcode.NotFound, "x"),
		"fault":         errcode.New(errcode.Internal, "x"),
		"other":         errcode.New(errcode.Cancelled, "x"),
	} {
		r := &Record{Path: "f", Deleted: true, Ops: []Op{
			{Key: KeyOf("a"), Kind: KindAppend, At: 1},
			Refused(KeyOf("r"), KindAppend, 2, want),
			{Key: KeyOf("b"), Kind: KindAppend, At: 3},
		}}
		data, err := r.Encode("b")
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(data, 9, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if a, b := got.Ops[0], got.Ops[2]; a.Revision != 8 || b.Revision != 9 {
			t.Errorf("%s: beside it stand the revisions %d and %d", name, a.Revision, b.Revision)
		}
		op, ok := got.Find(KeyOf("r"))
		if !ok || op != r.Ops[1] || op.Asked() != KindAppend {
			t.Fatalf("%s: %+v", name, op)
		}
		err = op.Refusal("f")
		if want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		code := want.Code
		if code == errcode.Cancelled {
			code = errcode.Internal
		}
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != code || !reflect.DeepEqual(e.Details, want.Details) {
			t.Errorf("%s: %+v, want %+v", name, err, want)
		}
	}
	if op := (Op{Kind: KindRefused, Bytes: 99<<8 | KindMove}); !errors.Is(op.Refusal("f"), errcode.Internal) || op.Asked() != KindMove {
		t.Errorf("a code of later days: %v", op.Refusal("f"))
	}
}
