package toolstate

import (
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// MaxWatched is the most documents that one watch covers.
const MaxWatched = 100_000

const (
	// graceExpiry is how far the clocks of watcher and service may differ for an
	// expiry that was missed to be told as one.
	graceExpiry = 2 * time.Second

	// lateEvents is how late an event may come after its document was found to be
	// gone.
	lateEvents = time.Minute
)

// ledger is what a watch has told of each document. Events and reads come to
// it in any order; it decides which of them say something new, so that no older
// state is told after a newer one.
//
// Events carry the sequence of their message. So does a read that finds the
// document; one that finds nothing does not. After such a read an event that is
// under way may be older, so it is not believed but makes the watch read again.
type ledger struct {
	live map[document]told
	gone map[document]time.Time // by a read; until when its events are not believed
}

type told struct {
	revision uint64
	expires  time.Time
}

func newLedger() *ledger {
	return &ledger{live: map[document]told{}, gone: map[document]time.Time{}}
}

// verdict is what to do with an event.
type verdict int

const (
	drop verdict = iota // it says nothing new
	tell
	read // only a read tells what stands now
)

// event takes note of an event. gap reports that one before it was missed, and
// perhaps others' too.
func (l *ledger) event(e event, now time.Time) (v verdict, gap bool, err error) {
	ref := document{e.Namespace, e.ChatID}
	if until, ok := l.gone[ref]; ok && now.Before(until) {
		if e.Kind == Written {
			return read, false, nil
		}
		return drop, false, nil // as it was told
	}
	delete(l.gone, ref)
	was, live := l.live[ref]
	if live && e.sequence <= was.revision {
		return drop, false, nil
	}
	gap = live && e.before != was.revision
	switch {
	case e.Kind == Written:
		err = l.note(ref, e.Revision, e.ExpiresAt)
	case !live: // it was gone before the watch began, or came and went unseen
		return drop, false, nil
	default:
		delete(l.live, ref)
	}
	return tell, gap, err
}

func (l *ledger) note(ref document, revision uint64, expiresAt string) error {
	if _, known := l.live[ref]; !known && len(l.live) == MaxWatched {
		return errcode.OverLimit(errcode.TooLarge, MaxWatched, MaxWatched+1,
			"the watch would cover more than %d documents: watch a namespace or a chat", MaxWatched)
	}
	l.live[ref] = told{revision, instant(expiresAt)}
	return nil
}

// baseline takes a listing for what its reader knows already.
func (l *ledger) baseline(entries []message.ToolStateEntry) error {
	for _, e := range entries {
		if err := l.note(document{e.Namespace, e.ChatID}, e.Revision, e.ExpiresAt); err != nil {
			return err
		}
	}
	return nil
}

// doubts are the documents of which a listing says something else than was
// told. Listings may be a little behind, so only reads decide.
func (l *ledger) doubts(entries []message.ToolStateEntry) []document {
	var refs []document
	listed := make(map[document]struct{}, len(entries))
	for _, e := range entries {
		ref := document{e.Namespace, e.ChatID}
		listed[ref] = struct{}{}
		if was, ok := l.live[ref]; !ok || was.revision != e.Revision {
			refs = append(refs, ref)
		}
	}
	for ref := range l.live {
		if _, ok := listed[ref]; !ok {
			refs = append(refs, ref)
		}
	}
	return refs
}

// read takes note of a document as it stands; the kind of change is "" when
// that was told.
func (l *ledger) read(ref document, d message.ToolStateData, now time.Time) (ChangeKind, error) {
	was, live := l.live[ref]
	switch {
	case d.Found:
		delete(l.gone, ref)
		if live && was.revision == d.Revision {
			return "", nil
		}
		return Written, l.note(ref, d.Revision, d.ExpiresAt)
	case !live:
		return "", nil
	}
	delete(l.live, ref)
	l.gone[ref] = now.Add(lateEvents)
	if now.Before(was.expires.Add(-graceExpiry)) {
		return Cleared, nil
	}
	return Expired, nil
}

// forget drops what only late events would need.
func (l *ledger) forget(now time.Time) {
	for ref, until := range l.gone {
		if !now.Before(until) {
			delete(l.gone, ref)
		}
	}
}
