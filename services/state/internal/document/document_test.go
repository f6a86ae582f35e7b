package document

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

var wide = Limits{Bytes: 1 << 20, Keys: 1 << 20}

func raw(s string) json.RawMessage { return json.RawMessage(s) }

func TestAppendUniqueComparesValues(t *testing.T) {
	var d Document
	if _, err := d.Update(map[string]json.RawMessage{"l": raw(`[ 1, "a\u0062", {"x":1,"y":[ ]}, null ]`)}, nil, wide); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		value string
		want  int
	}{
		{`1.0`, 4}, {`10e-1`, 4}, {`"ab"`, 4}, {`{"y":[],"x":1}`, 4}, {`null`, 4},
		{`"1"`, 5}, {`"1"`, 5}, {`[1]`, 6}, {`9007199254740993`, 7}, {`9007199254740992`, 8}, {`{"x":1}`, 9},
	} {
		if n, err := d.Append("l", []json.RawMessage{raw(c.value)}, true, wide); err != nil || n != c.want {
			t.Errorf("append %s: length %d, %v, want %d", c.value, n, err, c.want)
		}
	}
	if n, err := d.Append("l", []json.RawMessage{raw(`true`), raw(`true`)}, true, wide); err != nil || n != 10 {
		t.Errorf("the same twice in one append: %d, %v", n, err)
	}
	if n, err := d.Append("l", []json.RawMessage{raw(`1`)}, false, wide); err != nil || n != 11 {
		t.Errorf("not unique: %d, %v", n, err)
	}
	if n, err := d.Append("l", []json.RawMessage{raw(`1`)}, true, wide); err != nil || n != 11 {
		t.Errorf("unique after not unique: %d, %v", n, err)
	}
}

// A request may bring a hundred thousand values, most of which never fit: they
// must not keep a processor busy for as long as comparing each with each takes.
func TestAppendUniqueOfManyValues(t *testing.T) {
	const few, times = 4_000, 8
	for name, c := range map[string]struct {
		bytes int64 // per value
		want  error
	}{"all fit": {16, nil}, "too many": {4, errcode.TooLarge}} {
		best := func(n int) time.Duration {
			values := make([]json.RawMessage, n)
			for i := range values {
				values[i] = raw(strconv.Itoa(100_000 + i))
			}
			least := time.Duration(math.MaxInt64)
			for range 3 {
				var d Document
				start := time.Now()
				_, err := d.Append("l", values, true, Limits{Bytes: c.bytes * int64(n), Keys: 1})
				least = min(least, time.Since(start))
				if !errors.Is(err, c.want) {
					t.Fatalf("%s: %v, want %v", name, err, c.want)
				}
			}
			return least
		}
		// Comparing each with each would take 64 times as long.
		if one, many := best(few), best(times*few); many > 4*times*one {
			t.Errorf("%s: %d values take %v, %d take %v", name, few, one, times*few, many)
		}
	}
}

// Whatever is done: the stored form has the size that the limit was checked
// against, comes back as it was, and a refused operation changes nothing.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var d Document
		lim := Limits{Bytes: 200, Keys: 4}
		key := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", `q"\`}), rapid.StringN(1, 8, 20))
		value := rapid.SampledFrom([]string{"1", `"text"`, "[1, 2]", `{"x" : [ ]}`, "null", `"` + strings.Repeat("y", 60) + `"`})
		expires := time.UnixMilli(1_790_000_000_123)
		step := func(what string, f func() error) {
			before := string(d.Encode(expires))
			err := f()
			after := string(d.Encode(expires))
			if err != nil && after != before {
				rt.Fatalf("%s failed (%v) and changed\n%s\nto\n%s", what, err, before, after)
			}
			if err == nil && int64(len(after)) > lim.Bytes {
				rt.Fatalf("%s: %d bytes", what, len(after))
			}
			if err != nil && !errors.Is(err, errcode.TooLarge) && !errors.Is(err, errcode.InvalidRequest) {
				rt.Fatalf("%s: %v", what, err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"update": func(rt *rapid.T) {
				k, v, del := key.Draw(rt, "key"), value.Draw(rt, "value"), key.Draw(rt, "del")
				step("update", func() error {
					_, err := d.Update(map[string]json.RawMessage{k: raw(v)}, []string{del, del}, lim)
					return err
				})
			},
			"append": func(rt *rapid.T) {
				k, v, unique := key.Draw(rt, "key"), value.Draw(rt, "value"), rapid.Bool().Draw(rt, "unique")
				step("append", func() error {
					_, err := d.Append(k, []json.RawMessage{raw(v), raw("7")}, unique, lim)
					return err
				})
			},
			"increment": func(rt *rapid.T) {
				k := key.Draw(rt, "key")
				step("increment", func() error {
					_, err := d.Increment(k, "0.25", lim)
					return err
				})
			},
			"": func(rt *rapid.T) {
				stored := d.Encode(expires)
				back, at, err := Decode(stored)
				if err != nil || !at.Equal(expires) || string(back.Encode(at)) != string(stored) {
					rt.Fatalf("stored form %s comes back as %s, %v", stored, back.Encode(at), err)
				}
				if back.size != d.size || len(stored) != envelope+d.size-min(d.Len(), 1) {
					rt.Fatalf("%d bytes stored, %d counted (%d after reading)", len(stored), d.size, back.size)
				}
				var m message.ToolStateDocument
				if err := json.Unmarshal(stored, &m); err != nil || len(m.Data) != d.Len() {
					rt.Fatal(err)
				}
			},
		})
	})
}

// A lowered limit must not lock a document: shrinking it is always allowed.
func TestOverLimitMayShrink(t *testing.T) {
	var d Document
	if _, err := d.Update(map[string]json.RawMessage{"a": raw(`"xxxxxxxx"`), "b": raw("1"), "c": raw("2")}, nil, wide); err != nil {
		t.Fatal(err)
	}
	if n, err := d.Update(nil, []string{"b"}, Limits{Bytes: 10, Keys: 1}); err != nil || n != 1 {
		t.Errorf("delete in a document over its limit: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"expires_at":"2026-05-05T16:00:00+02:00","data":{"direction":"DHL->DPD","codes":["1"]}}`))
	f.Add([]byte(`{"expires_at":"2026-05-05T16:00:00Z","data":{"\u0000\"":1, "é":null}}`))
	f.Fuzz(func(t *testing.T, stored []byte) {
		d, at, err := Decode(stored)
		if err != nil {
			return
		}
		if y := at.UTC().Year(); y < 0 || y > 9999 {
			return // RFC 3339 has no such year
		}
		again, at2, err := Decode(d.Encode(at))
		if err != nil || again.Len() != d.Len() || !at2.Equal(at.Truncate(time.Millisecond)) {
			t.Fatalf("%s comes back as %s: %v", stored, d.Encode(at), err)
		}
	})
}
