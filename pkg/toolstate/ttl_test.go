package toolstate

import (
	"errors"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestParseTTL(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"24h": 24 * time.Hour, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond, "+5m": 5 * time.Minute,
		"+24 hours": 24 * time.Hour, "+1 hour": time.Hour, "24 hours": 24 * time.Hour, "+90 seconds": 90 * time.Second,
		"+2 Min": 2 * time.Minute, "+7 days": 168 * time.Hour, "+1 week": 168 * time.Hour,
		"+1 day 2 hours": 26 * time.Hour, "+1 day +2 hours": 26 * time.Hour,
	} {
		if got, err := ParseTTL(s); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", " ", "24", "+24", "hours", "+24hours", "-1h", "0s", "0 hours", "-1 hour", "+-1 hour", "1.5 hours", "+1 month",
		"+1 hour 2", "+99999999999 weeks", "4294967295 weeks 4294967295 weeks", "1e3 hours", "next friday", "9999999999h", "+1 ss",
	} {
		got, err := ParseTTL(s)
		if e := errcode.From(err); !errors.Is(err, errcode.InvalidRequest) || e.Details.Fields[0].Field != "ttl" {
			t.Errorf("%q: %s, %v, want invalid_request for ttl", s, got, err)
		}
	}
}

func FuzzParseTTL(f *testing.F) {
	for _, s := range []string{"24h", "+24 hours", "+1 day 2 hours", "1e9 weeks", "-5 min"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseTTL(s)
		if err != nil {
			return
		}
		if d <= 0 {
			t.Fatalf("%q is %s", s, d)
		}
		if again, err := ParseTTL(d.String()); err != nil || again != d {
			t.Fatalf("%q is %s, which is %s, %v", s, d, again, err)
		}
	})
}
