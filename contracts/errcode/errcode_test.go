package errcode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

func TestMatchByCode(t *testing.T) {
	base := New(NotFound, "agent %q", "x")
	wrapped := fmt.Errorf("apply: %w", base)
	if !errors.Is(wrapped, NotFound) {
		t.Error("a wrapped Error must match its code")
	}
	if errors.Is(wrapped, Conflict) {
		t.Error("an Error must not match another code")
	}
	if !errors.Is(wrapped, New(NotFound, "another text")) {
		t.Error("Errors match by code, not by text")
	}
	cause := errors.New("disk")
	if e := Wrap(Internal, cause, "write"); !errors.Is(e, cause) {
		t.Error("the cause must stay visible")
	}
}

func TestFrom(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Code
	}{
		{nil, ""},
		{context.DeadlineExceeded, Timeout},
		{fmt.Errorf("x: %w", context.Canceled), Cancelled},
		{errors.New("boom"), Internal},
		{fmt.Errorf("x: %w", TooLarge), TooLarge},
		{fmt.Errorf("x: %w", Field("path", "empty")), InvalidRequest},
	} {
		if got := Of(c.err); got != c.want {
			t.Errorf("Of(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}

func TestWireRoundTrip(t *testing.T) {
	for _, code := range All() {
		e := ConflictAt(7, "text of %s", code)
		e.Code = code
		b, err := json.Marshal(Body{Error: e})
		if err != nil {
			t.Fatal(err)
		}
		got := Decode(b, "")
		if got.Code != code || got.Message != e.Message || *got.Details.Revision != 7 {
			t.Errorf("%s: got %+v", code, got)
		}
		if s := code.Status(); s < 400 || s > 599 {
			t.Errorf("%s has status %d", code, s)
		}
	}
	if got := Decode([]byte(`not json`), "503 oops"); got.Code != Internal {
		t.Errorf("a broken body must be internal, got %v", got)
	}
}
