package area

import (
	"context"
	"crypto/sha256"
	"hash"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// prepared is content that stands in chunks, but that no metadata names yet.
type prepared struct {
	id     string
	size   int64
	chunks int
	tail   uint64
	key    string // secret of id
	hash   hash.Hash
	own    bool // made by this attempt: remove it when it is not used
	used   bool
}

func (p *prepared) record() (*record.Record, error) {
	r := &record.Record{ID: p.id, Size: p.size, Chunks: p.chunks, Tail: p.tail, Key: p.key}
	return r, r.SetHash(p.hash)
}

func newPrepared() *prepared {
	return &prepared{id: newID(), key: record.NewKey(), hash: sha256.New(), own: true}
}

// grow is p for what follows rec under rec's own chunk id.
func grow(rec *record.Record) (*prepared, error) {
	h, err := rec.Hash()
	return &prepared{id: rec.ID, size: rec.Size, chunks: rec.Chunks, tail: rec.Tail, key: rec.Key, hash: h}, err
}

// prepare stores content under a fresh chunk id.
func (a *Area) prepare(ctx context.Context, b *bucket, content []byte) (*prepared, error) {
	p := newPrepared()
	if err := a.add(ctx, b, p, content); err != nil {
		a.jan.purgeChunks(ctx, b, p.id)
		return nil, err
	}
	return p, nil
}

// add stores data as p's next chunks, each under the expected last sequence of
// the chunk id, so that nobody's chunk can come between. jet.ErrRevision is
// that somebody's has.
func (a *Area) add(ctx context.Context, b *bucket, p *prepared, data []byte) error {
	for size := a.ChunkSize(); len(data) > 0; {
		part := data[:min(size, len(data))]
		data = data[len(part):]
		if err := a.addChunk(ctx, b, p, part, ""); err != nil {
			return err
		}
	}
	return nil
}

// addChunk is add for one chunk; group is the append's sealed header, or "".
func (a *Area) addChunk(ctx context.Context, b *bucket, p *prepared, part []byte, group string) error {
	m := nats.NewMsg(b.chunk(p.id))
	m.Header.Set(message.HeaderChunk, strconv.Itoa(p.chunks))
	if group != "" {
		m.Header.Set(headerGroup, group)
	}
	m.Data = part
	seq, err := a.put(ctx, b, m, p.tail)
	if err != nil {
		return err
	}
	p.take(part, seq)
	return nil
}

// take counts a stored chunk in.
func (p *prepared) take(part []byte, seq uint64) {
	p.hash.Write(part)
	p.tail, p.chunks, p.size = seq, p.chunks+1, p.size+int64(len(part))
}

// headerGroup carries a record.Group.
const headerGroup = "Toolbus-Append"
