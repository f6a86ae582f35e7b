package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// DefaultMaxSpill is the largest body, in bytes, of a tool call's arguments or
// result.
const DefaultMaxSpill = 16 << 20

// Spill carries bodies larger than max_payload between the two ends of a tool
// call: the sender stores them in chunks, the receiver fetches them.
type Spill struct {
	Family string // subject.FamilyAgent or FamilyWorker: whose subjects this side may use
	Tenant string
	Agent  string
	Max    int64 // bytes; 0: DefaultMaxSpill
}

const spillParallel = 8 // chunks under way at once

// Fits tells whether a body of a size, in bytes, goes as it is: Out leaves it
// alone.
func (s Spill) Fits(nc *nats.Conn, size int) bool {
	return int64(size) <= min(MaxBody(nc), s.limit())
}

// Out stores m's body as a blob when it does not fit one message, and puts the
// blob's description in its place.
func (s Spill) Out(ctx context.Context, nc *nats.Conn, m *nats.Msg) error {
	if s.Fits(nc, len(m.Data)) {
		return nil
	}
	b, err := s.Store(ctx, nc, m.Data)
	if err != nil {
		return err
	}
	desc, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	m.Header.Set(message.HeaderBlob, string(desc))
	m.Data = nil
	return nil
}

// Store stores a body of at least one byte as a blob and returns the blob's
// description.
func (s Spill) Store(ctx context.Context, nc *nats.Conn, body []byte) (*message.Blob, error) {
	size := int64(len(body))
	if limit := s.limit(); size > limit {
		return nil, errcode.OverLimit(errcode.TooLarge, limit, size, "the body is %d bytes, at most %d are allowed", size, limit)
	}
	chunk := MaxBody(nc)
	sum := sha256.Sum256(body)
	b := &message.Blob{ID: uuid.NewString(), Size: size, Chunks: int((size + chunk - 1) / chunk), SHA256: hex.EncodeToString(sum[:])}
	to := subject.Blob(s.Family, s.Tenant, s.Agent, b.ID)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(spillParallel)
	for i := range b.Chunks {
		g.Go(func() error {
			part := body[int64(i)*chunk : min(size, int64(i+1)*chunk)]
			return PublishChunk(ctx, nc, to, i, part)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return b, nil
}

// In returns a message's body, fetched when it was spilled.
func (s Spill) In(ctx context.Context, nc *nats.Conn, header nats.Header, data []byte) ([]byte, error) {
	desc := ""
	if header != nil {
		desc = header.Get(message.HeaderBlob)
	}
	if desc == "" {
		return data, nil
	}
	return s.fetch(ctx, nc, desc)
}

// fetch returns the body that desc, a message.Blob, describes.
func (s Spill) fetch(ctx context.Context, nc *nats.Conn, desc string) ([]byte, error) {
	var b message.Blob
	if err := json.Unmarshal([]byte(desc), &b); err != nil {
		return nil, errcode.Field(message.HeaderBlob, "is not a blob description")
	}
	if err := subject.CheckName("blobId", b.ID); err != nil {
		return nil, err
	}
	if limit := s.limit(); b.Size > limit {
		return nil, errcode.OverLimit(errcode.TooLarge, limit, b.Size, "the body is %d bytes, at most %d are allowed", b.Size, limit)
	}
	if b.Chunks < 1 || b.Chunks > message.MaxBlobChunks || b.Size < int64(b.Chunks) {
		return nil, errcode.Field(message.HeaderBlob, "names %d chunks for %d bytes", b.Chunks, b.Size)
	}
	from := subject.Fetch(s.Family, s.Tenant, s.Agent, b.ID)
	parts := make([][]byte, b.Chunks)
	var fetched atomic.Int64 // what the chunks really hold is the sender's word too
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(spillParallel)
	for i := range b.Chunks {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err() // another chunk failed
			}
			m, err := NewMsg(from, message.FetchRequest{Chunk: i})
			if err != nil {
				return err
			}
			reply, err := RequestMsg(ctx, nc, m)
			if err != nil {
				return fmt.Errorf("fetch the body's chunk %d: %w", i, err)
			}
			if fetched.Add(int64(len(reply.Data))) > b.Size {
				return errcode.Field(message.HeaderBlob, "the chunks hold more than the %d bytes it names", b.Size)
			}
			parts[i] = reply.Data
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	body := make([]byte, 0, b.Size)
	for _, p := range parts {
		body = append(body, p...)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != b.SHA256 {
		return nil, errcode.Field(message.HeaderBlob, "the fetched body has another SHA-256")
	}
	return body, nil
}

func (s Spill) limit() int64 {
	if s.Max == 0 {
		return DefaultMaxSpill
	}
	return s.Max
}

// PublishChunk publishes one chunk to a subject that a stream captures, and
// waits for the stream's acknowledgement.
func PublishChunk(ctx context.Context, nc *nats.Conn, to string, index int, data []byte) error {
	m := nats.NewMsg(to)
	m.Header.Set(message.HeaderChunk, strconv.Itoa(index))
	m.Data = data
	reply, err := RequestMsg(ctx, nc, m)
	if err != nil {
		return fmt.Errorf("store chunk %d: %w", index, err)
	}
	var ack struct {
		Stream string `json:"stream"`
		Error  *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(reply.Data, &ack); {
	case err != nil || ack.Stream == "" && ack.Error == nil:
		return errcode.New(errcode.Internal, "store chunk %d: unreadable acknowledgement", index)
	case ack.Error != nil:
		return errcode.New(errcode.Unavailable, "store chunk %d: %s", index, ack.Error.Description)
	}
	return nil
}
