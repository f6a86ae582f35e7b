package area

import (
	"bytes"
	"context"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// append adds the group's content to the file that rec describes.
func (w *writer) append(ctx context.Context, rec *record.Record) error {
	if err := w.admit(ctx, rec); err != nil || len(w.group) == 0 {
		return err
	}
	first := w.group[0]
	if first.Upload != nil {
		if w.prep == nil {
			var err error
			if w.prep, err = w.a.prepareUpload(ctx, w.b, first.Upload); err != nil {
				return err
			}
		}
		if err := w.a.claimUpload(ctx, w.b, first); err != nil {
			return err
		}
	}
	var err error
	switch {
	case !rec.Exists() && first.Upload != nil:
		var next *record.Record
		if next, err = w.prep.record(); err == nil {
			err = w.publish(ctx, rec, next)
		}
	case !rec.Exists():
		err = w.fresh(ctx, rec, newPrepared())
	case rec.State == nil:
		err = w.copyThenAppend(ctx, rec)
	default:
		err = w.extend(ctx, rec)
	}
	if err == nil && first.Upload != nil {
		for _, id := range []string{first.Upload.UploadID, w.prep.id} {
			if !w.prep.used || id != w.prep.id {
				w.a.jan.purgeChunks(ctx, w.b, id)
			}
		}
	}
	return err
}

// admit refuses those appends of the group that are over a limit.
func (w *writer) admit(ctx context.Context, rec *record.Record) error {
	var ok []*pending
	var grow int64
	for _, p := range w.group {
		err := w.a.checkSize(p.bytes()) // first alone: what a client announces may be huge
		if err == nil {
			err = w.a.checkSize(rec.Size + grow + p.bytes())
		}
		if err == nil {
			err = w.a.checkQuota(ctx, w.b, grow+p.bytes(), 0)
		}
		if err != nil {
			p.finish(Outcome{}, err)
			continue
		}
		grow += p.bytes()
		ok = append(ok, p)
	}
	w.group = ok
	return nil
}

// addGroup stores the group's content as further chunks of p.
func (w *writer) addGroup(ctx context.Context, p *prepared) error {
	if w.group[0].Upload != nil {
		src, err := w.prep.record()
		if err != nil {
			return err
		}
		return w.a.scan(ctx, w.b, src, 0, src.Size, func(part []byte) error { return w.a.add(ctx, w.b, p, part) })
	}
	if len(w.group) == 1 {
		return w.a.add(ctx, w.b, p, w.group[0].Content)
	}
	var all bytes.Buffer
	for _, g := range w.group {
		all.Write(g.Content)
	}
	return w.a.add(ctx, w.b, p, all.Bytes())
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

// copyThenAppend serves a file whose running hash is unknown.
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

// extend adds chunks under the file's own chunk id, right after the tail.
func (w *writer) extend(ctx context.Context, rec *record.Record) error {
	h, err := rec.Hash()
	if err != nil {
		return err
	}
	p := &prepared{id: rec.ID, size: rec.Size, chunks: rec.Chunks, tail: rec.Tail, hash: h}
	err = w.addGroup(ctx, p)
	if errors.Is(err, jet.ErrRevision) {
		if p.tail != rec.Tail {
			w.dropOwn(ctx, rec, p.tail)
			return errAgain
		}
		return w.a.awaitTail(ctx, w.b, rec)
	}
	if err != nil {
		return err // what was stored is behind the tail; the next writer removes it
	}
	next, err := p.record()
	if err != nil {
		return err
	}
	if err = w.publish(ctx, rec, next); errors.Is(err, errAgain) && p.tail != rec.Tail {
		w.dropOwn(ctx, rec, p.tail)
	}
	return err
}

// dropOwn removes the chunks from behind rec's tail to last: this writer's own,
// which it will certainly not commit.
func (w *writer) dropOwn(ctx context.Context, rec *record.Record, last uint64) {
	err := w.b.reader.Walk(ctx, w.b.chunk(rec.ID), rec.Tail+1, 0, func(m stream.Msg) error {
		if m.Seq > last {
			return stream.Stop
		}
		return w.b.reader.Delete(ctx, m.Seq)
	})
	if err != nil {
		w.a.log.Debug("unused chunks left to the next writer", "err", err)
	}
}

// tailGrace is how long chunks behind the tail may stand without a sign of
// life before their writer counts as dead.
const tailGrace = time.Second

// awaitTail is called when there are chunks behind rec's tail: an append of
// another replica under way, or what a crashed one left. It waits for the
// former and removes the latter.
func (a *Area) awaitTail(ctx context.Context, b *bucket, rec *record.Record) error {
	var seen uint64
	since := a.now()
	for {
		now, err := a.load(ctx, b, rec.Path)
		if err != nil {
			return err
		}
		if now.Revision != rec.Revision {
			return errAgain
		}
		last, err := b.reader.Last(ctx, b.chunk(rec.ID))
		switch {
		case errors.Is(err, stream.ErrNone) && rec.Tail == 0:
			return errAgain
		case err != nil && !errors.Is(err, stream.ErrNone):
			return err
		case last.Seq == rec.Tail:
			return errAgain
		case last.Seq < rec.Tail: // or none at all
			return a.missing(ctx, b, rec)
		case last.Seq != seen:
			seen, since = last.Seq, a.now()
		case a.now().Sub(since) >= tailGrace:
			return a.repairTail(ctx, b, rec)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond + mathrand.N(7*time.Millisecond)):
		}
	}
}

// missing says what it means that chunks of rec are not there.
func (a *Area) missing(ctx context.Context, b *bucket, rec *record.Record) error {
	now, err := a.load(ctx, b, rec.Path)
	switch {
	case err != nil:
		return err
	case now.Revision != rec.Revision:
		return errAgain // superseded between two looks
	}
	return damaged(rec)
}

// repairTail removes the chunks behind rec's tail. It first commits the same
// version again under a new revision: should their writer live after all, its
// commit then misses, and it starts again.
func (a *Area) repairTail(ctx context.Context, b *bucket, rec *record.Record) error {
	var orphans []uint64
	err := b.reader.Walk(ctx, b.chunk(rec.ID), rec.Tail+1, 0, func(m stream.Msg) error {
		orphans = append(orphans, m.Seq)
		return nil
	})
	if err != nil {
		return err
	}
	fence := *rec
	fence.Ops = rec.Carry(a.now(), 0)
	if _, err := a.store(ctx, b, &fence, rec.Revision); err != nil {
		if errors.Is(err, jet.ErrRevision) {
			return errAgain
		}
		return err
	}
	a.jan.deleteMsg(ctx, b, rec.Revision)
	for _, seq := range orphans {
		if err := b.reader.Delete(ctx, seq); err != nil {
			return err
		}
	}
	a.log.Info("removed the chunks of an append that was never finished", "tenant", b.tenant, "chunks", len(orphans))
	return errAgain
}
