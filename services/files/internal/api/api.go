// Package api is the files service's requests: it checks them and hands them
// to the file area and the blobs.
package api

import (
	"context"
	"encoding/base64"
	"math"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/services/files/internal/area"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// Area is a tenant's files.
type Area interface {
	Open(ctx context.Context, tenant, path string, size int64) (id string, err error)
	ChunkSize() int
	Apply(ctx context.Context, tenant string, c area.Change) (area.Outcome, error)
	Move(ctx context.Context, tenant string, m area.Move) (area.Outcome, error)
	Versions(ctx context.Context, tenant, path string) (message.FileVersionList, error)
	Read(ctx context.Context, tenant string, q message.FileRead) (message.FileContent, error)
	Stat(ctx context.Context, tenant, path string) (message.FileInfo, error)
	List(ctx context.Context, tenant string, q message.FileList) (message.FileListing, error)
}

// Blobs are spilled bodies.
type Blobs interface {
	Fetch(ctx context.Context, tenant, agent, id string, q message.FetchRequest) ([]byte, error)
}

// Endpoints are all requests of the service.
func Endpoints(a Area, b Blobs) []bus.Endpoint {
	h := &handlers{area: a, blobs: b}
	const queue = "files"
	ops := []struct {
		op string
		fn bus.Handler
	}{
		{"upload", op(h.upload)}, {"write", change(h.write)}, {"read", op(h.read)},
		{"stat", op(h.stat)}, {"list", op(h.list)}, {"delete", change(h.delete)}, {"move", change(h.move)},
		{"versions", op(h.versions)}, {"restore", change(h.restore)},
	}
	var out []bus.Endpoint
	for _, o := range ops {
		out = append(out, bus.Endpoint{Name: o.op, Subject: subject.Files("*", o.op), Queue: queue, Handler: o.fn})
	}
	for _, family := range []string{subject.FamilyAgent, subject.FamilyWorker} {
		out = append(out, bus.Endpoint{Name: "fetch-" + family, Subject: subject.Fetch(family, "*", "*", "*"), Queue: queue, Handler: h.fetch})
	}
	return out
}

// op reads the tenant from the subject and the request from the body.
func op[Q, R any](fn func(ctx context.Context, tenant string, q Q) (R, error)) bus.Handler {
	return change(func(ctx context.Context, tenant string, q Q, _ bool) (R, error) { return fn(ctx, tenant, q) })
}

// change is op for requests that change files; retried tells whether this one may
// have been received before.
func change[Q, R any](fn func(ctx context.Context, tenant string, q Q, retried bool) (R, error)) bus.Handler {
	return func(ctx context.Context, in *bus.Incoming) (any, error) {
		tenant, _, err := subject.ParseTenantOp(subject.FamilyFiles, in.Subject, false)
		if err != nil {
			return nil, err
		}
		var q Q
		if err := in.Decode(&q); err != nil {
			return nil, err
		}
		return fn(ctx, tenant, q, in.Age() > 0)
	}
}

type handlers struct {
	area  Area
	blobs Blobs
}

func (h *handlers) upload(ctx context.Context, tenant string, q message.FileUpload) (message.FileUploadOpened, error) {
	if err := paths.Check(q.Path); err != nil {
		return message.FileUploadOpened{}, err
	}
	if q.Size < 0 {
		return message.FileUploadOpened{}, errcode.Field("size", "must not be negative")
	}
	id, err := h.area.Open(ctx, tenant, q.Path, q.Size)
	if err != nil {
		return message.FileUploadOpened{}, err
	}
	return message.FileUploadOpened{UploadID: id, ChunkSize: h.area.ChunkSize()}, nil
}

func (h *handlers) write(ctx context.Context, tenant string, q message.FileWrite, retried bool) (message.FileWritten, error) {
	c, mode, err := asked(q)
	if err != nil {
		return message.FileWritten{}, err
	}
	c.Retried = retried
	out, err := h.area.Apply(ctx, tenant, c)
	if err != nil {
		return message.FileWritten{}, err
	}
	return message.FileWritten{Path: q.Path, Mode: mode, BytesWritten: out.Bytes, Size: out.Size, Revision: out.Revision}, nil
}

// asked checks a write.
func asked(q message.FileWrite) (c area.Change, mode string, err error) {
	c = area.Change{Path: q.Path, IfRevision: q.IfRevision, Upload: q.Upload}
	if err := paths.Check(q.Path); err != nil {
		return c, "", err
	}
	if c.OpID, err = opID(q.OpID); err != nil {
		return c, "", err
	}
	mode = q.Mode
	switch mode {
	case "", message.ModeOverwrite:
		c.Kind, mode = record.KindOverwrite, message.ModeOverwrite
	case message.ModeAppend:
		c.Kind = record.KindAppend
	case message.ModeCreate:
		c.Kind = record.KindCreate
	default:
		return c, "", errcode.Field("mode", "%q must be overwrite, append or create", q.Mode)
	}
	if q.Upload != nil {
		if q.Content != "" {
			return c, "", errcode.Field("content", "must be empty when upload is set")
		}
		return c, mode, checkUpload(q.Upload)
	}
	switch q.Encoding {
	case "", message.EncodingUTF8:
		c.Content = []byte(q.Content)
	case message.EncodingBase64:
		if c.Content, err = base64.StdEncoding.DecodeString(q.Content); err != nil {
			return c, "", errcode.Field("content", "is not valid base64: %v", err)
		}
	default:
		return c, "", errcode.Field("encoding", "%q must be utf8 or base64", q.Encoding)
	}
	return c, mode, nil
}

func checkUpload(u *message.FileChunks) error {
	if err := subject.CheckName("upload.uploadId", u.UploadID); err != nil {
		return err
	}
	switch {
	case u.Size < 0:
		return errcode.Field("upload.size", "must not be negative")
	case u.Chunks < 0 || u.Chunks > area.MaxChunks || int64(u.Chunks) > u.Size || u.Chunks == 0 && u.Size > 0:
		return errcode.Field("upload.chunks", "%d does not fit %d bytes", u.Chunks, u.Size)
	}
	return nil
}

// opID checks a client's operation id, and makes one where there is none, so
// that an attempt with a lost acknowledgement is recognised inside the service.
func opID(id string) (string, error) {
	if id == "" {
		return bus.NewOpID(), nil
	}
	return id, subject.CheckFree("opId", id)
}

func (h *handlers) read(ctx context.Context, tenant string, q message.FileRead) (message.FileContent, error) {
	if err := paths.Check(q.Path); err != nil {
		return message.FileContent{}, err
	}
	switch {
	case q.Encoding == "":
		q.Encoding = message.EncodingUTF8
	case q.Encoding != message.EncodingUTF8 && q.Encoding != message.EncodingBase64:
		return message.FileContent{}, errcode.Field("encoding", "%q must be utf8 or base64", q.Encoding)
	}
	switch {
	case q.Offset < 0:
		return message.FileContent{}, errcode.Field("offset", "must not be negative")
	case q.Length != nil && (*q.Length < 0 || *q.Length > math.MaxInt64-q.Offset):
		return message.FileContent{}, errcode.Field("length", "must not be negative, nor end beyond %d", int64(math.MaxInt64))
	}
	return h.area.Read(ctx, tenant, q)
}

func (h *handlers) stat(ctx context.Context, tenant string, q message.FileStat) (message.FileInfo, error) {
	if err := paths.Check(q.Path); err != nil {
		return message.FileInfo{}, err
	}
	return h.area.Stat(ctx, tenant, q.Path)
}

func (h *handlers) list(ctx context.Context, tenant string, q message.FileList) (message.FileListing, error) {
	if err := paths.CheckPrefix(q.Prefix); err != nil {
		return message.FileListing{}, err
	}
	if q.Limit < 0 {
		return message.FileListing{}, errcode.Field("limit", "must not be negative")
	}
	return h.area.List(ctx, tenant, q)
}

func (h *handlers) delete(ctx context.Context, tenant string, q message.FileDelete, retried bool) (message.FileDeleted, error) {
	if err := paths.Check(q.Path); err != nil {
		return message.FileDeleted{}, err
	}
	id, err := opID(q.OpID)
	if err != nil {
		return message.FileDeleted{}, err
	}
	out, err := h.area.Apply(ctx, tenant, area.Change{Path: q.Path, Kind: record.KindDelete, IfRevision: q.IfRevision, OpID: id, Retried: retried})
	return message.FileDeleted{Deleted: out.Deleted}, err
}

func (h *handlers) move(ctx context.Context, tenant string, q message.FileMove, retried bool) (message.FileMoved, error) {
	if err := paths.CheckMove(q.Path, q.To); err != nil {
		return message.FileMoved{}, err
	}
	id, err := opID(q.OpID)
	if err != nil {
		return message.FileMoved{}, err
	}
	out, err := h.area.Move(ctx, tenant, area.Move{Path: q.Path, To: q.To, Overwrite: q.Overwrite, IfRevision: q.IfRevision, OpID: id, Retried: retried})
	return message.FileMoved{Path: q.To, Size: out.Size, Revision: out.Revision}, err
}

func (h *handlers) versions(ctx context.Context, tenant string, q message.FileVersions) (message.FileVersionList, error) {
	if err := paths.Check(q.Path); err != nil {
		return message.FileVersionList{}, err
	}
	return h.area.Versions(ctx, tenant, q.Path)
}

func (h *handlers) restore(ctx context.Context, tenant string, q message.FileRestore, retried bool) (message.FileRestored, error) {
	if err := paths.Check(q.Path); err != nil {
		return message.FileRestored{}, err
	}
	if q.Revision == 0 {
		return message.FileRestored{}, errcode.Field("revision", "is required")
	}
	id, err := opID(q.OpID)
	if err != nil {
		return message.FileRestored{}, err
	}
	out, err := h.area.Apply(ctx, tenant, area.Change{Path: q.Path, Kind: record.KindRestore, Version: q.Revision, IfRevision: q.IfRevision, OpID: id, Retried: retried})
	return message.FileRestored{Path: q.Path, Size: out.Size, Revision: out.Revision}, err
}

func (h *handlers) fetch(ctx context.Context, in *bus.Incoming) (any, error) {
	s, err := subject.ParseAgent(in.Subject)
	if err != nil {
		return nil, err
	}
	var q message.FetchRequest
	if err := in.Decode(&q); err != nil {
		return nil, err
	}
	data, err := h.blobs.Fetch(ctx, s.Tenant, s.Agent, s.ID, q)
	return bus.Raw{Data: data}, err
}
