package document

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// agree fails when Lookup and Decode with Get do not say the same.
func agree(t rapid.TB, stored []byte, key string) {
	t.Helper()
	value, found, expires, err := Lookup(stored, key)
	d, wantExpires, wantErr := Decode(stored)
	want, wantFound := d.Get(key)
	if (err == nil) != (wantErr == nil) || found != wantFound || !bytes.Equal(value, want) || !expires.Equal(wantExpires) {
		t.Fatalf("%q of %s: %s, %v, %s, %v\nwant %s, %v, %s, %v", key, stored, value, found, expires, err, want, wantFound, wantExpires, wantErr)
	}
}

func TestLookupFindsWhatEncodeWrote(t *testing.T) {
	key := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", `q"`, `back\`, `\"`, "é", "{", "expires_at"}), rapid.StringN(1, 8, 20))
	value := rapid.SampledFrom([]string{
		"1", "-1.50e3", "null", "true", `""`, `"a"`, `"\""`, `"\\"`, `"\\\""`, `"]},"`, `{"a":1}`, `{"b":{"a":"}"}}`, "[]", `["a",[1,{"a":"\\"}],"]"]`,
	})
	rapid.Check(t, func(rt *rapid.T) {
		var d Document
		set := rapid.MapOfN(key, rapid.Map(value, raw), 0, 6).Draw(rt, "data")
		if _, err := d.Update(set, nil, wide); err != nil {
			rt.Fatal(err)
		}
		expires := time.UnixMilli(1_790_000_000_123)
		stored := d.Encode(expires)
		if _, _, _, ok := lookup(stored, quote("a")); !ok && !bytes.ContainsRune(stored, '\\') {
			rt.Fatalf("not recognized: %s", stored)
		}
		agree(rt, stored, key.Draw(rt, "key"))
		for k := range set {
			agree(rt, stored, k)
		}
	})
}

// What somebody else wrote, by hand for instance, is read the slow way.
func TestLookupOfOtherSpellings(t *testing.T) {
	for _, stored := range []string{
		`{"data":{"a":1},"expires_at":"2026-05-05T14:00:00.000Z"}`,
		`{"expires_at":"2026-05-05T14:00:00Z","data":{"a":1}}`,
		`{"expires_at":"2026-05-05T16:00:00+02:00","data":{"a" : [ 1 ] }}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data": {"a":1}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{ "a":1}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"b":2,"a":1},"more":[]}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"b":2,"\u0061":1}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"a": 1}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"a":1 }}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"a":1, "b":2}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":null}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"b":2`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"b":"2`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"b"}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"b":}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{]}}`,
		`{"expires_at":"2026-05-05T14:00:00.000Z","data":{`,
		`{"expires_at":"2026-13-05T14:00:00.000Z","data":{"a":1}}`,
		`{"expires_at":"","data":{"a":1}}`,
		`[]`, ``, `null`,
	} {
		agree(t, []byte(stored), "a")
		agree(t, []byte(stored), "missing")
	}
}

func BenchmarkLookup(b *testing.B) {
	for name, n := range map[string]int{"small": 1, "60k": 2600} {
		var d Document
		list := "[" + strings.TrimSuffix(strings.Repeat(`"00340434161094042557",`, n), ",") + "]"
		if _, err := d.Update(map[string]json.RawMessage{"codes": raw(list), "k": raw("1")}, nil, wide); err != nil {
			b.Fatal(err)
		}
		stored := d.Encode(time.Now())
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(stored)))
			for b.Loop() {
				if _, found, _, err := Lookup(stored, "k"); !found || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
}

// On any JSON text Lookup says what Decode says. (Of what is not JSON it may
// find a value that whoever reads it then refuses.)
func FuzzLookup(f *testing.F) {
	f.Add([]byte(`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"direction":"DHL->DPD","codes":["1"]}}`), "codes")
	f.Add([]byte(`{"expires_at":"2026-05-05T14:00:00.000Z","data":{"\"":"\\","é":{"a":[1,"]"]}}}`), "é")
	f.Fuzz(func(t *testing.T, stored []byte, key string) {
		if _, _, _, err := Lookup(stored, key); err != nil || !json.Valid(stored) {
			return
		}
		d, _, err := Decode(stored)
		if err != nil {
			t.Fatalf("%s: Lookup reads what Decode does not: %v", stored, err)
		}
		if len(bytes.Split(stored, []byte(quote(key)))) == 2 { // of a name that comes twice they may find another one
			got, found, _, _ := Lookup(stored, key)
			want, there := d.Get(key)
			if found != there || !bytes.Equal(got, want) {
				t.Fatalf("%q of %s: %s, %v, want %s, %v", key, stored, got, found, want, there)
			}
		}
	})
}
