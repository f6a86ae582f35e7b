package paths

import (
	"errors"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestCheckMove(t *testing.T) {
	if err := CheckMove("a", "b/c"); err != nil {
		t.Error(err)
	}
	for _, c := range [][3]string{{"", "b", "path"}, {"../a", "b", "path"}, {"a", "", "to"}, {"a", "/b", "to"}, {"a", "b/..", "to"}, {"a", "a", "to"}} {
		err := CheckMove(c[0], c[1])
		e := errcode.From(err)
		if !errors.Is(err, errcode.InvalidRequest) || e.Details == nil || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != c[2] {
			t.Errorf("%q to %q: %v, want field %s", c[0], c[1], err, c[2])
		}
	}
}
