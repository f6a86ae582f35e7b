package area

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// newID makes a chunk id: random, and one subject token.
func newID() string { return rand.Text() }

// change commits a group: one change, or several appends. An error goes to
// every change of it that has not been answered.
func (a *Area) change(ctx context.Context, b *bucket, group []*pending) error {
	w := &writer{a: a, b: b, group: group}
	w.unsure = b.reader.Replicated && !w.retried() // what is refused for good is compared
	defer w.discard(ctx)
	if rec := w.guess(); rec != nil {
		err := w.try(ctx, rec)
		w.leave()
		if err == nil {
			return nil
		}
		a.known.missed(laneKey{b.tenant, group[0].Path}, a.now())
	}
	look := a.load // a compare-and-set follows
	for attempt := 0; ; attempt++ {
		rec, err := a.settledBy(ctx, b, group[0].Path, look)
		if err != nil {
			return err
		}
		err = w.try(ctx, rec)
		w.leave()
		switch {
		case errors.Is(err, errAgain):
		case w.unsure && errors.Is(err, errUnsure), w.unsure && err != nil && !errcode.From(err).Retryable:
			w.unsure, look = false, a.current
			continue
		default:
			w.refuse(ctx, err)
			return err
		}
		if err := yield(ctx, attempt, group[0].Path); err != nil {
			return err
		}
	}
}

// yield lets another replica finish that was faster.
func yield(ctx context.Context, attempt int, path string) error {
	wait := min(time.Millisecond<<min(attempt, 5), 20*time.Millisecond)
	if err := pause(ctx, wait/2+mathrand.N(wait)); err != nil {
		return errcode.Wrap(errcode.Overloaded, err, "too many others change %q", path)
	}
	return nil
}

// errAgain is that the file changed under a writer, which starts again from
// what stands now.
var errAgain = errors.New("the file changed meanwhile")

// errUnsure is that what was read may be old, and that no compare-and-set would
// follow to show it.
var errUnsure = errors.New("what was read may be old")

// writer carries one group through its attempts.
type writer struct {
	a     *Area
	b     *bucket
	group []*pending
	prep  *prepared // content that stands under a chunk id of its own
	left  leftover  // chunks of the attempt before
	room  *room     // nil unless this attempt has asked for it
	// unsure is that attempts start from what a deposed leader may have said.
	unsure bool
}

// enter finds out what room there is for this attempt, which it then has to
// itself.
func (w *writer) enter(ctx context.Context, grow int64) error {
	w.leave()
	own := ""
	if u := w.group[0].Upload; u != nil {
		own = u.UploadID
	}
	var err error
	w.room, err = w.a.room(ctx, w.b, grow, own)
	return err
}

func (w *writer) leave() {
	if w.room != nil {
		w.room.leave()
		w.room = nil
	}
}

// discard removes prepared chunks that were not used, if that is certain.
func (w *writer) discard(ctx context.Context) {
	if w.prep != nil && w.prep.own && !w.prep.used {
		w.a.jan.purgeChunks(ctx, w.b, w.prep.id)
	}
}

// notAt is the conflict of a change on the condition that the file is at the
// revision want, or with 0 that there is none.
func notAt(rec *record.Record, want uint64) error {
	switch {
	case want == 0:
		return errcode.ConflictAt(rec.Current(), "%q exists already", rec.Path)
	case !rec.Exists():
		return errcode.ConflictAt(rec.Current(), "there is no file %q, at revision %d or any", rec.Path, want)
	}
	return errcode.ConflictAt(rec.Current(), "%q is at revision %d, not %d", rec.Path, rec.Current(), want)
}

// try makes the change to the version that rec describes. Of a change that an
// earlier try may make yet, a refusal is made final first.
func (w *writer) try(ctx context.Context, rec *record.Record) error {
	err := w.attempt(ctx, rec)
	if w.retried() && refusal(err) {
		err = w.refuseForGood(ctx, rec, err)
	}
	return err
}

func (w *writer) attempt(ctx context.Context, rec *record.Record) error {
	path := rec.Path
	dead, err := w.answerKnown(ctx, rec)
	if err != nil {
		return err
	}
	if dead {
		w.dropLeft(ctx, rec)
	}
	if len(w.group) == 0 {
		return nil
	}
	if err := w.a.finishOrigin(ctx, w.b, rec); err != nil {
		return err
	}
	first := w.group[0]
	if want := first.IfRevision; want != nil && *want != rec.Current() {
		return notAt(rec, *want)
	}
	switch first.Kind {
	case record.KindDelete:
		return w.remove(ctx, rec)
	case record.KindRestore:
		return w.restore(ctx, rec)
	case record.KindAppend:
		if err := w.a.ensure(ctx, w.b); err != nil {
			return err
		}
		return w.append(ctx, rec)
	case record.KindCreate:
		if rec.Exists() {
			return errcode.ConflictAt(rec.Current(), "%q exists already", path)
		}
	}
	if err := w.a.ensure(ctx, w.b); err != nil {
		return err
	}
	return w.overwrite(ctx, rec)
}

// answerKnown gives a retry the first answer and takes it out of the group. dead
// tells whether an attempt before that committed none of the group never will.
func (w *writer) answerKnown(ctx context.Context, rec *record.Record) (dead bool, err error) {
	var rest []*pending
	dead = rec.Revision > w.left.base
	for _, p := range w.group {
		op, known, err := w.a.find(ctx, w.b, rec, p.key)
		switch {
		case err != nil:
			return false, err
		case !known:
			rest = append(rest, p)
		case op.Asked() != p.Kind:
			p.finish(Outcome{}, errcode.Field("opId", "%q was used for another operation", p.OpID))
		case op.Kind == record.KindRefused:
			p.finish(outcome(op), op.Refusal(rec.Path)) // the others are not committed with it
		default:
			dead = false
			if w.prep != nil && rec.ID == w.prep.id {
				w.prep.used = true // an attempt whose answer got lost
			}
			p.finish(outcome(op), nil)
		}
	}
	w.group = rest
	return dead, nil
}

// plan is what committing the group on rec answers, with the operations that
// remember it.
func (w *writer) plan(rec *record.Record) ([]Outcome, []record.Op) {
	size := rec.Size
	if !rec.Exists() || w.group[0].Kind != record.KindAppend {
		size = 0
	}
	outs := make([]Outcome, len(w.group))
	ops := make([]record.Op, len(w.group))
	for i, p := range w.group {
		n := p.bytes()
		size += n
		outs[i] = Outcome{Bytes: n, Size: size, Deleted: p.Kind == record.KindDelete}
		ops[i] = record.Op{Key: p.key, Kind: p.Kind, At: w.a.now().Unix(), Bytes: n, Size: size}
	}
	return outs, ops
}

// publish commits next as what follows rec, and answers the group.
func (w *writer) publish(ctx context.Context, rec, next *record.Record) error {
	outs, ops := w.plan(rec)
	next.Path = rec.Path
	if err := w.a.remember(ctx, w.b, rec, next, ops); err != nil {
		return err
	}
	if !next.Deleted {
		next.Keep(w.a.versions(ctx, w.b), rec)
	}
	if next.ID == rec.ID {
		next.Born = rec.Born
	}
	seq, err := w.a.store(ctx, w.b, next, rec.Revision)
	if errors.Is(err, jet.ErrRevision) {
		return errAgain
	}
	if w.prep != nil && next.ID == w.prep.id && !errors.Is(err, errcode.QuotaExceeded) {
		// Used, or perhaps: an error does not say that nothing was stored. What was
		// not is left to the sweep.
		w.prep.used = true
	}
	if err != nil {
		return err
	}
	next.Revision = seq
	w.a.known.note(w.key(), next, seq, w.a.now())
	w.b.usage.wrote(next, next.Bytes()-rec.Bytes())
	if rec.Revision > 0 {
		w.a.jan.supersede(ctx, w.b, w.b.meta(rec.Path), seq)
	}
	w.a.jan.dropChunks(ctx, w.b, next, rec)
	for i, p := range w.group {
		outs[i].Revision = record.Answered(i, len(w.group), seq)
		p.finish(outs[i], nil)
	}
	w.group = nil
	w.a.compactor.consider(w.b, next)
	return nil
}

func (p *pending) bytes() int64 {
	if p.Upload != nil {
		return p.Upload.Size
	}
	return int64(len(p.Content)) + p.restored
}

func (w *writer) remove(ctx context.Context, rec *record.Record) error {
	if !rec.Exists() {
		if w.retried() {
			return w.refuseForGood(ctx, rec, nil)
		}
		if w.unsure {
			return errUnsure
		}
		w.group[0].finish(Outcome{}, nil)
		return nil
	}
	return w.publish(ctx, rec, &record.Record{ID: rec.ID, Deleted: true})
}

func (w *writer) overwrite(ctx context.Context, rec *record.Record) error {
	p := w.group[0]
	if err := w.fits(ctx, rec); err != nil {
		return err
	}
	if p.Upload != nil {
		// Verifying takes as long as the upload is large: nobody waits for it.
		w.leave()
		if err := w.takeUpload(ctx, p); err != nil {
			return err
		}
		if err := w.fits(ctx, rec); err != nil {
			return err
		}
	} else if w.prep == nil {
		var err error
		if w.prep, err = w.a.prepare(ctx, w.b, p.Content); err != nil {
			return err
		}
	}
	err := w.publishPrepared(ctx, rec)
	if err == nil && p.Upload != nil {
		w.dropUpload(ctx, p.Upload.UploadID)
	}
	return err
}

// fits refuses an overwrite that is over a limit.
func (w *writer) fits(ctx context.Context, rec *record.Record) error {
	p := w.group[0]
	err := w.a.checkSize(p.bytes())
	if err == nil {
		err = w.enter(ctx, p.bytes())
	}
	if err == nil {
		err = w.room.fits(p.bytes(), w.a.freed(ctx, w.b, rec), !rec.Exists())
	}
	return err
}

// refuse lets go of an upload whose commit ends as over a limit: what it holds is
// not needed any more. An attempt on a guess of what stands does not end it.
func (w *writer) refuse(ctx context.Context, err error) {
	if len(w.group) == 0 {
		return
	}
	if u := w.group[0].Upload; u != nil && (errors.Is(err, errcode.QuotaExceeded) || errors.Is(err, errcode.TooLarge)) {
		w.a.refuseUpload(ctx, w.b, u.UploadID)
	}
}

// publishPrepared makes the prepared content the whole of the file.
func (w *writer) publishPrepared(ctx context.Context, rec *record.Record) error {
	next, err := w.prep.record()
	if err != nil {
		return err
	}
	return w.publish(ctx, rec, next)
}

// takeUpload verifies an upload's chunks, once, and makes them this change's
// alone.
func (w *writer) takeUpload(ctx context.Context, p *pending) error {
	if w.prep == nil {
		var err error
		if w.prep, err = w.a.prepareUpload(ctx, w.b, p.Upload); err != nil {
			return err
		}
	}
	return w.a.claimUpload(ctx, w.b, p)
}

// dropUpload removes the chunks of a committed upload, unless they are the file.
func (w *writer) dropUpload(ctx context.Context, id string) {
	if !w.prep.used || id != w.prep.id {
		w.a.jan.purgeChunks(ctx, w.b, id)
	}
}

func (a *Area) checkSize(size int64) error {
	if size > a.cfg.MaxFileSize {
		return errcode.OverLimit(errcode.TooLarge, a.cfg.MaxFileSize, size, "the file would be %d bytes, at most %d are allowed", size, a.cfg.MaxFileSize)
	}
	return nil
}
