package arguments

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const order = `{"type":"object","additionalProperties":false,"required":["code"],"properties":{
	"code":{"type":"string","minLength":1},
	"mode":{"type":"string","enum":["fast","slow"],"default":"fast"},
	"lines":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["sku"],
		"properties":{"sku":{"type":"string"},"count":{"type":"integer","default":1}}}},
	"address":{"type":"object","properties":{"zip":{"type":"string"}}}}}`

func compile(t testing.TB, s string) *Schema {
	t.Helper()
	c, err := Compile(json.RawMessage(s))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFaultsNameEveryField(t *testing.T) {
	s := compile(t, order)
	for _, c := range []struct {
		args string
		want []string // field: part of the message
	}{
		{`{}`, []string{"code: is required"}},
		{``, []string{"code: is required"}},
		{`null`, []string{"code: is required"}},
		{`{"code":5}`, []string{"code: must be string, not number"}},
		{`{"code":"x","mod":"fast"}`, []string{`mod: unknown field; did you mean "mode"?`}},
		{`{"code":"x","zzzzzzz":1}`, []string{`zzzzzzz: unknown field; known are address, code, lines, mode`}},
		{`{"Code":"x"}`, []string{"code: is required", `Code: unknown field; did you mean "code"?`}},
		{`{"code":"x","mode":"medium"}`, []string{`mode: must be one of "fast", "slow", not "medium"`}},
		{`{"code":"","lines":[{"sku":"a"},{"sku":1,"cuont":2},{}]}`, []string{
			"code: minLength", "lines[1].sku: must be string", `lines[1].cuont: unknown field; did you mean "count"?`, "lines[2].sku: is required"}},
		{`{"code":"x","address":{"zip":1}}`, []string{"address.zip: must be string"}},
		{`[1]`, []string{"arguments: must be an object, not an array"}},
		{`"x"`, []string{"arguments: must be an object, not a string"}},
		{`{"code":`, []string{"arguments: not valid JSON"}},
		{`{"code":"x"} {}`, []string{"arguments: not valid JSON"}},
	} {
		_, err := s.Check(json.RawMessage(c.args))
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.InvalidArguments {
			t.Errorf("%s: got %v", c.args, err)
			continue
		}
		if len(e.Details.Fields) != len(c.want) {
			t.Errorf("%s: got %d faults, want %d: %v", c.args, len(e.Details.Fields), len(c.want), err)
		}
		for _, w := range c.want {
			found := false
			for _, f := range e.Details.Fields {
				found = found || strings.HasPrefix(f.Field+": "+f.Message, w)
			}
			if !found {
				t.Errorf("%s: no fault %q in %v", c.args, w, err)
			}
		}
	}
}

func TestDefaultsAreFilledInEverywhere(t *testing.T) {
	s := compile(t, order)
	for range 2 { // the second time proves that the schema's own values are untouched
		got, err := s.Check(json.RawMessage(`{"code":"x","lines":[{"sku":"a"},{"sku":"b","count":7}]}`))
		if err != nil {
			t.Fatal(err)
		}
		want := `{"code":"x","lines":[{"count":1,"sku":"a"},{"count":7,"sku":"b"}],"mode":"fast"}`
		if string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	// Without anything to fill in the bytes are passed on untouched, numbers exact.
	in := `{ "code":"x", "mode":"slow" }`
	if got, err := s.Check(json.RawMessage(in)); err != nil || string(got) != in {
		t.Errorf("got %s, %v", got, err)
	}
	big := compile(t, `{"type":"object","properties":{"n":{"type":"integer"},"d":{"type":"string","default":"x"}}}`)
	if got, err := big.Check(json.RawMessage(`{"n":12345678901234567890}`)); err != nil || !strings.Contains(string(got), "12345678901234567890") {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, bad := range []string{``, `x`, `[]`, `{"type":"nonsense"}`, `{"properties":5}`,
		`{"$ref":"file:///etc/passwd"}`, `{"$ref":"https://example.com/s.json"}`} {
		if _, err := Compile(json.RawMessage(bad)); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: got %v", bad, err)
		}
	}
	compile(t, `{"$defs":{"a":{"type":"string"}},"type":"object","properties":{"x":{"$ref":"#/$defs/a"}}}`)
}

func FuzzCheck(f *testing.F) {
	s := compile(f, order)
	for _, a := range []string{`{}`, `{"code":"x"}`, `{"code":"x","lines":[{"sku":"a"}]}`, `[]`, `nul`} {
		f.Add([]byte(a))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := s.Check(b)
		if err != nil {
			if !errors.Is(err, errcode.InvalidArguments) {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		again, err := s.Check(got)
		if err != nil || string(again) != string(got) {
			t.Fatalf("%q became %q, which becomes %q, %v", b, got, again, err)
		}
	})
}
