package entry

import "time"

// countLimit bounds how far Between counts.
const countLimit = 10_000

// After is the first slot after t; the zero time when there is none.
func (e Entry) After(t time.Time) time.Time { return e.Cron.NextIn(e.Location, t) }

// Latest is the last slot that was due at now, if one came after t. Its cost does
// not grow with the number of slots in between.
func (e Entry) Latest(t, now time.Time) (time.Time, bool) {
	first := e.After(t)
	if first.IsZero() || e.Due(first).After(now) {
		return time.Time{}, false
	}
	// Find a time shortly before now after which a slot is due: look back
	// farther each time.
	from := t
	for back := time.Minute; now.Add(-e.Jitter - back).After(t); back *= 2 {
		near := now.Add(-e.Jitter - back)
		if s := e.After(near); !s.IsZero() && !e.Due(s).After(now) {
			from = near
			break
		}
	}
	last := e.After(from)
	for {
		next := e.After(last)
		if next.IsZero() || e.Due(next).After(now) {
			return last, true
		}
		last = next
	}
}

// Span is a number of slots in a row.
type Span struct {
	First, Last time.Time
	Count       int // at most 10,000 are counted
}

// Between is the slots after t and before end.
func (e Entry) Between(t, end time.Time) Span {
	var s Span
	for at := e.After(t); !at.IsZero() && at.Before(end); at = e.After(at) {
		if s.Count == 0 {
			s.First = at
		}
		s.Count, s.Last = s.Count+1, at
		if s.Count == countLimit {
			break
		}
	}
	return s
}
