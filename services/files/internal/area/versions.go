package area

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// versions is how many versions of a tenant's files are kept, the current one
// included.
func (a *Area) versions(ctx context.Context, b *bucket) int {
	return max(a.limits(ctx, b.tenant).Versions, 1)
}

// freed is how many bytes go when a file is replaced: those of versions that are
// then no longer kept.
func (a *Area) freed(ctx context.Context, b *bucket, rec *record.Record) int64 {
	next := &record.Record{Revision: 1}
	next.Keep(a.versions(ctx, b), rec)
	return rec.Bytes() - next.Bytes()
}

// Versions lists the versions of a file that can be read and restored, newest
// first: none when there is no file.
func (a *Area) Versions(ctx context.Context, tenant, path string) (message.FileVersionList, error) {
	b := a.bucket(tenant)
	out := message.FileVersionList{Path: path, Versions: []message.FileVersion{}}
	rec, err := a.settled(ctx, b, path)
	if err != nil {
		return out, err
	}
	all := rec.Versions()
	for _, v := range all[:min(len(all), a.versions(ctx, b))] {
		out.Versions = append(out.Versions, message.FileVersion{
			Revision: v.Revision, Size: v.Size, Modified: v.Modified.UTC().Format(time.RFC3339Nano), SHA256: v.Record(path).SHA256(),
		})
	}
	return out, nil
}

// restore makes a kept version the content of the file again, as a version of
// its own. The content is copied: chunks of one id belong to versions that only
// grew, of which this one need not be the last.
func (w *writer) restore(ctx context.Context, rec *record.Record) error {
	p := w.group[0]
	old, ok := rec.At(p.Version)
	switch {
	case !ok:
		return errcode.New(errcode.NotFound, "revision %d of %q is not kept", p.Version, rec.Path)
	case p.Version == rec.Current() && p.Retried:
		op := record.Op{Key: p.key, Kind: p.Kind, At: w.a.now().Unix(), Bytes: rec.Size, Size: rec.Size, Revision: rec.Current()}
		return w.seal(ctx, rec, op, nil)
	case p.Version == rec.Current() && w.unsure:
		return errUnsure
	case p.Version == rec.Current():
		p.finish(Outcome{Bytes: rec.Size, Size: rec.Size, Revision: rec.Current()}, nil)
		return nil
	}
	p.restored = old.Size
	if err := w.a.ensure(ctx, w.b); err != nil {
		return err
	}
	if err := w.fits(ctx, rec); err != nil {
		return err
	}
	if w.prep == nil {
		w.leave() // copying takes as long as the version is large: nobody waits for it
		if err := w.copyVersion(ctx, old.Record(rec.Path)); err != nil {
			return err
		}
		if err := w.fits(ctx, rec); err != nil {
			return err
		}
	}
	return w.publishPrepared(ctx, rec)
}

// copyVersion prepares the content of a version. errAgain is that it went away.
func (w *writer) copyVersion(ctx context.Context, old *record.Record) error {
	c := compaction{a: w.a, b: w.b, p: newPrepared()}
	err := c.copy(ctx, old)
	if err == nil {
		err = c.flush(ctx)
	}
	if err == nil && len(old.Digest) > 0 && !bytes.Equal(c.p.hash.Sum(nil), old.Digest) {
		err = errcode.New(errcode.Internal, "the content of %q at revision %d does not have its SHA-256", old.Path, old.Revision)
	}
	if err != nil {
		c.discard(ctx)
		if errors.Is(err, errVanished) {
			return errAgain
		}
		return err
	}
	w.prep = c.p
	return nil
}
