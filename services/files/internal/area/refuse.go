package area

import (
	"context"
	"errors"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

// A client that gets no answer sends its change again, and another replica may
// take it. The first try may still be under way then: in a queue, or at a cluster
// that is electing. What stands may forbid the change now and allow it later, so
// a refusal that is only said could be followed by the change. Therefore a change
// that was tried before is refused for good: the version is committed once more,
// and remembers the operation as refused. Every other try has read what stood
// before, and misses, or reads this, and answers the same.
//
// The same goes for what is answered without a commit since there is nothing to
// do. A change that nobody has sent before is spared all that.

// refusal tells whether a change ended with an answer that says it was not made.
func refusal(err error) bool {
	return err != nil && !errors.Is(err, errAgain) && !errors.Is(err, errUnsure) && !errcode.From(err).Retryable
}

// outcome is what an operation that is remembered was answered with.
func outcome(op record.Op) Outcome {
	if op.Kind == record.KindRefused {
		return Outcome{}
	}
	return Outcome{Bytes: op.Bytes, Size: op.Size, Revision: op.Revision, Deleted: op.Kind == record.KindDelete}
}

// retried tells whether the group is a change that was tried before; such a
// change is alone.
func (w *writer) retried() bool { return len(w.group) == 1 && w.group[0].Retried }

// refuseForGood answers the retried change with err, or with nil that there was
// nothing to do, once nobody can make it any more. errAgain is that something
// else stands than rec.
func (w *writer) refuseForGood(ctx context.Context, rec *record.Record, err error) error {
	p := w.group[0]
	return w.seal(ctx, rec, record.Refused(p.key, p.Kind, w.a.now().Unix(), errcode.From(err)), err)
}

// seal answers the retried change as op does, with err, once rec remembers it.
func (w *writer) seal(ctx context.Context, rec *record.Record, op record.Op, err error) error {
	if err := w.a.seal(ctx, w.b, rec, op); err != nil {
		return err
	}
	w.refuse(ctx, err)
	w.group[0].finish(outcome(op), err)
	w.group = nil
	return nil
}

// seal commits rec, the same version, once more, with an operation that it
// remembers. errAgain is that something else follows rec; any other error leaves
// open what becomes of the operation, and says so by being retryable.
func (a *Area) seal(ctx context.Context, b *bucket, rec *record.Record, op record.Op) error {
	err := a.trySeal(ctx, b, rec, op)
	if refusal(err) {
		err = errcode.New(errcode.Unavailable, "that the change is refused cannot be stored: %v", err)
	}
	return err
}

func (a *Area) trySeal(ctx context.Context, b *bucket, rec *record.Record, op record.Op) error {
	next := *rec
	next.Same = rec.Current()
	switch {
	case rec.Exists():
		// An append under way could not be finished any more. It may be this one.
		if err := a.finishBefore(ctx, b, rec); err != nil {
			return err
		}
	default:
		next = record.Record{Path: rec.Path, ID: rec.ID, Deleted: true}
		if next.ID == "" {
			next.ID = newID()
		}
		if rec.Revision == 0 {
			if err := a.ensure(ctx, b); err != nil {
				return err
			}
		}
	}
	if err := a.remember(ctx, b, rec, &next, []record.Op{op}); err != nil {
		return err
	}
	if err := a.follow(ctx, b, rec, &next); err != nil {
		return err
	}
	a.known.missed(laneKey{b.tenant, rec.Path}, a.now())
	return nil
}

// finishBefore is finishTail for a file that does not grow next: nil when there is
// nothing to finish.
func (a *Area) finishBefore(ctx context.Context, b *bucket, rec *record.Record) error {
	if !rec.Growable() {
		return nil
	}
	last, err := b.reader.Last(ctx, b.chunk(rec.ID))
	switch {
	case errors.Is(err, stream.ErrNone), err == nil && last.Seq <= rec.Tail:
		return nil
	case err != nil:
		return err
	}
	return a.finishTail(ctx, b, rec)
}
