package arguments

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Schemas that are checked plainly.
var plainSchemas = []string{
	order,
	`{"type":"object","properties":{},"additionalProperties":false}`,
	`{"type":"object"}`,
	`{"type":"object","required":["n"],"properties":{"n":{"type":["integer","null"],"minimum":-2,"maximum":1e3},"x":{"type":"number","minimum":0.5},
		"s":{"type":"string","minLength":2,"maxLength":3,"title":"t","description":"d"},"b":{"type":"boolean"},
		"l":{"type":"array","minItems":1,"maxItems":2,"items":{"type":["string","number"]}},"any":true,"o":{}}}`,
}

// Schemas that take the full validator.
var fullSchemas = []string{
	`{"type":"object","properties":{"s":{"type":"string","pattern":"^a"}}}`,
	`{"type":"object","properties":{"s":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`,
	`{"type":"object","properties":{"s":{"enum":[1,"a"]}}}`,
	`{"type":"object","properties":{"s":false}}`,
	`{"type":"object","required":["other"]}`,
	`{"type":"object","additionalProperties":{"type":"string"}}`,
	`{"type":"object","properties":{"s":{"anyOf":[{"type":"string"},{"type":"number"}]}}}`,
}

var someArguments = []string{
	`{}`, ``, `null`, ` {"code":"x"} `, `{"code":"x","mode":"fast"}`, `{"code":"x","mode":"medium"}`, `{"code":"x","mode":"f\u0061st"}`, `{"code":""}`,
	`{"code":"x","mode":"slow","lines":[{"sku":"a","count":2},{"sku":"b","count":2.0}]}`, `{"code":"x","code":1}`, `{"code":"x","mode":"fast","other":1}`,
	`{"n":1}`, `{"n":null,"x":0.5,"s":"äö","b":true,"l":["a",1.5],"any":[{}],"o":{"deep":[[]]}}`, `{"n":-3}`, `{"n":1e2}`, `{"n":1.0}`, `{"n":1,"s":"a"}`, `{"n":1,"s":"😀😀😀😀"}`,
	`{"n":1,"l":[]}`, `{"n":1,"l":[1,2,3]}`, `{"n":1,"x":0.4999}`, `{"n":99999999999999999999}`, `[]`, `"x"`, `{"n":1} {}`, `{"n":1,}`, `{"n":01}`,
	`{"n":1,"any":"\ud800"}`, "{\"n\":1,\"any\":\"\xff\"}", `{"n":1,"N":2}`, `{"n":true}`, `{"b":"true","n":1}`,
}

func TestPlainSchemas(t *testing.T) {
	for _, s := range plainSchemas {
		if compile(t, s).plain == nil {
			t.Errorf("%s takes the full validator", s)
		}
	}
	for _, s := range fullSchemas {
		if compile(t, s).plain != nil {
			t.Errorf("%s is checked plainly", s)
		}
	}
	s := compile(t, order)
	for args, fits := range map[string]bool{
		`{"code":"x","mode":"fast"}`:                                 true,
		`{"code":"x","mode":"slow","lines":[{"sku":"a","count":1}]}`: true,
		`{"code":"x"}`: false, // a default is filled in
		`{"code":"x","mode":"fast","lines":[{"sku":"a"}]}`: false,
	} {
		if got := s.plain.fits([]byte(args)); got != fits {
			t.Errorf("%s fits: %v", args, got)
		}
	}
}

// What fits plainly, the full validator takes as it is.
func checkFit(t *testing.T, schema string, args []byte) {
	t.Helper()
	s, err := Compile(json.RawMessage(schema))
	if err != nil || s.plain == nil || !s.plain.fits(args) {
		return
	}
	if got, err := s.check(args); err != nil || !bytes.Equal(got, args) {
		t.Errorf("%s: %q fits plainly, but: %q, %v", schema, args, got, err)
	}
}

func TestPlainAgreesWithTheFullValidator(t *testing.T) {
	for _, schema := range plainSchemas {
		for _, args := range someArguments {
			checkFit(t, schema, []byte(args))
		}
	}
}

func FuzzPlain(f *testing.F) {
	for _, schema := range append(plainSchemas, fullSchemas...) {
		for _, args := range someArguments {
			f.Add(schema, []byte(args))
		}
	}
	f.Fuzz(func(t *testing.T, schema string, args []byte) {
		if strings.Count(schema, "{") < 20 { // compiling takes long otherwise
			checkFit(t, schema, args)
		}
	})
}
