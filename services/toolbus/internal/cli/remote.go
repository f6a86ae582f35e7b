package cli

import (
	"context"
	"io"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/tool"
)

// remote is a tenant's files and ToolState as a mirror reads them.
type remote struct {
	nc     *nats.Conn
	tenant string
}

// Files lists every file.
func (r remote) Files(ctx context.Context) ([]message.FileInfo, error) {
	all, err := listFiles(ctx, r.nc, r.tenant, message.FileList{}, 0)
	return all.Files, err
}

// File writes a file's content to w.
func (r remote) File(ctx context.Context, path string, w io.Writer) (message.FileInfo, error) {
	return download(ctx, r.nc, r.tenant, path, w)
}

// Stat asks for one file's particulars.
func (r remote) Stat(ctx context.Context, path string) (message.FileInfo, error) {
	var info message.FileInfo
	err := bus.Retry(ctx, r.nc, subject.Files(r.tenant, "stat"), message.FileStat{Path: path}, &info)
	return info, err
}

// Documents lists every live ToolState document.
func (r remote) Documents(ctx context.Context) ([]message.ToolStateEntry, error) {
	return listDocuments(ctx, r.nc, r.tenant, message.ToolStateList{})
}

// Document reads one ToolState document.
func (r remote) Document(ctx context.Context, namespace, chat string) (message.ToolStateData, error) {
	var reply message.ToolStateData
	ref := message.ToolStateRef{ChatID: chat, Namespace: namespace}
	err := bus.Retry(ctx, r.nc, subject.ToolState(r.tenant, "all"), message.ToolStateAll{ToolStateRef: ref}, &reply)
	return reply, err
}

// listFiles follows the cursors until there are limit files, 0 for all. Cursor
// is set when more follow.
func listFiles(ctx context.Context, nc *nats.Conn, tenant string, q message.FileList, limit int) (message.FileListing, error) {
	found := message.FileListing{Files: []message.FileInfo{}}
	for {
		if limit > 0 {
			q.Limit = limit - len(found.Files)
		}
		var page message.FileListing
		if err := bus.Retry(ctx, nc, subject.Files(tenant, "list"), q, &page); err != nil {
			return found, err
		}
		found.Files = append(found.Files, page.Files...)
		if page.Cursor == "" || limit > 0 && len(found.Files) >= limit {
			found.Cursor = page.Cursor
			return found, nil
		}
		if page.Cursor == q.Cursor {
			return found, errcode.New(errcode.Internal, "the list of files does not move on")
		}
		q.Cursor = page.Cursor
	}
}

// listDocuments follows the cursors to the end.
func listDocuments(ctx context.Context, nc *nats.Conn, tenant string, req message.ToolStateList) ([]message.ToolStateEntry, error) {
	all, err := listSome(ctx, nc, tenant, req, 0)
	return all.Documents, err
}

// listSome follows the cursors until there are limit documents, 0 for all.
// Cursor is set when more follow.
func listSome(ctx context.Context, nc *nats.Conn, tenant string, req message.ToolStateList, limit int) (message.ToolStateListing, error) {
	const most = 1000 // of one page
	found := message.ToolStateListing{Documents: []message.ToolStateEntry{}}
	for {
		req.Limit = most
		if left := limit - len(found.Documents); limit > 0 {
			req.Limit = min(left, most)
		}
		var page message.ToolStateListing
		if err := bus.Retry(ctx, nc, subject.ToolState(tenant, "list"), req, &page); err != nil {
			return found, err
		}
		found.Documents = append(found.Documents, page.Documents...)
		if page.Cursor == "" || limit > 0 && len(found.Documents) >= limit {
			found.Cursor = page.Cursor
			return found, nil
		}
		if page.Cursor == req.Cursor {
			return found, errcode.New(errcode.Internal, "the list of documents does not move on")
		}
		req.Cursor = page.Cursor
	}
}

// download writes one version of a file to w, in pieces that fit a message. A
// file that changes meanwhile is a conflict; one that is missing has Exists
// false.
func download(ctx context.Context, nc *nats.Conn, tenant, path string, w io.Writer) (message.FileInfo, error) {
	info, exists, err := files.New(nc, tenant).Get(ctx, path, w)
	if err != nil || !exists {
		return message.FileInfo{Path: path}, err
	}
	return fileInfo(info), nil
}

// fileInfo is the contract's form of a file's particulars.
func fileInfo(f tool.FileInfo) message.FileInfo {
	return message.FileInfo{
		Exists: true, Path: f.Path, Size: f.Size, Revision: f.Revision,
		Modified: f.Modified.UTC().Format(time.RFC3339Nano),
	}
}
