package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/pkg/tool"
)

// commitTimeout limits the commit of an upload when ctx has no deadline: the
// service reads the whole of it once.
const commitTimeout = 2 * time.Minute

// Put replaces a file, or makes it, with what r gives, in constant memory.
// Nobody sees the file before all of it is there.
func (c *Client) Put(ctx context.Context, path string, r io.Reader) (tool.FileInfo, error) {
	if err := paths.Check(path); err != nil {
		return tool.FileInfo{}, err
	}
	return c.put(ctx, path, r, 0, message.ModeOverwrite)
}

// put uploads and commits; size is 0 when it is not known.
func (c *Client) put(ctx context.Context, path string, r io.Reader, size int64, mode string) (tool.FileInfo, error) {
	var up message.FileUploadOpened
	if err := c.request(ctx, "upload", message.FileUpload{Path: path, Size: size}, &up); err != nil {
		return tool.FileInfo{}, err
	}
	if up.ChunkSize < 1 || int64(up.ChunkSize) > bus.MaxBody(c.nc) {
		return tool.FileInfo{}, errcode.New(errcode.Internal, "the files service asks for chunks of %d bytes", up.ChunkSize)
	}
	chunks := message.FileChunks{UploadID: up.UploadID}
	to := subject.FilesChunk(c.tenant, up.UploadID)
	sum := sha256.New()
	buf := make([]byte, up.ChunkSize)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			sum.Write(buf[:n])
			if err := c.chunk(ctx, to, chunks.Chunks, buf[:n]); err != nil {
				return tool.FileInfo{}, err
			}
			chunks.Chunks++
			chunks.Size += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return tool.FileInfo{}, fmt.Errorf("read the content of %q: %w", path, err)
		}
	}
	chunks.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commitTimeout)
		defer cancel()
	}
	var w message.FileWritten
	if err := c.request(ctx, "write", message.FileWrite{Path: path, Mode: mode, Upload: &chunks, OpID: bus.NewOpID()}, &w); err != nil {
		return tool.FileInfo{}, err
	}
	return c.written(ctx, w)
}

// chunk publishes one chunk. One that is published again after a lost
// acknowledgement is sorted out by the commit.
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
