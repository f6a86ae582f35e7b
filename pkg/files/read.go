package files

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/pkg/tool"
)

const (
	readTries    = 8 // of a file that keeps changing while it is read
	readParallel = 4 // pieces under way at once
)

// Read returns a file's content; exists is false, without an error, when there
// is none. It is one version's content, never a mixture; a file that changes
// faster than it can be read is a conflict.
func (c *Client) Read(ctx context.Context, path string) (content []byte, info tool.FileInfo, exists bool, err error) {
	if err := paths.Check(path); err != nil {
		return nil, tool.FileInfo{}, false, err
	}
	for range readTries {
		content, info, exists, err = c.readOnce(ctx, path)
		if !errors.Is(err, errcode.Conflict) {
			break
		}
	}
	return content, info, exists, err
}

func (c *Client) readOnce(ctx context.Context, path string) ([]byte, tool.FileInfo, bool, error) {
	first, data, err := c.piece(ctx, message.FileRead{Path: path})
	if err != nil || !first.Exists {
		return nil, tool.FileInfo{}, false, err
	}
	info, err := contentInfo(first)
	if err != nil {
		return nil, info, false, err
	}
	if first.Length >= first.Size {
		return data, info, true, checkDigest(first, sha256.Sum256(data))
	}
	// The first reply shows how much fits one message, and which version it is.
	content := make([]byte, first.Size)
	n := copy(content, data)
	if err := c.rest(ctx, first, content[n:], int64(n)); err != nil {
		return nil, tool.FileInfo{}, false, err
	}
	return content, info, true, checkDigest(first, sha256.Sum256(content))
}

// rest fills part, the content from byte off of the version that first is of:
// straight from where it stands, and what does not come that way through the
// service.
func (c *Client) rest(ctx context.Context, first message.FileContent, part []byte, off int64) error {
	have := 0
	_, err := c.readDirect(ctx, first, off, off+int64(len(part)), func(b []byte) error {
		have += copy(part[have:], b)
		return nil
	})
	if err != nil {
		return err
	}
	part, off = part[have:], off+int64(have)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readParallel)
	for step := max(first.Length, 1); len(part) > 0; {
		n := min(step, int64(len(part)))
		piece, at := part[:n], off
		g.Go(func() error { return c.fill(ctx, first, at, piece) })
		part, off = part[n:], off+n
	}
	return g.Wait()
}

// checkDigest compares what was read with the version's digest, when it has one.
func checkDigest(first message.FileContent, sum [sha256.Size]byte) error {
	if first.SHA256 != "" && first.SHA256 != hex.EncodeToString(sum[:]) {
		return errcode.New(errcode.Internal, "the content of %q at revision %d does not have its SHA-256", first.Path, first.Revision)
	}
	return nil
}

// fill reads part from byte off of the version that first is of.
func (c *Client) fill(ctx context.Context, first message.FileContent, off int64, part []byte) error {
	for len(part) > 0 {
		length := int64(len(part))
		_, data, err := c.piece(ctx, message.FileRead{Path: first.Path, Offset: off, Length: &length, Revision: &first.Revision})
		if err != nil {
			return err
		}
		if len(data) == 0 || len(data) > len(part) {
			return errcode.New(errcode.Internal, "the files service sent %d bytes instead of %d", len(data), length)
		}
		n := copy(part, data)
		part, off = part[n:], off+int64(n)
	}
	return nil
}

// piece reads as much as one message holds.
func (c *Client) piece(ctx context.Context, q message.FileRead) (message.FileContent, []byte, error) {
	q.Encoding = message.EncodingBase64
	var r message.FileContent
	if err := c.request(ctx, "read", q, &r); err != nil || !r.Exists {
		return r, nil, err
	}
	if r.Content == nil || r.Length == 0 && r.Offset < r.Size && (q.Length == nil || *q.Length > 0) {
		return r, nil, errcode.New(errcode.Internal, "the files service sent no content")
	}
	data, err := base64.StdEncoding.DecodeString(*r.Content)
	if err != nil || int64(len(data)) != r.Length {
		return r, nil, errcode.New(errcode.Internal, "the files service sent unreadable content")
	}
	return r, data, nil
}

// ReadAt returns up to length bytes from offset, of one version: fewer only at
// the file's end, none at or beyond it. exists is false, without an error, when
// there is no file.
func (c *Client) ReadAt(ctx context.Context, path string, offset, length int64) (content []byte, info tool.FileInfo, exists bool, err error) {
	if err := paths.Check(path); err != nil {
		return nil, tool.FileInfo{}, false, err
	}
	if offset < 0 || length < 0 {
		return nil, tool.FileInfo{}, false, errcode.Field("offset", "offset and length must not be negative")
	}
	length = min(length, math.MaxInt64-offset)
	for range readTries {
		content, info, exists, err = c.readAtOnce(ctx, path, offset, length)
		if !errors.Is(err, errcode.Conflict) {
			break
		}
	}
	return content, info, exists, err
}

func (c *Client) readAtOnce(ctx context.Context, path string, offset, length int64) ([]byte, tool.FileInfo, bool, error) {
	first, data, err := c.piece(ctx, message.FileRead{Path: path, Offset: offset, Length: &length})
	if beyondEnd(err) {
		info, exists, err := c.Stat(ctx, path)
		if err == nil && exists && info.Size > offset {
			err = errcode.New(errcode.Conflict, "%q grew while it was read", path)
		}
		return nil, info, exists, err
	}
	if err != nil || !first.Exists {
		return nil, tool.FileInfo{}, false, err
	}
	info, err := contentInfo(first)
	if err != nil {
		return nil, info, false, err
	}
	// The length comes from the caller: no more room than the file can fill.
	length = max(min(length, first.Size-offset), 0)
	if int64(len(data)) >= length {
		return data, info, true, nil
	}
	content := make([]byte, length)
	n := copy(content, data)
	rest := c.fill
	if length-int64(n) > first.Length {
		rest = func(ctx context.Context, first message.FileContent, off int64, part []byte) error {
			return c.rest(ctx, first, part, off)
		}
	}
	if err := rest(ctx, first, offset+int64(n), content[n:]); err != nil {
		return nil, tool.FileInfo{}, false, err
	}
	return content, info, true, nil
}

// beyondEnd tells whether the service refused an offset because the file ends
// before it.
func beyondEnd(err error) bool {
	var e *errcode.Error
	return errors.As(err, &e) && e.Code == errcode.InvalidRequest && e.Details != nil &&
		len(e.Details.Fields) == 1 && e.Details.Fields[0].Field == "offset"
}

func contentInfo(r message.FileContent) (tool.FileInfo, error) {
	t, err := modified(r.Modified)
	return tool.FileInfo{Path: r.Path, Size: r.Size, Modified: t, Revision: r.Revision}, err
}

// Get writes a file's content to w, in constant memory; exists is false,
// without an error, when there is none. It is one version's content, also while
// the file is appended to. A file that is replaced while it is read is a conflict;
// w then has a part of the version that is gone. Content that does not have the
// digest it was written with is internal.
func (c *Client) Get(ctx context.Context, path string, w io.Writer) (info tool.FileInfo, exists bool, err error) {
	return c.get(ctx, message.FileRead{Path: path}, w)
}

// GetVersion is Get for the current version or one that is kept; conflict when
// the file is not at that revision and does not keep it.
func (c *Client) GetVersion(ctx context.Context, path string, revision uint64, w io.Writer) (tool.FileInfo, error) {
	info, exists, err := c.get(ctx, message.FileRead{Path: path, Revision: &revision}, w)
	if err == nil && !exists {
		err = errcode.New(errcode.NotFound, "no file %q", path)
	}
	return info, err
}

func (c *Client) get(ctx context.Context, q message.FileRead, w io.Writer) (info tool.FileInfo, exists bool, err error) {
	path := q.Path
	if err := paths.Check(path); err != nil {
		return tool.FileInfo{}, false, err
	}
	first, data, err := c.piece(ctx, q)
	if err != nil || !first.Exists {
		return tool.FileInfo{}, false, err
	}
	if info, err = contentInfo(first); err != nil {
		return tool.FileInfo{}, false, err
	}
	sum := sha256.New()
	sink := func(part []byte) error {
		sum.Write(part)
		_, err := w.Write(part)
		return err
	}
	if err := sink(data); err != nil {
		return tool.FileInfo{}, false, err
	}
	off := int64(len(data))
	if off < first.Size {
		if off, err = c.readDirect(ctx, first, off, first.Size, sink); err != nil {
			return tool.FileInfo{}, false, err
		}
	}
	for off < first.Size {
		left := first.Size - off
		r, data, err := c.piece(ctx, message.FileRead{Path: path, Offset: off, Length: &left, Revision: &first.Revision})
		if err == nil && !r.Exists {
			err = errcode.New(errcode.Conflict, "%q was removed while it was read", path)
		}
		if err == nil {
			err = sink(data)
		}
		if err != nil {
			return tool.FileInfo{}, false, err
		}
		off += int64(len(data))
	}
	return info, true, checkDigest(first, [sha256.Size]byte(sum.Sum(nil)))
}
