package area

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

// errVanished is that the chunks of a version went away while it was read.
var errVanished = errors.New("the version is gone")

// scan hands n bytes from byte off of a version to fn, in order and in parts.
func (a *Area) scan(ctx context.Context, b *bucket, r *record.Record, off, n int64, fn func([]byte) error) error {
	if n <= 0 {
		return nil
	}
	if r.Chunks == 1 && r.Tail > 0 {
		m, err := b.reader.DirectLast(ctx, b.chunk(r.ID))
		if err == nil && m.Seq == r.Tail && int64(len(m.Data)) == r.Size {
			return fn(m.Data[off : off+n])
		}
	}
	start := a.index.floor(r.ID, off)
	s := scanner{a: a, r: r, off: off, end: off + n, fn: fn, at: start.off, number: start.number, next: start.seq}
	for try := 0; ; try++ {
		err := b.reader.Walk(ctx, b.chunk(r.ID), s.next, s.end-s.at+1024, s.visit)
		if err != nil || s.at >= s.end {
			return err
		}
		// Chunks are missing: superseded meanwhile, or this replica is behind.
		now, err := a.load(ctx, b, r.Path)
		switch {
		case err != nil:
			return err
		case !now.Names(r.ID):
			return errVanished
		case try == 8:
			return damaged(r)
		}
		if err := pause(ctx, 5*time.Millisecond<<min(try, 5)); err != nil {
			return err
		}
	}
}

type scanner struct {
	a        *Area
	r        *record.Record
	off, end int64
	fn       func([]byte) error

	at     int64  // byte at which the next chunk begins
	number int    // of the next chunk
	next   uint64 // its sequence, or a lower one
}

func (s *scanner) visit(m stream.Msg) error {
	if s.number >= s.r.Chunks || s.r.Tail > 0 && m.Seq > s.r.Tail {
		return stream.Stop
	}
	// Our chunks are numbered, so that a missing one does not go unnoticed.
	if h := m.Header.Get(message.HeaderChunk); h != "" && h != strconv.Itoa(s.number) {
		return errVanished
	}
	if s.r.Tail > 0 {
		s.a.index.note(s.r.ID, place{number: s.number, seq: m.Seq, off: s.at})
	}
	size := int64(len(m.Data))
	if from, to := max(s.off, s.at), min(s.end, s.at+size); from < to {
		if err := s.fn(m.Data[from-s.at : to-s.at]); err != nil {
			return err
		}
	}
	s.at, s.number, s.next = s.at+size, s.number+1, m.Seq+1
	if s.at >= s.end {
		return stream.Stop
	}
	return nil
}

// Read answers a FileRead whose path is checked. The reply fits a message.
func (a *Area) Read(ctx context.Context, tenant string, q message.FileRead) (message.FileContent, error) {
	b := a.bucket(tenant)
	for try := 0; ; try++ {
		rec, err := a.settled(ctx, b, q.Path)
		if err != nil {
			return message.FileContent{}, err
		}
		if q.Revision != nil {
			if rec, err = pinned(rec, q); err != nil {
				return message.FileContent{}, err
			}
		}
		if !rec.Exists() {
			return message.FileContent{Path: q.Path}, nil
		}
		out, err := a.piece(ctx, b, rec, q)
		switch {
		case !errors.Is(err, errVanished):
			return out, err
		case try == 8:
			return message.FileContent{}, errcode.ConflictAt(rec.Current(), "%q changed while it was read", q.Path)
		}
	}
}

// pinned is the version of a file that q asks for: the current one, a kept one, or
// one that later appends left intact. When its size is forgotten, it is read as far as q
// says.
func pinned(rec *record.Record, q message.FileRead) (*record.Record, error) {
	revision := *q.Revision
	if rec.Current() == revision {
		return rec, nil
	}
	if v, ok := rec.At(revision); ok {
		return v.Record(rec.Path), nil
	}
	if !rec.Exists() || revision < rec.Born || revision > rec.Current() {
		return nil, errcode.ConflictAt(rec.Current(), "%q is not at revision %d, and keeps no version of it", rec.Path, revision)
	}
	old := *rec
	old.Revision, old.Same, old.Size, old.Digest = revision, 0, -1, nil
	for _, op := range rec.Ops {
		// Appends of one commit share a revision; the last one made it.
		if op.Revision == revision && op.Kind != record.KindDelete && op.Kind != record.KindMove {
			old.Size, old.Modified = op.Size, time.Unix(op.At, 0)
		}
	}
	if old.Size < 0 {
		if q.Length == nil {
			return nil, errcode.ConflictAt(rec.Current(), "the size of %q at revision %d is forgotten", rec.Path, revision)
		}
		old.Size = max(min(q.Offset+*q.Length, rec.Size), q.Offset)
	}
	return &old, nil
}

// pieceOverhead is room for the rest of a FileContent: a long path in JSON.
const pieceOverhead = 8 << 10

func (a *Area) piece(ctx context.Context, b *bucket, rec *record.Record, q message.FileRead) (message.FileContent, error) {
	out := message.FileContent{
		Exists: true, Path: q.Path, Encoding: q.Encoding, Offset: q.Offset,
		Size: rec.Size, Modified: rec.Modified.UTC().Format(time.RFC3339Nano), Revision: rec.Current(), SHA256: rec.SHA256(),
	}
	if q.Offset > rec.Size {
		return out, errcode.Field("offset", "is %d, beyond the end of the file (%d bytes)", q.Offset, rec.Size)
	}
	if deliverable(rec, q) {
		var err error
		out.Direct, err = a.deliver(ctx, b, rec, q)
		return out, err
	}
	budget := max(bus.MaxBody(a.nc)-pieceOverhead, 1024)
	most := budget * 3 / 4
	if c := int64(a.ChunkSize()); most > c {
		most -= most % c // whole chunks, so that none is read twice
	}
	n := min(rec.Size-q.Offset, most)
	short := n < rec.Size-q.Offset
	if q.Length != nil && *q.Length <= n {
		n, short = *q.Length, *q.Length < rec.Size-q.Offset
	}
	data := make([]byte, 0, n)
	err := a.scan(ctx, b, rec, q.Offset, n, func(part []byte) error {
		data = append(data, part...)
		return nil
	})
	if err != nil {
		return out, err
	}
	var content string
	if q.Encoding == message.EncodingBase64 {
		content = base64.StdEncoding.EncodeToString(data)
	} else {
		cut, ok := cutText(data, int(budget), short)
		if !ok {
			return out, errcode.Field("encoding", "%q is not UTF-8 text at byte %d; read it with encoding base64", q.Path, q.Offset+int64(cut))
		}
		data = data[:cut]
		content = string(data)
	}
	out.Content, out.Length = &content, int64(len(data))
	return out, nil
}

// cutText returns how much of data may be sent as text: at most budget bytes
// of JSON, cut between characters. short tells that the file goes on after
// data, which may then end within a character. ok is false for what is no text;
// cut then says where.
func cutText(data []byte, budget int, short bool) (cut int, ok bool) {
	used := 0
	for cut < len(data) {
		r, n := utf8.DecodeRune(data[cut:])
		if r == utf8.RuneError && n == 1 {
			if short && cut > 0 && !utf8.FullRune(data[cut:]) {
				return cut, true
			}
			return cut, false
		}
		cost := n
		switch {
		case r == '"' || r == '\\':
			cost = 2
		case r < ' ' || r == '\u2028' || r == '\u2029' || r == 0x7f:
			cost = 6
		}
		if used += cost; used > budget {
			return cut, true
		}
		cut += n
	}
	return cut, true
}

// Stat returns a file's particulars.
func (a *Area) Stat(ctx context.Context, tenant, path string) (message.FileInfo, error) {
	rec, err := a.settled(ctx, a.bucket(tenant), path)
	if err != nil || !rec.Exists() {
		return message.FileInfo{Path: path}, err
	}
	return info(rec), nil
}

func info(r *record.Record) message.FileInfo {
	return message.FileInfo{
		Exists: true, Path: r.Path, Size: r.Size, Revision: r.Current(),
		Modified: r.Modified.UTC().Format(time.RFC3339Nano), SHA256: r.SHA256(),
	}
}
