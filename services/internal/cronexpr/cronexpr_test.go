package cronexpr

import (
	"strings"
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at := func(s string) time.Time {
		v, err := time.ParseInLocation(time.DateTime, s, berlin)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct{ expr, after, want string }{
		{"*/5 * * * *", "2026-03-02 10:01:00", "2026-03-02 10:05:00"},
		{"0 8 * * 1-5", "2026-03-06 08:00:00", "2026-03-09 08:00:00"},
		{"0 8 * * MON-FRI", "2026-03-06 08:00:00", "2026-03-09 08:00:00"},
		{"0 8 * * THU", "2026-03-02 00:00:00", "2026-03-05 08:00:00"},
		{"0 8 1 MAR,apr *", "2026-03-02 00:00:00", "2026-04-01 08:00:00"},
		{"*/10 * * * * *", "2026-03-02 10:00:01", "2026-03-02 10:00:10"},
		{"0 0 13 * 5", "2026-03-01 00:00:00", "2026-03-06 00:00:00"}, // either day field
		{"0 0 * * 7", "2026-03-02 00:00:00", "2026-03-08 00:00:00"},
		{"0 0 29 2 *", "2026-03-02 00:00:00", "2028-02-29 00:00:00"},
		{"@hourly", "2026-03-02 10:01:00", "2026-03-02 11:00:00"},
		{"@daily", "2026-03-02 10:01:00", "2026-03-03 00:00:00"},
		{"@weekly", "2026-03-02 10:01:00", "2026-03-08 00:00:00"},
		{"@monthly", "2026-03-02 10:01:00", "2026-04-01 00:00:00"},
		{"@yearly", "2026-03-02 10:01:00", "2027-01-01 00:00:00"},
		{"@every 90s", "2026-03-02 10:00:00", "2026-03-02 10:01:30"},
		{"  0   8 *\t* * ", "2026-03-02 07:00:00", "2026-03-02 08:00:00"},
	} {
		s, err := Parse(c.expr)
		if err != nil {
			t.Errorf("%q: %v", c.expr, err)
			continue
		}
		if got := s.Next(at(c.after)); !got.Equal(at(c.want)) {
			t.Errorf("%q after %s: got %s, want %s", c.expr, c.after, got, c.want)
		}
	}
	if s, _ := Parse("@every 2m"); s.Every() != 2*time.Minute {
		t.Errorf("Every() = %s", s.Every())
	}
	if !(Schedule{}).Next(time.Now()).IsZero() {
		t.Error("the zero schedule fires")
	}
}

func TestRefused(t *testing.T) {
	for _, expr := range []string{"", "  ", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *",
		"* * * 13 *", "* * * * 8", "*/0 * * * *", "a * * * *", "0 8 * * mun", "@never", "@every", "@every x", "@every 0s",
		"@every -1m", "@every 1500ms", "@every 500ms", "TZ=UTC 0 8 * * *", "CRON_TZ=Europe/Berlin 0 8 * * *",
		"0 0 30 2 *", "0 0 31 4,6,9,11 *", "H * * * *", "0 0 L * *", "1-2-3 * * * *", "-1 * * * *", "1,,2 * * * *", "tz=UTC * * * * *",
		strings.Repeat("1,", 200) + "1 * * * *"} {
		if s, err := Parse(expr); err == nil {
			t.Errorf("%q accepted as %q", expr, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"*/5 * * * *", "0 8 * * 1-5", "@every 1m", "@hourly", "10-5/3 * ? jan-MAR 7", "0 0 29 2 *"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		s, err := Parse(expr)
		if err != nil {
			return
		}
		// What is accepted fires after now, and its normal form is the same.
		from := time.Date(2026, 3, 29, 1, 59, 59, 0, time.UTC)
		n := s.Next(from)
		if !n.After(from) {
			t.Fatalf("%q after %s: %s", expr, from, n)
		}
		again, err := Parse(s.String())
		if err != nil || !again.Next(from).Equal(n) {
			t.Fatalf("%q and its normal form %q differ: %v", expr, s, err)
		}
	})
}
