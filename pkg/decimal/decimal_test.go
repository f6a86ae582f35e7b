package decimal

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
)

func TestAdd(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"0", "0", "0"}, {"-0", "0", "0"}, {"-0", "-0.0", "0"},
		{"1", "2", "3"}, {"1", "-2", "-1"}, {"-1", "1", "0"},
		{"9007199254740992", "1", "9007199254740993"},
		{"9223372036854775807", "1", "9223372036854775808"},
		{"-9223372036854775808", "-1", "-9223372036854775809"},
		{"0.1", "0.2", "0.3"}, {"1.5", "-0.5", "1"}, {"1e20", "1", "100000000000000000001"},
		{"1E+2", "1e-2", "100.01"}, {"0.000", "0", "0"}, {"-1.05", "1", "-0.05"},
		{strings.Repeat("9", 63), "1", "1" + strings.Repeat("0", 63)},
	} {
		if got, err := Add(c.a, c.b); err != nil || got != c.want {
			t.Errorf("%s + %s = %s, %v, want %s", c.a, c.b, got, err, c.want)
		}
	}
	for _, s := range []string{"", "-", "+1", "01", "1.", ".5", "1e", "1e+-1", "1e5.0", "0x1", "1_000", "NaN", "Infinity", " 1", `"1"`, "-e1", "1e401", "1e99999999999999999999", strings.Repeat("1", 401), strings.Repeat("9", 65), "1e-65"} {
		if got, err := Add(s, "0"); err == nil {
			t.Errorf("%q is taken: %s", s, got)
		}
		if got, err := Add("1", s); err == nil {
			t.Errorf("1 + %q is taken: %s", s, got)
		}
	}
	if got, err := Add(strings.Repeat("9", MaxDigits), "1"); err == nil {
		t.Errorf("a sum of %d digits is taken: %s", MaxDigits+1, got)
	}
}

func FuzzAdd(f *testing.F) {
	f.Add("1", "2")
	f.Add("-1.5e3", "9223372036854775807")
	f.Add("1e-40", "-0.0")
	f.Fuzz(func(t *testing.T, a, b string) {
		sum, err := Add(a, b)
		if err != nil {
			return
		}
		for _, s := range []string{a, b, sum} {
			if !json.Valid([]byte(s)) {
				t.Fatalf("%q + %q = %q: %q is not JSON", a, b, sum, s)
			}
		}
		x, okX := new(big.Rat).SetString(a)
		y, okY := new(big.Rat).SetString(b)
		z, okZ := new(big.Rat).SetString(sum)
		if !okX || !okY || !okZ || z.Cmp(new(big.Rat).Add(x, y)) != 0 {
			t.Fatalf("%q + %q = %q", a, b, sum)
		}
		if again, err := Normalize(sum); err != nil || again != sum {
			t.Fatalf("%q is not normal: %q, %v", sum, again, err)
		}
	})
}
