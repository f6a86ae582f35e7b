package area

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// checkChunks prepares an upload without reading its content: number, order and
// sizes of the stored chunks are the server's word, the digest is the client's,
// which must agree with the running hash that it sends along. A digest that is
// not the content's makes a file that nobody who checks it can read; it does no
// harm to others, and appends cannot heal it. last is the sequence of the last
// chunk. The result is nil when the chunks are not simply all there in order:
// then they must be read.
func (a *Area) checkChunks(ctx context.Context, b *bucket, u *message.FileChunks, last uint64) (*prepared, error) {
	h, err := resume(u)
	if err != nil {
		return nil, err
	}
	c, err := a.js.CreateConsumer(ctx, b.reader.Name, jetstream.ConsumerConfig{
		FilterSubject: b.chunk(u.UploadID), HeadersOnly: true, AckPolicy: jetstream.AckNonePolicy,
		Replicas: 1, MemoryStorage: true, InactiveThreshold: requestLimit,
	})
	if err != nil {
		a.log.Debug("the chunks of an upload are read", "err", err)
		return nil, nil
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestLimit)
		defer cancel()
		if err := a.js.DeleteConsumer(ctx, b.reader.Name, c.CachedInfo().Name); err != nil {
			a.log.Debug("a consumer is left to its expiry", "err", err)
		}
	}()
	if c.CachedInfo().NumPending < uint64(u.Chunks) {
		return nil, nil
	}
	p := &prepared{id: u.UploadID, key: record.NewKey(), hash: h}
	for p.chunks < u.Chunks {
		batch, err := c.Fetch(min(u.Chunks-p.chunks, headerBatch), jetstream.FetchMaxWait(requestLimit))
		if err != nil {
			return nil, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
		}
		before := p.chunks
		for m := range batch.Messages() {
			if err := p.count(m, a.ChunkSize()); err != nil {
				if errors.Is(err, errDisorder) {
					return nil, nil
				}
				return nil, err
			}
		}
		if p.chunks == before {
			return nil, nil
		}
	}
	if p.tail != last {
		return nil, nil
	}
	if p.size != u.Size {
		return nil, errcode.Field("upload.size", "%d bytes were announced, %d were stored", u.Size, p.size)
	}
	return p, nil
}

const (
	headerSize   = "Nats-Msg-Size" // of the content, where only headers are sent
	headerBatch  = 512
	requestLimit = 5 * time.Second
)

// errDisorder is that a chunk is not the one that has its turn.
var errDisorder = errors.New("not the next chunk")

// count adds a chunk of at most so many bytes, of which only the headers are
// there. What the server says
// of it comes last in them.
func (p *prepared) count(m jetstream.Msg, most int) error {
	meta, err := m.Metadata()
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "unreadable answer of JetStream")
	}
	sizes := m.Headers().Values(headerSize)
	if len(sizes) == 0 {
		return errDisorder
	}
	size, err := strconv.ParseInt(sizes[len(sizes)-1], 10, 64)
	if err != nil || size <= 0 || size > int64(most) || m.Headers().Get(message.HeaderChunk) != strconv.Itoa(p.chunks) {
		return errDisorder
	}
	p.chunks, p.size, p.tail = p.chunks+1, p.size+size, meta.Sequence.Stream
	return nil
}

// resume takes up the client's running hash; it must end in the digest, after
// the announced number of bytes.
func resume(u *message.FileChunks) (hash.Hash, error) {
	fault := errcode.Field("upload.sha256State", "does not end in upload.sha256 after %d bytes", u.Size)
	state, err := base64.StdEncoding.DecodeString(u.SHA256State)
	h := sha256.New()
	m, ok := h.(encoding.BinaryUnmarshaler)
	if err != nil || !ok || m.UnmarshalBinary(state) != nil {
		return nil, fault
	}
	// A marshalled state ends with the number of bytes hashed.
	if binary.BigEndian.Uint64(state[len(state)-8:]) != uint64(u.Size) || hex.EncodeToString(h.Sum(nil)) != u.SHA256 {
		return nil, fault
	}
	return h, nil
}
