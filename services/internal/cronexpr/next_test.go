package cronexpr

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// Clocks go forward at 02:00 and back at 03:00 (Berlin) or 02:00 (New York).
func TestClockChanges(t *testing.T) {
	for _, c := range []struct{ zone, expr, after, want string }{
		// Berlin skips 02:00–03:00 on 2026-03-29 and repeats it on 2026-10-25.
		{"Europe/Berlin", "30 2 * * *", "2026-03-28T00:00:00Z", "03-28T02:30+01 03-29T03:00+02 03-30T02:30+02"},
		{"Europe/Berlin", "0 2 * * *", "2026-03-28T12:00:00Z", "03-29T03:00+02 03-30T02:00+02"},
		{"Europe/Berlin", "0 3 * * *", "2026-03-28T12:00:00Z", "03-29T03:00+02 03-30T03:00+02"},
		{"Europe/Berlin", "0 2,3 * * *", "2026-03-28T12:00:00Z", "03-29T03:00+02 03-30T02:00+02 03-30T03:00+02"},
		{"Europe/Berlin", "15,45 2 * * *", "2026-03-28T12:00:00Z", "03-29T03:00+02 03-30T02:15+02"},
		{"Europe/Berlin", "0 30 2 * * *", "2026-03-28T12:00:00Z", "03-29T03:00+02 03-30T02:30+02"},
		{"Europe/Berlin", "*/30 * * * *", "2026-03-29T00:20:00Z", "03-29T01:30+01 03-29T03:00+02 03-29T03:30+02"},
		{"Europe/Berlin", "*/20 2 * * *", "2026-03-28T02:00:00Z", "03-30T02:00+02 03-30T02:20+02"},
		{"Europe/Berlin", "0 * * * *", "2026-03-29T00:00:00Z", "03-29T03:00+02 03-29T04:00+02"},
		{"Europe/Berlin", "@hourly", "2026-03-29T00:00:00Z", "03-29T03:00+02 03-29T04:00+02"},
		{"Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", "10-25T02:30+02 10-26T02:30+01"},
		{"Europe/Berlin", "30 2 * * *", "2026-10-25T00:59:00Z", "10-26T02:30+01"}, // between the two
		{"Europe/Berlin", "0 3 * * *", "2026-10-24T12:00:00Z", "10-25T03:00+01 10-26T03:00+01"},
		{"Europe/Berlin", "0 2 * * *", "2026-10-24T12:00:00Z", "10-25T02:00+02 10-26T02:00+01"},
		{"Europe/Berlin", "30 * * * *", "2026-10-24T23:35:00Z", "10-25T02:30+02 10-25T02:30+01 10-25T03:30+01"},
		{"Europe/Berlin", "*/30 2 * * *", "2026-10-24T12:00:00Z", "10-25T02:00+02 10-25T02:30+02 10-25T02:00+01 10-25T02:30+01 10-26T02:00+01"},
		{"Europe/Berlin", "@daily", "2026-10-24T12:00:00Z", "10-25T00:00+02 10-26T00:00+01"},
		{"Europe/Berlin", "@every 30m", "2026-10-25T00:29:59Z", "10-25T02:30+02 10-25T02:00+01 10-25T02:30+01"},
		// New York skips 02:00–03:00 on 2026-03-08 and repeats 01:00–02:00 on 2026-11-01.
		{"America/New_York", "30 2 * * *", "2026-03-07T00:00:00Z", "03-07T02:30-05 03-08T03:00-04 03-09T02:30-04"},
		{"America/New_York", "*/30 * * * *", "2026-03-08T06:20:00Z", "03-08T01:30-05 03-08T03:00-04 03-08T03:30-04"},
		{"America/New_York", "30 1 * * *", "2026-10-31T12:00:00Z", "11-01T01:30-04 11-02T01:30-05"},
		{"America/New_York", "30 1 * * *", "2026-11-01T05:31:00Z", "11-02T01:30-05"},
		{"America/New_York", "*/30 * * * *", "2026-11-01T05:20:00Z", "11-01T01:30-04 11-01T01:00-05 11-01T01:30-05 11-01T02:00-05"},
		{"America/New_York", "0 1 * * *", "2026-10-31T12:00:00Z", "11-01T01:00-04 11-02T01:00-05"},
		{"America/New_York", "0 2 * * *", "2026-10-31T12:00:00Z", "11-01T02:00-05 11-02T02:00-05"},
		// A gap at midnight, a change of half an hour, a day that never was.
		{"Africa/Cairo", "0 0 * * *", "2026-04-23T12:00:00Z", "04-24T01:00+03 04-25T00:00+03"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", "10-04T02:30+11 10-05T02:15+11"},
		{"Pacific/Apia", "0 9 * * *", "2011-12-29T12:00:00Z", "12-29T09:00-10 12-31T00:00+14 12-31T09:00+14"},
		{"UTC", "30 2 * * *", "2026-03-28T12:00:00Z", "03-29T02:30+00 03-30T02:30+00"},
	} {
		s, err := Parse(c.expr)
		if err != nil {
			t.Errorf("%q: %v", c.expr, err)
			continue
		}
		at, err := time.Parse(time.RFC3339, c.after)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range strings.Fields(c.want) {
			at = s.NextIn(zone(t, c.zone), at)
			got = append(got, at.Format("01-02T15:04-07"))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s %q after %s:\n got  %s\n want %s", c.zone, c.expr, c.after, g, c.want)
		}
	}
}

var zones = []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Sao_Paulo", "Asia/Kathmandu", "UTC"}

// The last day of a leap year far ahead, where the library's bounds are wrong.
func TestNextInEndsOnALeapYearsLastDay(t *testing.T) {
	for _, name := range zones {
		loc := zone(t, name)
		for _, expr := range []string{"*/7 * * * *", "30 3 * * *"} {
			s, err := Parse(expr)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Date(2040, time.December, 30, 12, 0, 0, 0, time.UTC)
			for end := at.AddDate(0, 0, 3); at.Before(end); {
				next := s.NextIn(loc, at)
				if !next.After(at) || next.Sub(at) > 25*time.Hour {
					t.Fatalf("%s %q after %s: %s", name, expr, at.In(loc), next)
				}
				at = next
			}
		}
	}
}

// What NextIn yields is what trying every second would find.
func TestNextInMisses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loc, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		field := func(label string, most int) string {
			switch rapid.IntRange(0, 3).Draw(t, label+" kind") {
			case 0:
				return "*"
			case 1:
				return fmt.Sprintf("*/%d", rapid.IntRange(1, most).Draw(t, label+" step"))
			case 2:
				return fmt.Sprintf("%d,%d", rapid.IntRange(0, most).Draw(t, label), rapid.IntRange(0, most).Draw(t, label+" 2"))
			}
			return fmt.Sprint(rapid.IntRange(0, most).Draw(t, label))
		}
		s, err := Parse(field("minute", 59) + " " + field("hour", 4) + " * * *")
		if err != nil {
			t.Fatal(err)
		}
		// Somewhere around a change, if the zone has one near.
		from := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "from"), 0).In(loc)
		if _, end := from.ZoneBounds(); !end.IsZero() && end.Sub(from) < 400*24*time.Hour {
			from = end.Add(-time.Duration(rapid.IntRange(-7200, 14400).Draw(t, "before")) * time.Second)
		}
		from = from.Truncate(time.Minute)
		want := brute(s, loc, from, from.Add(6*time.Hour))
		at := from
		for _, w := range want {
			if at = s.NextIn(loc, at); !at.Equal(w) {
				t.Fatalf("%s %q from %s: got %s, want %s", loc, s, from.In(loc), at, w.In(loc))
			}
		}
		if at = s.NextIn(loc, at); !at.After(from.Add(6 * time.Hour)) {
			t.Fatalf("%s %q from %s: %s too many", loc, s, from.In(loc), at)
		}
	})
}

// brute tries every minute in (from, to]; all zones' changes since 1970 that are
// drawn lie on one.
func brute(s Schedule, loc *time.Location, from, to time.Time) []time.Time {
	matches := func(w time.Time) bool { return s.wall.Next(w.Add(-time.Second)).Equal(w) }
	var out []time.Time
	for at := from.Add(time.Minute); !at.After(to); at = at.Add(time.Minute) {
		now, before := reading(at.In(loc)), reading(at.Add(-time.Minute).In(loc))
		hit := matches(now)
		if s.fixed {
			// Not when the clock showed this already.
			for back := time.Minute; hit && back <= 3*time.Hour; back += time.Minute {
				hit = !reading(at.Add(-back).In(loc)).Equal(now)
			}
			for w := before.Add(time.Minute); w.Before(now); w = w.Add(time.Minute) {
				hit = hit || matches(w) // in a gap
			}
		}
		if hit {
			out = append(out, at)
		}
	}
	return out
}

func FuzzNextIn(f *testing.F) {
	f.Add("30 2 * * *", uint8(0), int64(1774746000))
	f.Add("*/7 1-3 * * *", uint8(1), int64(1793500000))
	f.Add("@every 90s", uint8(2), int64(-5))
	f.Fuzz(func(t *testing.T, expr string, z uint8, unix int64) {
		s, err := Parse(expr)
		if err != nil || unix < -1e9 || unix > 1e10 {
			return
		}
		loc := zone(t, zones[int(z)%len(zones)])
		at := time.Unix(unix, 0)
		for range 5 {
			next := s.NextIn(loc, at)
			if next.IsZero() {
				return // beyond the years that are searched
			}
			if !next.After(at) || next.Nanosecond() != 0 {
				t.Fatalf("%q in %s after %s: %s", expr, loc, at, next)
			}
			if again := s.NextIn(loc, next.Add(-time.Nanosecond)); !again.Equal(next) {
				t.Fatalf("%q in %s: %s, but %s just before it", expr, loc, next, again)
			}
			at = next
		}
	})
}
