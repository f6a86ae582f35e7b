package faults

import "fmt"

// revision is what is known of a value's revision. The service gives the
// numbers, so the model learns them from the answers.
type revision struct {
	none  bool // there is no value: 0
	known bool // it is n
	// Otherwise it is at least n; of no value, the next one is. Several writes may
	// share a message and so a revision, but not with one that was seen.
	n uint64
}

// floor is what the next write's revision is at least.
func (r revision) floor() uint64 {
	if r.known {
		return r.n + 1
	}
	return r.n
}

// is tells whether the revision may be n, and what is known if it is.
func (r revision) is(n uint64) (revision, bool) {
	switch {
	case r.none:
		return r, n == 0
	case r.known:
		return r, n == r.n
	}
	return revision{known: true, n: n}, n >= r.n && n > 0
}

// written is the revision after a write that was answered with n. The answer is
// the revision or, when others' writes went into the same message after this
// one, the number below it.
func (r revision) written(n uint64) (revision, bool) {
	return revision{n: max(n, r.floor())}, n > 0 && n+1 >= r.floor()
}

// writtenUnseen is the revision after a write that was not answered.
func (r revision) writtenUnseen() revision { return revision{n: r.floor()} }

// gone is the revision when the value is removed.
func (r revision) gone() revision { return revision{none: true, n: r.floor()} }

func (r revision) String() string {
	switch {
	case r.none:
		return fmt.Sprintf("none, the next at least %d", r.n)
	case r.known:
		return fmt.Sprint(r.n)
	}
	return fmt.Sprintf("at least %d", r.n)
}

// Condition is an ifRevision.
type Condition struct {
	Set      bool
	Revision uint64
}

// check returns what is known of r when the condition was met.
func (c Condition) check(r revision) (revision, bool) {
	if !c.Set {
		return r, true
	}
	return r.is(c.Revision)
}

// missed returns what is known of r when the condition was missed and current was
// told.
func (c Condition) missed(r revision, current uint64) (revision, bool) {
	r, ok := r.is(current)
	return r, ok && c.Set && current != c.Revision
}
