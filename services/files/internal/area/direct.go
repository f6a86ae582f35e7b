package area

import (
	"context"
	"regexp"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

const (
	windowBytes    = 8 << 20 // most of one window of a direct read
	windowMessages = 2048    // most chunks of one window
)

// inbox is what chunks are sent to on a client's word. JetStream sends with
// nobody's permissions: anything but an inbox would let a tenant publish what it
// has stored wherever it likes.
var inbox = regexp.MustCompile(`^_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_=-]+){1,8}$`)

const maxInbox = 256 // bytes

// deliverable tells whether a read is served straight from the stream.
func deliverable(rec *record.Record, q message.FileRead) bool {
	return q.Direct != nil && len(q.Direct.DeliverTo) <= maxInbox && inbox.MatchString(q.Direct.DeliverTo) &&
		q.Offset < rec.Size && (q.Length == nil || *q.Length > 0)
}

// deliver has JetStream send the chunks from q.Offset on to the client, and
// returns where they begin. Nothing is known of what arrives: the client asks
// again for what does not.
func (a *Area) deliver(ctx context.Context, b *bucket, rec *record.Record, q message.FileRead) (*message.FilePlace, error) {
	from := message.FilePlace{ID: rec.ID}
	if f := q.Direct.From; f != nil && f.ID == rec.ID && f.Chunk >= 0 && f.Offset >= 0 && f.Offset <= q.Offset {
		from = *f // the client's own loss when it is wrong: the subject is the file's
	} else {
		p, err := a.locate(ctx, b, rec, q.Offset)
		if err != nil {
			return nil, err
		}
		from.Chunk, from.Offset, from.Sequence = p.number, p.off, p.seq
	}
	need := rec.Size - from.Offset
	if q.Length != nil {
		need = min(need, q.Offset+*q.Length-from.Offset)
	}
	limit, count := int64(windowBytes), windowMessages
	if q.Direct.MaxChunks > 0 {
		count = min(count, q.Direct.MaxChunks)
	}
	if q.Direct.MaxBytes > 0 {
		limit = min(limit, q.Direct.MaxBytes)
	}
	// The server counts subjects and headers too: room for those of as many
	// chunks as are needed, or short ones would end the window too early.
	perChunk := max(rec.Size/int64(max(rec.Chunks, 1)), 1)
	limit = min(limit, need+(need/perChunk+1)*headerBytes)
	return &from, b.reader.Send(q.Direct.DeliverTo, b.chunk(rec.ID), from.Sequence, count, limit)
}

// headerBytes is about what the server counts of a chunk beside its content.
const headerBytes = 128

// locate returns a place at or before byte off: that of the chunk with it.
func (a *Area) locate(ctx context.Context, b *bucket, rec *record.Record, off int64) (place, error) {
	if off > 0 {
		// Reading the byte before and the one at off notes where they stand.
		err := a.scan(ctx, b, rec, off-1, min(2, rec.Size-off+1), func([]byte) error { return nil })
		if err != nil {
			return place{}, err
		}
	}
	return a.index.floor(rec.ID, off), nil
}
