package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/pkg/tool"
)

// commitTimeout limits the commit of an upload when ctx has no deadline: the
// service looks at every chunk.
const commitTimeout = 2 * time.Minute

// Put replaces a file, or makes it, with what r gives, in constant memory.
// Nobody sees the file before all of it is there.
func (c *Client) Put(ctx context.Context, path string, r io.Reader) (tool.FileInfo, error) {
	return c.PutMode(ctx, path, r, message.ModeOverwrite)
}

// PutMode is Put for each of message's modes: what r gives is the file, is
// appended as a whole, or is the file if there is none.
func (c *Client) PutMode(ctx context.Context, path string, r io.Reader, mode string) (tool.FileInfo, error) {
	return c.PutIf(ctx, path, r, mode, nil)
}

// PutIf is PutMode for a file at a revision; 0 is that of one that does not
// exist. Else it is a conflict, whose details say which revision stands, and
// nothing is changed. nil stands for any revision.
func (c *Client) PutIf(ctx context.Context, path string, r io.Reader, mode string, revision *uint64) (tool.FileInfo, error) {
	if err := paths.Check(path); err != nil {
		return tool.FileInfo{}, err
	}
	first := make([]byte, min(int(bus.MaxBody(c.nc))/2, maxFirst))
	n, err := io.ReadFull(r, first)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return c.write(ctx, path, first[:n], mode, revision) // it fits one message
	case err != nil:
		return tool.FileInfo{}, fmt.Errorf("read the content of %q: %w", path, err)
	}
	return c.put(ctx, path, io.MultiReader(bytes.NewReader(first), r), 0, mode, revision)
}

// maxFirst is how much of a stream, in bytes, is read to see whether it is short.
const maxFirst = 64 << 10

// put uploads and commits; size is 0 when it is not known.
func (c *Client) put(ctx context.Context, path string, r io.Reader, size int64, mode string, revision *uint64) (tool.FileInfo, error) {
	var up message.FileUploadOpened
	if err := c.request(ctx, "upload", message.FileUpload{Path: path, Size: size}, &up); err != nil {
		return tool.FileInfo{}, err
	}
	if up.ChunkSize < 1 || int64(up.ChunkSize) > bus.MaxBody(c.nc) {
		return tool.FileInfo{}, errcode.New(errcode.Internal, "the files service asks for chunks of %d bytes", up.ChunkSize)
	}
	chunks, err := c.upload(ctx, up, r)
	if err != nil {
		return tool.FileInfo{}, fmt.Errorf("write %q: %w", path, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commitTimeout)
		defer cancel()
	}
	var w message.FileWritten
	q := message.FileWrite{Path: path, Mode: mode, IfRevision: revision}
	q.OpID = bus.OpID(ctx, "files.upload "+chunks.SHA256, c.tenant, q) // the upload's own id is another each time
	q.Upload = &chunks
	if err := c.request(ctx, "write", q, &w); err != nil {
		return tool.FileInfo{}, err
	}
	return c.written(ctx, w)
}

// upload publishes what r gives, in chunks, with a window of acknowledgements
// under way.
func (c *Client) upload(ctx context.Context, up message.FileUploadOpened, r io.Reader) (message.FileChunks, error) {
	chunks := message.FileChunks{UploadID: up.UploadID}
	js, err := jetstream.New(c.nc, jetstream.WithPublishAsyncTimeout(ackTimeout))
	if err != nil {
		return chunks, err
	}
	defer js.CleanupPublisher()
	to := subject.FilesChunk(c.tenant, up.UploadID)
	sum := sha256.New()
	window := make([]slot, max(uploadWindow/up.ChunkSize, 2))
	for {
		s := &window[chunks.Chunks%len(window)]
		if err := c.settle(ctx, to, s); err != nil {
			return chunks, err
		}
		if s.buf == nil {
			s.buf = make([]byte, up.ChunkSize)
		}
		n, err := io.ReadFull(r, s.buf)
		if n > 0 {
			sum.Write(s.buf[:n])
			s.publish(js, to, chunks.Chunks, n)
			chunks.Chunks++
			chunks.Size += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return chunks, fmt.Errorf("read the content: %w", err)
		}
	}
	for i := range window {
		if err := c.settle(ctx, to, &window[i]); err != nil {
			return chunks, err
		}
	}
	chunks.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if m, ok := sum.(encoding.BinaryMarshaler); ok {
		if state, err := m.MarshalBinary(); err == nil {
			chunks.SHA256State = base64.StdEncoding.EncodeToString(state)
		}
	}
	return chunks, nil
}

const (
	uploadWindow = 2 << 20 // bytes published and not yet acknowledged; more does not stay in a processor's cache
	ackTimeout   = 5 * time.Second
)

// slot is a chunk under way, and its buffer.
type slot struct {
	buf   []byte
	index int
	size  int
	ack   jetstream.PubAckFuture // nil: settled, or never published
	tried bool                   // published without ack, in vain
}

func (s *slot) publish(js jetstream.JetStream, to string, index, size int) {
	s.index, s.size = index, size
	m := nats.NewMsg(to)
	m.Header.Set(message.HeaderChunk, strconv.Itoa(index))
	m.Data = s.buf[:size]
	var err error
	s.ack, err = js.PublishMsgAsync(m)
	s.tried = err != nil
}

// settle waits until the slot's chunk is stored, and publishes it again, by
// itself, when its acknowledgement does not come. A chunk that is stored twice, or
// after later ones, is sorted out by the commit.
func (c *Client) settle(ctx context.Context, to string, s *slot) error {
	switch {
	case s.tried:
	case s.ack == nil:
		return nil
	default:
		select {
		case <-s.ack.Ok():
			s.ack = nil
			return nil
		case err := <-s.ack.Err():
			if err := refused(err); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.ack, s.tried = nil, false
	return c.chunk(ctx, to, s.index, s.buf[:s.size])
}

// JetStream's codes for a stream, or a server, that is full.
const (
	codeStreamFull = 10077
	codeServerFull = 10054
)

// refused is the error of a chunk that it would be in vain to publish again.
func refused(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && (api.ErrorCode == codeStreamFull || api.ErrorCode == codeServerFull):
		return errcode.Wrap(errcode.QuotaExceeded, err, "the tenant's file area is full: %v", err)
	case errors.Is(err, nats.ErrMaxPayload):
		return errcode.Wrap(errcode.TooLarge, err, "the chunk is larger than the server takes")
	}
	return nil
}

// chunk publishes one chunk and waits until it is stored.
func (c *Client) chunk(ctx context.Context, to string, index int, data []byte) error {
	for attempt := 0; ; attempt++ {
		err := bus.PublishChunk(ctx, c.nc, to, index, data)
		if err == nil || !errcode.From(err).Retryable || attempt == 3 || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond << attempt):
		}
	}
}
