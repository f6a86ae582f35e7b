package area

import (
	"bytes"
	"context"
	"errors"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// append adds the group's content to the file that rec describes.
func (w *writer) append(ctx context.Context, rec *record.Record) error {
	if err := w.admit(ctx, rec); err != nil || len(w.group) == 0 {
		return err
	}
	up := w.group[0].Upload
	if up != nil {
		// Verifying takes as long as the upload is large: nobody waits for it.
		w.leave()
		if err := w.takeUpload(ctx, w.group[0]); err != nil {
			return err
		}
		if err := w.admit(ctx, rec); err != nil || len(w.group) == 0 {
			return err
		}
	}
	var err error
	switch {
	case !rec.Exists() && up != nil:
		err = w.publishPrepared(ctx, rec)
	case !rec.Exists():
		err = w.fresh(ctx, rec, newPrepared())
	case !rec.Growable():
		err = w.copyThenAppend(ctx, rec)
	default:
		err = w.extend(ctx, rec)
	}
	if err == nil && up != nil {
		w.dropUpload(ctx, up.UploadID)
	}
	return err
}

// admit refuses those appends of the group that are over a limit.
func (w *writer) admit(ctx context.Context, rec *record.Record) error {
	// What cannot grow in place is copied; earlier versions may need the old chunks.
	var copied, freed int64
	if rec.Exists() && !rec.Growable() {
		copied, freed = rec.Size, w.a.freed(ctx, w.b, rec)
	}
	all := copied
	for _, p := range w.group {
		all += min(p.bytes(), w.a.cfg.MaxFileSize) // what a client announces may be huge
	}
	if err := w.enter(ctx, all); err != nil {
		return err
	}
	size := rec.Size
	if !rec.Exists() {
		size = 0
	}
	var ok []*pending
	var grow int64
	for _, p := range w.group {
		err := w.a.checkSize(p.bytes()) // first alone
		if err == nil {
			err = w.a.checkSize(size + grow + p.bytes())
		}
		if err == nil {
			err = w.room.fits(copied+grow+p.bytes(), freed, !rec.Exists())
		}
		if err != nil {
			if w.retried() {
				return err // it is alone
			}
			if w.unsure {
				return errUnsure
			}
			w.refuse(ctx, err)
			p.finish(Outcome{}, err)
			continue
		}
		grow += p.bytes()
		ok = append(ok, p)
	}
	w.group = ok
	return nil
}

// addGroup stores the group's content as further chunks of p, a file nobody
// knows yet.
func (w *writer) addGroup(ctx context.Context, p *prepared) error {
	if w.group[0].Upload != nil {
		src, err := w.prep.record()
		if err != nil {
			return err
		}
		return w.a.scan(ctx, w.b, src, 0, src.Size, func(part []byte) error { return w.a.add(ctx, w.b, p, part) })
	}
	return w.a.add(ctx, w.b, p, w.content())
}

// content is the group's content; it has no upload.
func (w *writer) content() []byte {
	if len(w.group) == 1 {
		return w.group[0].Content
	}
	var all bytes.Buffer
	for _, g := range w.group {
		all.Write(g.Content)
	}
	return all.Bytes()
}

// fresh commits the group's content as what follows p under its new chunk id.
func (w *writer) fresh(ctx context.Context, rec *record.Record, p *prepared) error {
	err := w.addGroup(ctx, p)
	if err != nil {
		w.a.jan.purgeChunks(ctx, w.b, p.id)
		return err
	}
	next, err := p.record()
	if err != nil {
		return err
	}
	if err = w.publish(ctx, rec, next); errors.Is(err, errAgain) {
		w.a.jan.purgeChunks(ctx, w.b, p.id)
	}
	return err
}

// copyThenAppend serves a file that cannot grow in place.
func (w *writer) copyThenAppend(ctx context.Context, rec *record.Record) error {
	p := newPrepared()
	err := w.a.scan(ctx, w.b, rec, 0, rec.Size, func(part []byte) error { return w.a.add(ctx, w.b, p, part) })
	if err != nil {
		w.a.jan.purgeChunks(ctx, w.b, p.id)
		if errors.Is(err, errVanished) {
			return errAgain
		}
		return err
	}
	return w.fresh(ctx, rec, p)
}

// extend adds chunks under the file's own chunk id, right after the tail. From
// the first of them on anybody can finish the append.
func (w *writer) extend(ctx context.Context, rec *record.Record) error {
	p, err := grow(rec)
	if err != nil {
		return err
	}
	_, ops := w.plan(rec)
	g := record.Group{Base: rec.Revision, Count: 1, Ops: ops}
	content, err := w.stage(ctx, &g)
	switch {
	case err != nil:
		return err
	case g.Source != "":
		err = w.a.copyGroup(ctx, w.b, p, g, 0)
	case len(content) > 0:
		err = w.a.addChunk(ctx, w.b, p, content, g.Seal(rec.Key))
	}
	w.left = leftover{id: rec.ID, base: rec.Revision, after: rec.Tail, last: p.tail}
	if errors.Is(err, jet.ErrRevision) {
		return w.a.finishTail(ctx, w.b, rec)
	}
	if err == nil {
		var next *record.Record
		if next, err = p.record(); err == nil {
			err = w.publish(ctx, rec, next)
		}
	}
	if err == nil || errors.Is(err, errAgain) {
		return err
	}
	if w.prep != nil {
		w.prep.used = true // perhaps: somebody may be finishing the append from it
	}
	if p.tail != rec.Tail && errors.Is(err, errcode.QuotaExceeded) {
		// Somebody may finish it as soon as there is room.
		return errcode.Wrap(errcode.Unavailable, err, "the tenant's file area has no room to finish the append: %v", err)
	}
	return err
}

// stage returns the group's content when it fits one chunk. Otherwise it sees to
// it that all of it stands under a chunk id of its own, g's source: should this
// process die between the first chunk and the last, others have the rest.
func (w *writer) stage(ctx context.Context, g *record.Group) ([]byte, error) {
	if w.group[0].Upload == nil {
		content := w.content()
		if len(content) <= w.a.ChunkSize() {
			return content, nil
		}
		if w.prep == nil {
			var err error
			if w.prep, err = w.a.prepare(ctx, w.b, content); err != nil {
				return nil, err
			}
		}
	}
	g.Source, g.Count = w.prep.id, w.prep.chunks
	return nil, nil
}

// leftover is where chunks of a writer's last attempt may stand: under id,
// behind sequence after and up to last.
type leftover struct {
	id          string
	base        uint64 // revision that they extend
	after, last uint64
}

// dropLeft removes the chunks of an attempt that can never be committed, since
// the file has gone on to rec without it.
func (w *writer) dropLeft(ctx context.Context, rec *record.Record) {
	l := w.left
	w.left = leftover{}
	if l.id == rec.ID {
		l.after = max(l.after, rec.Tail) // what counts stays, come what may
	}
	if l.last <= l.after {
		return
	}
	err := w.b.reader.Walk(ctx, w.b.chunk(l.id), l.after+1, 0, func(m stream.Msg) error {
		if m.Seq > l.last {
			return stream.Stop
		}
		return w.b.reader.Delete(ctx, m.Seq)
	})
	if err != nil {
		w.a.log.Debug("unused chunks left to the sweep", "err", err)
	}
}
