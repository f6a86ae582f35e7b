package area

import (
	"context"
	"errors"

	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// Chunks behind the tail of a file's newest version are one of three things,
// and each of them tells which:
//
//   - an append that extends this version: it is finished, by whoever sees it
//     first, its own writer or another. So nobody waits for anybody.
//   - an append that extended an older version and missed: nobody can commit it
//     any more, since a version has one successor. It is removed.
//   - anything else, such as what a client published under an upload's id after
//     its commit. It is removed, once the version stands under a new revision,
//     so that nobody commits it meanwhile.
//
// A file therefore has at most one append under way, however many replicas
// write, and whoever fails to be next has helped another to be it.

// finishTail deals with the chunks behind rec's tail. It returns errAgain when
// the caller should look at the file again.
func (a *Area) finishTail(ctx context.Context, b *bucket, rec *record.Record) error {
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
	}
	t := tail{rec: rec}
	if t.p, err = grow(rec); err != nil {
		return err
	}
	if err := a.walkTo(ctx, b, rec.ID, rec.Tail+1, last.Seq, t.visit); err != nil {
		return err
	}
	switch {
	case t.newer:
		return errAgain // the version that was read here is an older one
	case len(t.foreign) > 0:
		return a.fence(ctx, b, rec, t.foreign)
	case len(t.dead) > 0:
		for _, seq := range t.dead {
			if err := b.reader.Delete(ctx, seq); err != nil {
				return err
			}
		}
		return errAgain
	case t.found == 0:
		return errAgain
	}
	if t.found < t.group.Count {
		err := a.copyGroup(ctx, b, t.p, t.group, t.found)
		switch {
		case errors.Is(err, jet.ErrRevision):
			return errAgain // somebody else goes on with it
		case errors.Is(err, errVanished):
			// Its content is gone: committed meanwhile, or swept since nobody came
			// for so long.
			return a.fence(ctx, b, rec, t.live)
		case err != nil:
			return err
		}
	}
	return a.commitGroup(ctx, b, rec, t.p, t.group)
}

// tail is what stands behind a version's tail.
type tail struct {
	rec   *record.Record
	p     *prepared // the version, with the chunks of group that are there
	group record.Group
	found int  // chunks of group
	newer bool // there is one of a version newer than rec

	live, dead, foreign []uint64 // sequences
}

func (t *tail) visit(m stream.Msg) error {
	g, ok := record.OpenGroup(m.Header.Get(headerGroup), t.rec.Key)
	switch {
	case ok && g.Base > t.rec.Revision:
		t.newer = true
		return stream.Stop
	case ok && g.Base < t.rec.Revision:
		t.dead = append(t.dead, m.Seq)
	case ok && g.Index == t.found && len(m.Data) > 0:
		t.group = g
		t.found++
		t.live = append(t.live, m.Seq)
		t.p.take(m.Data, m.Seq)
	default:
		t.foreign = append(t.foreign, m.Seq)
	}
	return nil
}

// copyGroup stores the chunks of an append from number from on, as they stand
// under its source. errVanished is that they do not.
func (a *Area) copyGroup(ctx context.Context, b *bucket, p *prepared, g record.Group, from int) error {
	n := 0
	err := b.reader.Walk(ctx, b.chunk(g.Source), 1, 0, func(m stream.Msg) error {
		if n++; n <= from {
			return nil
		}
		if h, ok := m.Chunk(); !ok || h != n-1 {
			return errVanished
		}
		g.Index = n - 1
		if err := a.addChunk(ctx, b, p, m.Data, g.Seal(p.key)); err != nil {
			return err
		}
		if n == g.Count {
			return stream.Stop
		}
		return nil
	})
	if err == nil && n < g.Count {
		return errVanished
	}
	return err
}

// commitGroup makes a complete append the version after rec.
func (a *Area) commitGroup(ctx context.Context, b *bucket, rec *record.Record, p *prepared, g record.Group) error {
	next, err := p.record()
	if err != nil {
		return err
	}
	next.Path, next.Born = rec.Path, rec.Born
	next.Keep(a.versions(ctx, b), rec)
	if err := a.remember(ctx, b, rec, next, g.Ops); err != nil {
		return err
	}
	if next.Revision, err = a.store(ctx, b, next, rec.Revision); err != nil {
		if errors.Is(err, jet.ErrRevision) {
			return errAgain
		}
		return err
	}
	b.usage.wrote(next, next.Bytes()-rec.Bytes())
	a.jan.deleteMsg(ctx, b, rec.Revision)
	a.jan.dropChunks(ctx, b, next, rec)
	if g.Source != "" {
		a.jan.purgeChunks(ctx, b, g.Source)
	}
	a.compactor.consider(b, next)
	return errAgain
}

// fence commits rec once more, so that nothing that extends its revision can be
// committed any more, and removes the chunks in question.
func (a *Area) fence(ctx context.Context, b *bucket, rec *record.Record, seqs []uint64) error {
	next := *rec
	next.Same = rec.Current()
	if err := a.remember(ctx, b, rec, &next, nil); err != nil {
		return err
	}
	if _, err := a.store(ctx, b, &next, rec.Revision); err != nil {
		if errors.Is(err, jet.ErrRevision) {
			return errAgain
		}
		return err
	}
	a.jan.deleteMsg(ctx, b, rec.Revision)
	for _, seq := range seqs {
		if err := b.reader.Delete(ctx, seq); err != nil {
			return err
		}
	}
	a.log.Info("removed chunks that belong to no append", "tenant", b.tenant, "chunks", len(seqs))
	return errAgain
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
