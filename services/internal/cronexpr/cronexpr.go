// Package cronexpr reads the cron expressions of an agent's configuration. The
// registry checks them with it, the scheduler computes times with it, so that
// what is accepted is what runs.
//
// An expression is one of
//
//   - five fields: minute, hour, day of month, month, day of week; or six, with
//     seconds in front. Fields take *, lists, ranges, steps, and the names
//     jan–dec and sun–sat. When both day fields are restricted, a day matches
//     either, as in Vixie cron; 0 and 7 are Sunday.
//   - @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually;
//   - @every and a Go duration of whole seconds, at least one second.
//
// The time zone is no part of it: it has a field of its own. What becomes of
// times that a change of the clock skips or repeats is said at Schedule.NextIn.
package cronexpr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"
)

// maxLength limits an expression, in bytes.
const maxLength = 256

// searchYears is how far Next looks: 29 February can be eight years away.
const searchYears = 9

// Schedule is a parsed expression. The zero value never fires.
type Schedule struct {
	wall  cron.Schedule // of wall clock readings, written as if they were UTC; nil for @every
	every time.Duration
	fixed bool // minute and hour are named: see NextIn
	text  string
}

// Parse reads an expression. The error says what is wrong with it. One that
// can never fire (30 February) is an error.
func Parse(expr string) (Schedule, error) {
	text := Normalize(expr)
	switch {
	case text == "":
		return Schedule{}, errors.New("is empty")
	case len(expr) > maxLength:
		return Schedule{}, fmt.Errorf("is %d bytes long, at most %d are allowed", len(expr), maxLength)
	case strings.Contains(text, "="):
		return Schedule{}, errors.New("must not name a time zone: use the timezone field")
	}
	if d, ok := strings.CutPrefix(text, "@every "); ok {
		every, err := time.ParseDuration(d)
		switch {
		case err != nil:
			return Schedule{}, fmt.Errorf("@every needs a duration such as 90s or 1h30m, not %q", d)
		case every < time.Second:
			return Schedule{}, errors.New("@every needs at least 1s")
		case every%time.Second != 0:
			return Schedule{}, errors.New("@every needs whole seconds")
		}
		return Schedule{every: every, text: text}, nil
	}
	p, err := cron.TryNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow |
		cron.Descriptor | cron.DowOrDom)
	if err != nil {
		return Schedule{}, err
	}
	next, err := p.WithMaxSearchYears(searchYears).Parse(text)
	if err != nil {
		return Schedule{}, fmt.Errorf("is not a cron expression: %w", err)
	}
	for f := range strings.FieldsSeq(text) {
		if slices.Contains(strings.Split(f, ","), "") {
			return Schedule{}, fmt.Errorf("is not a cron expression: %q has an empty part", f)
		}
	}
	if next.Next(time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, errors.New("never fires: no month has such a day")
	}
	return Schedule{wall: next, fixed: fixed(text), text: text}, nil
}

// fixed tells whether an expression names its minutes and hours.
func fixed(text string) bool {
	f := strings.Fields(text)
	switch {
	case len(f) == 1:
		return text != "@hourly"
	case len(f) == 6:
		f = f[1:]
	}
	return !strings.ContainsAny(f[0]+f[1], "*?")
}

// Normalize is the expression in the one spelling that Parse reads: single
// blanks and lower case. Expressions that differ only in that are the same.
func Normalize(expr string) string {
	return strings.ToLower(strings.Join(strings.Fields(expr), " "))
}

// String is the expression, normalized.
func (s Schedule) String() string { return s.text }

// Every is the period of an @every expression, 0 for all others.
func (s Schedule) Every() time.Duration { return s.every }

// Next is NextIn the location of t.
func (s Schedule) Next(t time.Time) time.Time { return s.NextIn(t.Location(), t) }
