package area

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// MaxChunks is the most chunks of one upload.
const MaxChunks = 1 << 20

// Open makes the tenant's stream, so that it captures the chunks of an upload,
// reserves size bytes for it, and returns its id. One that cannot fit is refused.
func (a *Area) Open(ctx context.Context, tenant, path string, size int64) (string, error) {
	return mindingLimits(ctx, a, tenant, func() (string, error) { return a.open(ctx, tenant, path, size) })
}

func (a *Area) open(ctx context.Context, tenant, path string, size int64) (string, error) {
	b := a.bucket(tenant)
	if err := a.checkSize(size); err != nil {
		return "", err
	}
	rec, err := a.settled(ctx, b, path)
	if err != nil {
		return "", err
	}
	if err := a.ensure(ctx, b); err != nil {
		return "", err
	}
	room, err := a.room(ctx, b, size, "")
	if err != nil {
		return "", err
	}
	defer room.leave()
	if err := room.fits(size, a.freed(ctx, b, rec), !rec.Exists()); err != nil {
		return "", err
	}
	id := newID()
	_, err = a.putClaim(ctx, b, id, claim{Path: path, Size: size}, 0)
	return id, err
}

// prepareUpload verifies the stored chunks of an upload against what the
// client says they are. In order and complete they become a file's chunks as
// they are; chunks that arrived out of order, or twice, are copied.
func (a *Area) prepareUpload(ctx context.Context, b *bucket, u *message.FileChunks) (*prepared, error) {
	if u.Chunks == 0 && u.Size == 0 {
		p := newPrepared()
		return p, checkDigest(p, u)
	}
	last, err := b.reader.Last(ctx, b.chunk(u.UploadID))
	if errors.Is(err, stream.ErrNone) || errors.Is(err, stream.ErrNoStream) ||
		err == nil && a.now().Sub(last.Time) > a.cfg.UploadAge {
		return nil, errcode.New(errcode.NotFound, "upload %q has no chunks, or they have expired", u.UploadID)
	}
	if err != nil {
		return nil, err
	}
	if u.SHA256State != "" {
		if p, err := a.checkChunks(ctx, b, u, last.Seq); p != nil || err != nil {
			return p, err
		}
	}
	p := &prepared{id: u.UploadID, key: record.NewKey(), hash: sha256.New(), tail: last.Seq}
	at := make(map[int]uint64, min(u.Chunks, 4096))
	inOrder := true
	var stored int64
	visit := func(m stream.Msg) error {
		if m.Seq > last.Seq {
			return stream.Stop
		}
		if stored += int64(len(m.Data)); stored > 2*u.Size+64<<20 {
			return errcode.Field("upload.size", "%d bytes were announced, far more were stored", u.Size)
		}
		n, ok := m.Chunk()
		if !ok || n >= u.Chunks {
			inOrder = false
			return nil
		}
		if _, twice := at[n]; twice || n != p.chunks || len(m.Data) == 0 || len(m.Data) > a.ChunkSize() {
			inOrder = false
		}
		at[n] = m.Seq
		if inOrder {
			p.hash.Write(m.Data)
			p.chunks, p.size = p.chunks+1, p.size+int64(len(m.Data))
		}
		return nil
	}
	if err := a.walkTo(ctx, b, u.UploadID, 1, last.Seq, visit); err != nil {
		return nil, err
	}
	for i := range u.Chunks {
		if at[i] == 0 {
			return nil, errcode.Field("upload.chunks", "chunk %d of %d was not stored", i, u.Chunks)
		}
	}
	if !inOrder {
		if p, err = a.copyChunks(ctx, b, u, at); err != nil {
			return nil, err
		}
	}
	if err := checkDigest(p, u); err != nil {
		if p.own {
			a.jan.purgeChunks(ctx, b, p.id)
		}
		return nil, err
	}
	return p, nil
}

func checkDigest(p *prepared, u *message.FileChunks) error {
	if p.size != u.Size {
		return errcode.Field("upload.size", "%d bytes were announced, %d were stored", u.Size, p.size)
	}
	if sum := hex.EncodeToString(p.hash.Sum(nil)); sum != u.SHA256 {
		return errcode.Field("upload.sha256", "the stored chunks have SHA-256 %s", sum)
	}
	return nil
}

// walkTo walks the chunks of an id from a sequence up to sequence last, which is
// known to be stored.
func (a *Area) walkTo(ctx context.Context, b *bucket, id string, from, last uint64, visit func(stream.Msg) error) error {
	return a.walkSubject(ctx, b, b.chunk(id), from, last, visit)
}

// walkSubject walks a subject up to sequence last, which is known to be stored; a
// replica that is behind is given a moment.
func (a *Area) walkSubject(ctx context.Context, b *bucket, subject string, from, last uint64, visit func(stream.Msg) error) error {
	seen := from - 1
	for try := range 10 {
		err := b.reader.Walk(ctx, subject, seen+1, 0, func(m stream.Msg) error {
			seen = m.Seq
			return visit(m)
		})
		if err != nil || seen >= last {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond<<min(try, 4)); err != nil {
			return err
		}
	}
	return errcode.New(errcode.Unavailable, "what is stored cannot be read yet")
}

func (a *Area) copyChunks(ctx context.Context, b *bucket, u *message.FileChunks, at map[int]uint64) (*prepared, error) {
	p := newPrepared()
	for i := range u.Chunks {
		m, err := b.reader.At(ctx, at[i])
		if err == nil && m.Subject != b.chunk(u.UploadID) {
			err = errcode.New(errcode.Internal, "chunk %d of upload %q is not there", i, u.UploadID)
		}
		if errors.Is(err, stream.ErrNone) {
			err = errcode.New(errcode.Unavailable, "stored chunks cannot be read yet")
		}
		if err == nil {
			err = a.add(ctx, b, p, m.Data)
		}
		if err != nil {
			a.jan.purgeChunks(ctx, b, p.id)
			return nil, err
		}
	}
	return p, nil
}

// claim is what becomes of an upload. It reserves room while the upload is open.
// Then it is who commits it, which keeps one set of chunks from becoming two
// files, of which each would remove the other's chunks.
type claim struct {
	Path    string `json:"path"`
	Size    int64  `json:"size,omitempty"` // announced, while it is open
	Op      string `json:"op,omitempty"`   // who commits it
	Refused bool   `json:"refused,omitempty"`
}

func (c claim) open() bool { return c.Op == "" && !c.Refused }

func (a *Area) putClaim(ctx context.Context, b *bucket, id string, c claim, expect uint64) (uint64, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	m := nats.NewMsg(b.claim(id))
	m.Data = data
	return a.put(ctx, b, m, expect)
}

// loadClaim reads an upload's claim and its sequence. An upload that nobody opened
// is not found: its id may be that of a file's chunks, which clients get to see and
// which must become neither a second file nor a refused upload's.
func (a *Area) loadClaim(ctx context.Context, b *bucket, id string) (claim, uint64, error) {
	m, err := b.reader.Last(ctx, b.claim(id))
	if errors.Is(err, stream.ErrNone) {
		return claim{}, 0, errcode.New(errcode.NotFound, "upload %q was not opened, or has expired", id)
	}
	if err != nil {
		return claim{}, 0, err
	}
	var c claim
	if err := json.Unmarshal(m.Data, &c); err != nil {
		return claim{}, 0, errcode.Wrap(errcode.Internal, err, "unreadable claim of upload %q", id)
	}
	return c, m.Seq, nil
}

// claimUpload makes this change the upload's only one.
func (a *Area) claimUpload(ctx context.Context, b *bucket, p *pending) error {
	mine := claim{Path: p.Path, Op: hex.EncodeToString(p.key[:])}
	for {
		c, seq, err := a.loadClaim(ctx, b, p.Upload.UploadID)
		switch {
		case err != nil:
			return err
		case c == mine:
			return nil
		case c.Refused:
			return errcode.New(errcode.NotFound, "upload %q was refused before", p.Upload.UploadID)
		case !c.open():
			return errcode.New(errcode.Conflict, "upload %q was committed before", p.Upload.UploadID)
		}
		seq, err = a.putClaim(ctx, b, p.Upload.UploadID, mine, seq)
		if errors.Is(err, jet.ErrRevision) {
			continue // somebody else's
		}
		if err == nil {
			b.usage.closeUpload(b.claim(p.Upload.UploadID), seq)
		}
		return err
	}
}

// refuseUpload removes an upload, unless somebody else is committing it.
func (a *Area) refuseUpload(ctx context.Context, b *bucket, id string) {
	c, seq, err := a.loadClaim(ctx, b, id)
	if err != nil || !c.open() {
		return
	}
	c.Refused = true
	if seq, err = a.putClaim(ctx, b, id, c, seq); err != nil {
		return
	}
	b.usage.closeUpload(b.claim(id), seq)
	a.jan.purgeChunks(ctx, b, id)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
