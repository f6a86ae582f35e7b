package area

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

// Sweep removes what crashes and abandoned uploads left behind in every
// tenant's store, once it is older than OrphanAge: chunks that no file names,
// superseded metadata, delete markers and claims. Kept versions count as files. Appends and moves that were not
// finished it finishes, however young. Chunks that a file names are never touched.
// Replicas may sweep at the same time.
func (a *Area) Sweep(ctx context.Context) error {
	const prefix = "OBJ_"
	var errs []error
	names := a.js.StreamNames(ctx)
	for name := range names.Name() {
		tenant, ok := strings.CutPrefix(name, prefix+subject.FilesBucket(""))
		if !ok || subject.CheckTenant(tenant) != nil {
			continue
		}
		if err := a.sweep(ctx, a.bucket(tenant)); err != nil && !errors.Is(err, stream.ErrNoStream) {
			errs = append(errs, fmt.Errorf("tenant %s: %w", tenant, err))
		}
	}
	if err := names.Err(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a *Area) sweep(ctx context.Context, b *bucket) error {
	old := a.now().Add(-a.cfg.OrphanAge)
	// Chunks first, metadata second: a file committed in between is then known.
	chunks, err := b.reader.Info(ctx, b.chunks())
	if err != nil {
		return err
	}
	found, err := a.sweepMetadata(ctx, b, old, chunks.Subjects)
	if err != nil {
		return err
	}
	// Appends that crashed are finished before what they are finished from goes.
	for _, r := range found.dirty {
		if err := a.finishTail(ctx, b, r); err != nil && !errors.Is(err, errAgain) {
			return err
		}
	}
	for _, r := range found.moving {
		if err := a.settle(ctx, b, r); err != nil {
			return err
		}
	}
	removed := 0
	for s := range chunks.Subjects {
		if n := found.named[b.chunkID(s)]; n != nil {
			if err := a.sweepBehind(ctx, b, s, chunks.Subjects[s], n); err != nil {
				return err
			}
			continue
		}
		if found.unreadable > 0 {
			continue // better to keep everything than to remove what is named there
		}
		last, err := b.reader.Last(ctx, s)
		switch {
		case errors.Is(err, stream.ErrNone):
			continue
		case err != nil:
			return err
		case last.Time.After(old):
			continue // an upload or a write under way
		}
		if err := b.reader.Purge(ctx, s); err != nil {
			return err
		}
		removed++
	}
	if removed > 0 {
		a.log.Info("removed chunks that no file names", "tenant", b.tenant, "ids", removed)
	}
	if found.unreadable > 0 {
		a.log.Warn("chunks that no file names stay while there is metadata that cannot be read", "tenant", b.tenant, "messages", found.unreadable)
	}
	if err := a.sweepAll(ctx, b, b.pages(), record.OpAge); err != nil {
		return err
	}
	b.usage.idle(a.now(), a.cfg.OrphanAge)
	return a.sweepClaims(ctx, b)
}

// needed is how much of a chunk id files need.
type needed struct {
	chunks  int
	tail    uint64
	current bool // of a file, which may grow
}

// sweepBehind removes what appends that missed left behind the last version of a
// chunk id, of which there are only kept versions: none of them can grow.
func (a *Area) sweepBehind(ctx context.Context, b *bucket, subject string, stored uint64, n *needed) error {
	if n.current || n.tail == 0 || stored <= uint64(n.chunks) {
		return nil
	}
	return b.reader.Walk(ctx, subject, n.tail+1, 0, func(m stream.Msg) error { return b.reader.Delete(ctx, m.Seq) })
}

// sweepClaims removes claims whose upload cannot be committed any more, nor a
// second time.
func (a *Area) sweepClaims(ctx context.Context, b *bucket) error {
	old := a.now().Add(-2 * a.cfg.OrphanAge)
	return b.reader.Walk(ctx, b.claims(), 0, 0, func(m stream.Msg) error {
		if m.Time.After(old) {
			return stream.Stop
		}
		var c claim
		if err := json.Unmarshal(m.Data, &c); err == nil && c.open() {
			last, err := b.reader.Last(ctx, b.chunk(b.claimID(m.Subject)))
			switch {
			case err == nil && last.Time.After(old):
				return nil // a long upload, still under way
			case err != nil && !errors.Is(err, stream.ErrNone):
				return err
			}
		}
		return b.reader.Delete(ctx, m.Seq)
	})
}

// sweepAll removes the messages of a subject that are older than age.
func (a *Area) sweepAll(ctx context.Context, b *bucket, subject string, age time.Duration) error {
	return b.reader.Walk(ctx, subject, 0, 0, func(m stream.Msg) error {
		if a.now().Sub(m.Time) < age {
			return stream.Stop
		}
		return b.reader.Delete(ctx, m.Seq)
	})
}

// metadata is what the sweep finds in a tenant's metadata.
type metadata struct {
	named      map[string]*needed // the chunk ids that files name
	dirty      []*record.Record   // files with chunks behind their tail
	moving     []*record.Record
	unreadable int // messages, which another client or a later version wrote
}

// sweepMetadata removes superseded and deleted files' metadata.
func (a *Area) sweepMetadata(ctx context.Context, b *bucket, old time.Time, chunks map[string]uint64) (metadata, error) {
	found := metadata{named: map[string]*needed{}}
	newest := map[string]*record.Record{}
	var superseded []uint64
	err := b.reader.Walk(ctx, b.metas(), 0, 0, func(m stream.Msg) error {
		r, err := record.Decode(m.Data, m.Seq, m.Time)
		if err != nil {
			found.unreadable++
			a.log.Error("unreadable file metadata", "tenant", b.tenant, "seq", m.Seq, "err", err)
			delete(newest, m.Subject) // it stands for the file now; what was there before stays
			return nil
		}
		if last := newest[m.Subject]; last != nil {
			superseded = append(superseded, last.Revision)
		}
		newest[m.Subject] = r
		return nil
	})
	if err != nil {
		return found, err
	}
	for _, r := range newest {
		switch {
		case r.Exists():
			for i, v := range r.Versions() {
				n := found.named[v.ID]
				if n == nil {
					n = &needed{}
					found.named[v.ID] = n
				}
				n.chunks, n.tail, n.current = max(n.chunks, v.Chunks), max(n.tail, v.Tail), n.current || i == 0
			}
			if r.Move != nil {
				found.moving = append(found.moving, r)
			} else if r.Growable() && chunks[b.chunk(r.ID)] > uint64(r.Chunks) {
				found.dirty = append(found.dirty, r)
			}
		case r.Modified.Before(old):
			superseded = append(superseded, r.Revision)
		}
	}
	for _, seq := range superseded {
		if err := b.reader.Delete(ctx, seq); err != nil {
			return found, err
		}
	}
	return found, nil
}
