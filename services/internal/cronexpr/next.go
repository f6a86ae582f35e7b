package cronexpr

import "time"

// farthest is more than any zone differs from UTC.
const farthest = 26 * time.Hour

// NextIn is the first instant after t at which the schedule fires by the wall
// clock of loc; the zero time when there is none. Instants are whole seconds.
//
// Where the clock is changed, Vixie cron's rule holds. An expression with no *
// in its minute and hour fields is fixed: a time that is skipped fires at the
// first instant after the gap, one that comes twice fires the first time. Any
// other expression fires at every instant whose wall clock matches, and so not
// in a gap, and twice where the hour is repeated.
//
// @every counts from the beginning of 1970 (UTC), whatever the clock shows, so
// that all who compute it agree.
func (s Schedule) NextIn(loc *time.Location, t time.Time) time.Time {
	switch {
	case s.every > 0:
		step := int64(s.every / time.Second)
		n := t.Unix() / step
		if t.Unix() < 0 && t.Unix()%step != 0 {
			n--
		}
		return time.Unix((n+1)*step, 0).In(loc)
	case s.wall == nil:
		return time.Time{}
	case s.fixed:
		return s.nextFixed(loc, t)
	}
	return s.nextMatch(loc, t)
}

// nextFixed goes through the matching wall clock readings in order; the instants
// they stand for are in order too, and equal only where a gap joins them.
func (s Schedule) nextFixed(loc *time.Location, t time.Time) time.Time {
	for w := s.wall.Next(reading(t.In(loc))); !w.IsZero(); w = s.wall.Next(w) {
		if at := first(loc, w); at.After(t) {
			return at
		}
	}
	return time.Time{}
}

// nextMatch looks at one stretch between two changes of the clock after the
// other.
func (s Schedule) nextMatch(loc *time.Location, t time.Time) time.Time {
	at := t.In(loc)
	for {
		_, offset := at.Zone()
		w := s.wall.Next(reading(at))
		if w.IsZero() {
			return time.Time{}
		}
		next := instant(w, offset).In(loc)
		_, end := stretch(at)
		if end.IsZero() || next.Before(end) {
			return next
		}
		// The first reading of the next stretch may match.
		at = end.In(loc)
		if r := reading(at); s.wall.Next(r.Add(-time.Second)).Equal(r) {
			return at
		}
	}
}

// first is the first instant at which the clock of loc shows w, or, when it
// skips w, the first instant after the gap.
func first(loc *time.Location, w time.Time) time.Time {
	for at := w.Add(-farthest).In(loc); ; {
		start, end := stretch(at)
		_, offset := at.Zone()
		t := instant(w, offset).In(loc)
		switch {
		case !start.IsZero() && t.Before(start):
			return start
		case end.IsZero() || t.Before(end):
			return t
		}
		at = end
	}
}

// stretch is time.ZoneBounds with an end that is never before at: beyond the
// changes that a zone's file lists, the library takes leap years to have 365
// days and ends a stretch before their last day (UTC), on which no zone changes.
func stretch(at time.Time) (start, end time.Time) {
	start, end = at.ZoneBounds()
	if !end.IsZero() && !end.After(at) {
		end = time.Date(at.UTC().Year()+1, time.January, 1, 0, 0, 0, 0, time.UTC).In(at.Location())
	}
	return start, end
}

// reading is what the clock shows at t, as if it were UTC.
func reading(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant is when a clock that is offset seconds east of UTC shows w.
func instant(w time.Time, offset int) time.Time { return w.Add(-time.Duration(offset) * time.Second) }
