package area

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

// MaxList is the most files of one listing, and the default.
const MaxList = 1000

// records hands the newest metadata of every file to fn, deleted ones
// included, in no order. A file that is written meanwhile is not missed.
func (a *Area) records(ctx context.Context, b *bucket, fn func(*record.Record)) error {
	newest := map[string]*record.Record{}
	err := b.reader.Walk(ctx, b.metas(), 0, 0, func(m stream.Msg) error {
		r, err := record.Decode(m.Data, m.Seq, m.Time)
		if err != nil {
			a.log.Error("unreadable file metadata", "tenant", b.tenant, "seq", m.Seq, "err", err)
			return nil
		}
		if m.Subject != b.meta(r.Path) {
			a.log.Warn("metadata that stands under another file's name is not listed", "tenant", b.tenant, "path", r.Path, "revision", m.Seq)
			return nil
		}
		r.Ops, r.State, r.Kept = nil, nil, nil
		newest[m.Subject] = r
		return nil
	})
	if errors.Is(err, stream.ErrNoStream) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range newest {
		// A file that was moved may not be gone yet from where it was.
		if r.Move != nil && newest[b.meta(r.Move.To)] != nil && r.Move.Moved(r.Path, newest[b.meta(r.Move.To)]) {
			continue
		}
		fn(r)
	}
	return nil
}

// List answers a FileList whose prefix is checked.
func (a *Area) List(ctx context.Context, tenant string, q message.FileList) (message.FileListing, error) {
	after, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err != nil || q.Cursor != "" && paths.Check(string(after)) != nil {
		return message.FileListing{}, errcode.Field("cursor", "is not one of a listing")
	}
	limit := MaxList
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	files := []message.FileInfo{}
	err = a.records(ctx, a.bucket(tenant), func(r *record.Record) {
		if paths.Check(r.Path) != nil {
			// Another client of NATS wrote it. No request can name it, and whoever
			// lists may take a path for one that is checked.
			a.log.Warn("a file with a name that is none is not listed", "tenant", tenant, "path", r.Path, "revision", r.Revision)
			return
		}
		if r.Exists() && strings.HasPrefix(r.Path, q.Prefix) && r.Path > string(after) {
			files = append(files, info(r))
		}
	})
	if err != nil {
		return message.FileListing{}, err
	}
	slices.SortFunc(files, func(x, y message.FileInfo) int { return strings.Compare(x.Path, y.Path) })
	out := message.FileListing{Files: files}
	budget := int(bus.MaxBody(a.nc)) / 2
	for i, f := range files {
		budget -= 256 + 2*len(f.Path)
		if i > 0 && (i == limit || budget < 0) {
			out.Files = files[:i]
			out.Cursor = base64.RawURLEncoding.EncodeToString([]byte(files[i-1].Path))
			break
		}
	}
	return out, nil
}
