package jsontext_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/jsontext"
)

var texts = []string{
	`{}`, `[]`, `""`, `0`, `-0`, `-1.5e+3`, `1E5`, `true`, `false`, `null`, `{"a":{"b":[1,"x",{}]},"c":null}`, " {} ", `{ "a" : [ 1 , 2 ] }`,
	`01`, `1.`, `.5`, `-`, `1e`, `+1`, `tru`, `nul`, `{`, `[1,]`, `{"a":1,}`, `{a:1}`, `[1 2]`, `"\x"`, `"\ud83d\ude00"`, `"\ud800"`, `"\u00e4"`, "\"\x01\"", "\"\xff\"", `"`, `""""`,
	strings.Repeat("[", 64) + strings.Repeat("]", 64), strings.Repeat("[", 66) + strings.Repeat("]", 66), `{"a":1}{"b":2}`, `[]]`, "\u00a01",
}

// What is skipped whole is valid, and compact when it says so.
func check(t *testing.T, text []byte) bool {
	t.Helper()
	end, compact, ok := jsontext.Skip(text, 0)
	if !ok || end != len(text) {
		return false
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil || !json.Valid(text) {
		t.Errorf("%q is no JSON: %v", text, err)
	} else if compact != bytes.Equal(b.Bytes(), text) {
		t.Errorf("%q: compact is %v", text, compact)
	}
	var want string
	if s, _, ok := jsontext.String(text, 0); ok {
		if err := json.Unmarshal(text, &want); err != nil || s != want {
			t.Errorf("%q is read as %q, want %q, %v", text, s, want, err)
		}
	}
	return true
}

func TestSkip(t *testing.T) {
	for _, text := range texts {
		valid := json.Valid([]byte(text)) && utf8.ValidString(text) && strings.TrimSpace(text) == text
		plain := valid && !strings.Contains(text, "ud8") && len(text) != 132
		if got := check(t, []byte(text)); got != plain {
			t.Errorf("%q: plain is %v", text, got)
		}
	}
}

func FuzzSkip(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { check(t, text) })
}
