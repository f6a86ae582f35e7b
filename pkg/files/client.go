package files

import (
	"bytes"
	"context"
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Client is a tenant's file area; it implements tool.Files and is safe for
// concurrent use. Writes carry an operation id, so that one repeated after a
// lost reply happens once. Content of any size is carried; what does not fit a
// message goes in chunks.
type Client struct {
	nc     *nats.Conn
	tenant string
}

var _ tool.Files = (*Client)(nil)

// New makes a client; tenant must be a valid name.
func New(nc *nats.Conn, tenant string) *Client { return &Client{nc: nc, tenant: tenant} }

// Write replaces a file, or makes it.
func (c *Client) Write(ctx context.Context, path string, content []byte) (tool.FileInfo, error) {
	return c.write(ctx, path, content, message.ModeOverwrite, nil)
}

// Append adds to the end of a file, or makes it. Appends that run at the same
// time all land, each whole.
func (c *Client) Append(ctx context.Context, path string, content []byte) (tool.FileInfo, error) {
	return c.write(ctx, path, content, message.ModeAppend, nil)
}

// Create makes a file that must not exist; else conflict.
func (c *Client) Create(ctx context.Context, path string, content []byte) (tool.FileInfo, error) {
	return c.write(ctx, path, content, message.ModeCreate, nil)
}

// requestOverhead is room for the rest of a FileWrite: a long path in JSON.
const requestOverhead = 8 << 10

func (c *Client) write(ctx context.Context, path string, content []byte, mode string, revision *uint64) (tool.FileInfo, error) {
	if err := paths.Check(path); err != nil {
		return tool.FileInfo{}, err
	}
	q := message.FileWrite{Path: path, Mode: mode, IfRevision: revision}
	budget := int(bus.MaxBody(c.nc)) - requestOverhead
	switch {
	case plain(content) && len(content) <= budget:
		q.Content = string(content)
	case base64.StdEncoding.EncodedLen(len(content)) <= budget:
		q.Content, q.Encoding = base64.StdEncoding.EncodeToString(content), message.EncodingBase64
	default:
		return c.put(ctx, path, bytes.NewReader(content), int64(len(content)), mode, revision)
	}
	q.OpID = bus.OpID(ctx, "files.write", c.tenant, q)
	var r message.FileWritten
	if err := c.request(ctx, "write", q, &r); err != nil {
		return tool.FileInfo{}, err
	}
	return c.written(ctx, r)
}

// plain tells whether content is text that JSON does not blow up.
func plain(content []byte) bool {
	for _, b := range content {
		if b < ' ' || b == '"' || b == '\\' || b >= utf8.RuneSelf {
			return len(content) < 64<<10 && utf8.Valid(content)
		}
	}
	return true
}

// written is what a write answered as a FileInfo.
func (c *Client) written(_ context.Context, r message.FileWritten) (tool.FileInfo, error) {
	return tool.FileInfo{Path: r.Path, Size: r.Size, Modified: time.Now().UTC(), Revision: r.Revision}, nil
}

// Stat returns a file's particulars and whether it exists.
func (c *Client) Stat(ctx context.Context, path string) (tool.FileInfo, bool, error) {
	if err := paths.Check(path); err != nil {
		return tool.FileInfo{}, false, err
	}
	var r message.FileInfo
	if err := c.request(ctx, "stat", message.FileStat{Path: path}, &r); err != nil || !r.Exists {
		return tool.FileInfo{}, false, err
	}
	info, err := fileInfo(r)
	return info, err == nil, err
}

// List returns the files whose path starts with prefix, sorted by path.
func (c *Client) List(ctx context.Context, prefix string) ([]tool.FileInfo, error) {
	if err := paths.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	var out []tool.FileInfo
	for q := (message.FileList{Prefix: prefix}); ; {
		var r message.FileListing
		if err := c.request(ctx, "list", q, &r); err != nil {
			return nil, err
		}
		for _, f := range r.Files {
			info, err := fileInfo(f)
			if err != nil {
				return nil, err
			}
			out = append(out, info)
		}
		if r.Cursor == "" {
			return out, nil
		}
		q.Cursor = r.Cursor
	}
}

// Move gives a file another path and returns it as it stands there. It is
// not_found when there is no file, and conflict when there is one at to already.
func (c *Client) Move(ctx context.Context, from, to string) (tool.FileInfo, error) {
	return c.move(ctx, message.FileMove{Path: from, To: to})
}

// Replace is Move that replaces a file at to.
func (c *Client) Replace(ctx context.Context, from, to string) (tool.FileInfo, error) {
	return c.move(ctx, message.FileMove{Path: from, To: to, Overwrite: true})
}

func (c *Client) move(ctx context.Context, q message.FileMove) (tool.FileInfo, error) {
	if err := paths.CheckMove(q.Path, q.To); err != nil {
		return tool.FileInfo{}, err
	}
	q.OpID = bus.OpID(ctx, "files.move", c.tenant, q)
	var r message.FileMoved
	if err := c.request(ctx, "move", q, &r); err != nil {
		return tool.FileInfo{}, err
	}
	return tool.FileInfo{Path: r.Path, Size: r.Size, Modified: time.Now().UTC(), Revision: r.Revision}, nil
}

// Versions returns the versions of a file that can be read and restored, the
// current one first: none when there is no file.
func (c *Client) Versions(ctx context.Context, path string) ([]tool.FileInfo, error) {
	if err := paths.Check(path); err != nil {
		return nil, err
	}
	var r message.FileVersionList
	if err := c.request(ctx, "versions", message.FileVersions{Path: path}, &r); err != nil {
		return nil, err
	}
	out := make([]tool.FileInfo, len(r.Versions))
	for i, v := range r.Versions {
		t, err := modified(v.Modified)
		if err != nil {
			return nil, err
		}
		out[i] = tool.FileInfo{Path: path, Size: v.Size, Modified: t, Revision: v.Revision}
	}
	return out, nil
}

// Restore makes a kept version the content of a file again, with a new revision;
// not_found when it is not kept.
func (c *Client) Restore(ctx context.Context, path string, revision uint64) (tool.FileInfo, error) {
	if err := paths.Check(path); err != nil {
		return tool.FileInfo{}, err
	}
	var r message.FileRestored
	q := message.FileRestore{Path: path, Revision: revision}
	q.OpID = bus.OpID(ctx, "files.restore", c.tenant, q)
	if err := c.request(ctx, "restore", q, &r); err != nil {
		return tool.FileInfo{}, err
	}
	return tool.FileInfo{Path: r.Path, Size: r.Size, Modified: time.Now().UTC(), Revision: r.Revision}, nil
}

// Delete removes a file and reports whether it was there.
func (c *Client) Delete(ctx context.Context, path string) (bool, error) {
	if err := paths.Check(path); err != nil {
		return false, err
	}
	var r message.FileDeleted
	q := message.FileDelete{Path: path}
	q.OpID = bus.OpID(ctx, "files.delete", c.tenant, q)
	err := c.request(ctx, "delete", q, &r)
	return r.Deleted, err
}

func (c *Client) request(ctx context.Context, op string, in, out any) error {
	return bus.Retry(ctx, c.nc, subject.Files(c.tenant, op), in, out)
}

func fileInfo(f message.FileInfo) (tool.FileInfo, error) {
	info := tool.FileInfo{Path: f.Path, Size: f.Size, Revision: f.Revision}
	var err error
	info.Modified, err = modified(f.Modified)
	return info, err
}

func modified(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, errcode.Wrap(errcode.Internal, err, "unreadable time %q", s)
	}
	return t, nil
}
