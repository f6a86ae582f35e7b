package mirror

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
)

func TestLayout(t *testing.T) {
	for in, want := range map[string]string{
		`{"expires_at":"2026-05-05T16:00:00+02:00","data":{"direction":"DHL->DPD","codes":["00340434757211819883","8806096235386"]}}`: `{
  "expires_at": "2026-05-05T16:00:00+02:00",
  "data": {
    "direction": "DHL->DPD",
    "codes": ["00340434757211819883", "8806096235386"]
  }
}
`,
		`{"b":{},"a":[],"c":[ null ,true, 1.50, -0, 123456789012345678901234567890, "x"]}`: `{
  "b": {},
  "a": [],
  "c": [null, true, 1.50, -0, 123456789012345678901234567890, "x"]
}
`,
		`[{"x":1},[1,2],[[3]],"y",{}]`: `[
  {
    "x": 1
  },
  [1, 2],
  [
    [3]
  ],
  "y",
  {}
]
`,
		`"DHL-\u003eDPD \u00fc \ud83d\ude42 \u0026 \"q\" \\ \/ \n"`: `"DHL->DPD ü 🙂 & \"q\" \\ / \n"` + "\n",
		`{"\u003c":1}`: "{\n  \"<\": 1\n}\n",
	} {
		got, err := layout(json.RawMessage(in))
		if err != nil || string(got) != want {
			t.Errorf("%s became\n%s\nwant\n%s(%v)", in, got, want, err)
		}
	}
	for _, bad := range []string{"", "{", `{"a"}`, "1 2", "[1,]", "nul"} {
		if got, err := layout(json.RawMessage(bad)); err == nil {
			t.Errorf("%q became %s", bad, got)
		}
	}
}

func TestLayoutOfDeepValues(t *testing.T) {
	const depth = 9000
	got, err := layout(json.RawMessage(`{"a":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`))
	if err != nil || len(got) > 3*depth {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Whatever the value: the layout is the same JSON, and laying it out again
// changes nothing.
func FuzzLayout(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":[]}]}`, `[[[[[[[[[[[[[[[[[[{"a":[1,2]}]]]]]]]]]]]]]]]]]]`, `"\u2028"`, `{"a":1,"a":2}`, `1e400`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := layout(raw)
		if err != nil {
			if json.Valid(raw) {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		again, err := layout(got)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("%q became %q, and that %q, %v", raw, got, again, err)
		}
		var x, y any
		for in, v := range map[*any][]byte{&x: raw, &y: got} {
			dec := json.NewDecoder(bytes.NewReader(v))
			dec.UseNumber()
			if err := dec.Decode(in); err != nil {
				t.Fatal(err)
			}
		}
		a, errA := message.Marshal(x)
		b, errB := message.Marshal(y)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Fatalf("%s became %s", a, b)
		}
	})
}
