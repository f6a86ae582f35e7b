package area

import (
	"context"
	"errors"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// A move changes the metadata of two paths, one after the other, and copies
// nothing:
//
//  1. the file's own metadata says where it is about to go (record.Move);
//  2. the target's metadata becomes the file's, under compare-and-set, and names
//     the move (record.Origin): the point of commit;
//  3. the file is deleted where it was, with the operation's answer.
//
// A file with a Move is neither written nor read before somebody, anybody, has
// ended the move: to its end, or, when the target has become something else
// meanwhile, so that step 2 is impossible, by taking the Move back. A file with an
// Origin is not written before step 3 is known to be done. So as long as step 3
// is not, the target tells whether step 2 is, chunks never belong to two files,
// and a crash anywhere leaves the file under one name.

// Move is one move of a file. The paths are checked, and differ.
type Move struct {
	Path, To   string
	Overwrite  bool // replace what stands at To
	IfRevision *uint64
	OpID       string // never ""
	Retried    bool   // as in Change
}

// Move moves a file and returns when it is done or refused; Outcome has the size
// and the new revision. When ctx ends first, it may still happen; a retry with its
// OpID finds out.
func (a *Area) Move(ctx context.Context, tenant string, m Move) (out Outcome, err error) {
	b := a.bucket(tenant)
	var moved Outcome
	err = a.inLane(ctx, tenant, m.Path, func(ctx context.Context) error {
		for attempt := 0; ; attempt++ {
			var err error
			if moved, err = a.tryMove(ctx, b, m); !errors.Is(err, errAgain) {
				return err
			}
			if err := yield(ctx, attempt, m.Path); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return Outcome{}, errcode.From(err)
	}
	return moved, nil
}

func (a *Area) tryMove(ctx context.Context, b *bucket, m Move) (Outcome, error) {
	rec, err := a.settled(ctx, b, m.Path)
	if err != nil {
		return Outcome{}, err
	}
	op, known, err := a.find(ctx, b, rec, record.KeyOf(m.OpID))
	switch {
	case err != nil:
		return Outcome{}, err
	case known && op.Asked() != record.KindMove:
		return Outcome{}, errcode.Field("opId", "%q was used for another operation", m.OpID)
	case known:
		return outcome(op), op.Refusal(m.Path)
	}
	out, err := a.moveFrom(ctx, b, m, rec)
	if m.Retried && refusal(err) {
		// Every other try starts with rec, too.
		op := record.Refused(record.KeyOf(m.OpID), record.KindMove, a.now().Unix(), errcode.From(err))
		if err := a.seal(ctx, b, rec, op); err != nil {
			return Outcome{}, err
		}
	}
	return out, err
}

// moveFrom begins and ends the move of the file that rec describes.
func (a *Area) moveFrom(ctx context.Context, b *bucket, m Move, rec *record.Record) (Outcome, error) {
	switch {
	case m.IfRevision != nil && *m.IfRevision != rec.Current():
		return Outcome{}, notAt(rec, *m.IfRevision)
	case !rec.Exists():
		return Outcome{}, errcode.New(errcode.NotFound, "no file %q", m.Path)
	}
	target, err := a.settled(ctx, b, m.To)
	if err != nil {
		return Outcome{}, err
	}
	if target.Exists() && !m.Overwrite {
		return Outcome{}, errcode.ConflictAt(target.Current(), "%q exists already", m.To)
	}
	for _, r := range []*record.Record{rec, target} {
		if err := a.finishOrigin(ctx, b, r); err != nil {
			return Outcome{}, err
		}
	}
	next := *rec
	next.From, next.Same = nil, rec.Current()
	next.Move = &record.Move{
		ID: newID(), To: m.To, Expect: target.Revision,
		Op: record.Op{Key: record.KeyOf(m.OpID), Kind: record.KindMove, At: a.now().Unix(), Size: rec.Size},
	}
	if err := a.repeat(ctx, b, rec, &next); err != nil {
		return Outcome{}, err
	}
	out, err := a.endMove(ctx, b, &next, target)
	if errors.Is(err, errcode.QuotaExceeded) {
		// Somebody may finish it as soon as there is room.
		err = errcode.Wrap(errcode.Unavailable, err, "the tenant's file area has no room to finish the move: %v", err)
	}
	return out, err
}

// repeat commits next, the same version as rec, after it.
func (a *Area) repeat(ctx context.Context, b *bucket, rec, next *record.Record) error {
	if err := a.remember(ctx, b, rec, next, nil); err != nil {
		return err
	}
	return a.follow(ctx, b, rec, next)
}

// follow commits next after rec, and has rec's metadata removed. errAgain is that
// something else follows rec.
func (a *Area) follow(ctx context.Context, b *bucket, rec, next *record.Record) error {
	seq, err := a.store(ctx, b, next, rec.Revision)
	if errors.Is(err, jet.ErrRevision) {
		return errAgain
	}
	if err != nil {
		return err
	}
	next.Revision = seq
	b.usage.wrote(next, 0)
	if rec.Revision > 0 {
		a.jan.supersede(ctx, b, b.meta(rec.Path), seq)
	}
	return nil
}

// settled is current for a file that is not being moved: a move that it finds it
// ends.
func (a *Area) settled(ctx context.Context, b *bucket, path string) (*record.Record, error) {
	return a.settledBy(ctx, b, path, a.current)
}

// settledBy is settled with another way to look.
func (a *Area) settledBy(ctx context.Context, b *bucket, path string, load func(context.Context, *bucket, string) (*record.Record, error)) (*record.Record, error) {
	for attempt := 0; ; attempt++ {
		rec, err := load(ctx, b, path)
		if err != nil || rec.Move == nil {
			return rec, err
		}
		if err := a.settle(ctx, b, rec); err != nil {
			return nil, err
		}
		if attempt > 0 {
			if err := yield(ctx, attempt, path); err != nil {
				return nil, err
			}
		}
	}
}

// settle ends the move that rec is under, if nobody else does. Load rec again.
func (a *Area) settle(ctx context.Context, b *bucket, rec *record.Record) error {
	target, err := a.load(ctx, b, rec.Move.To)
	if err == nil {
		_, err = a.endMove(ctx, b, rec, target)
	}
	if errors.Is(err, errAgain) {
		return nil
	}
	return err
}

// endMove ends the move that rec is under; target is what stands where it goes.
// errAgain is that the move is off, or that somebody else has gone on with it.
func (a *Area) endMove(ctx context.Context, b *bucket, rec, target *record.Record) (Outcome, error) {
	m := rec.Move
	if m.Moved(rec.Path, target) {
		return a.leaveOrigin(ctx, b, rec, target)
	}
	if target.Revision != m.Expect {
		// Nobody can do the next step any more. Nor has anybody: the target would
		// still say so, or else the file would be gone from here.
		next := *rec
		next.Move = nil
		if err := a.repeat(ctx, b, rec, &next); err != nil {
			return Outcome{}, err
		}
		return Outcome{}, errAgain
	}
	next := &record.Record{
		Path: m.To, ID: rec.ID, Size: rec.Size, Chunks: rec.Chunks, Tail: rec.Tail, Digest: rec.Digest, Key: rec.Key, State: rec.State,
		From: &record.Origin{ID: m.ID, Path: rec.Path},
	}
	next.Inherit(a.versions(ctx, b), rec, target)
	if err := a.repeat(ctx, b, target, next); err != nil {
		return Outcome{}, err
	}
	a.jan.dropChunks(ctx, b, next, target, rec)
	out, err := a.leaveOrigin(ctx, b, rec, next)
	if err == nil {
		clean := *next
		clean.From = nil
		a.known.note(laneKey{b.tenant, m.To}, &clean, next.Revision, a.now())
	}
	return out, err
}

// leaveOrigin deletes rec, which stands as target now.
func (a *Area) leaveOrigin(ctx context.Context, b *bucket, rec, target *record.Record) (Outcome, error) {
	op := rec.Move.Op
	op.Revision = target.Current()
	next := &record.Record{Path: rec.Path, ID: rec.ID, Deleted: true}
	if err := a.remember(ctx, b, rec, next, []record.Op{op}); err != nil {
		return Outcome{}, err
	}
	if err := a.follow(ctx, b, rec, next); err != nil {
		return Outcome{}, err
	}
	return Outcome{Size: op.Size, Revision: op.Revision}, nil
}

// finishOrigin makes sure that rec does not stand where it was moved from any
// more, too. Only then may it be written.
func (a *Area) finishOrigin(ctx context.Context, b *bucket, rec *record.Record) error {
	if rec.From == nil {
		return nil
	}
	origin, err := a.load(ctx, b, rec.From.Path)
	if err != nil || origin.Move == nil || !origin.Move.Moved(origin.Path, rec) {
		return err
	}
	// Of this file nothing but its end can follow.
	if _, err := a.leaveOrigin(ctx, b, origin, rec); err != nil && !errors.Is(err, errAgain) {
		return err
	}
	return nil
}
