package record

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"
)

// Version is an older version of a file that can still be read. Versions that
// only grew share a chunk id, each with its own size and tail.
type Version struct {
	Revision uint64
	Modified time.Time
	ID       string
	Size     int64
	Chunks   int
	Tail     uint64
	Digest   []byte
}

// version is what r is itself.
func (r *Record) version() Version {
	return Version{r.Current(), r.Modified, r.ID, r.Size, r.Chunks, r.Tail, r.Digest}
}

// Record is the version as one to read.
func (v Version) Record(path string) *Record {
	return &Record{
		Path: path, Revision: v.Revision, Born: v.Revision, Modified: v.Modified,
		ID: v.ID, Size: v.Size, Chunks: v.Chunks, Tail: v.Tail, Digest: v.Digest,
	}
}

// Versions are all versions that can be read, newest first: r itself and what it
// keeps.
func (r *Record) Versions() []Version {
	if !r.Exists() {
		return nil
	}
	return append([]Version{r.version()}, r.Kept...)
}

// At returns the version with a revision, r itself or one that it keeps.
func (r *Record) At(revision uint64) (Version, bool) {
	for _, v := range r.Versions() {
		if v.Revision == revision {
			return v, true
		}
	}
	return Version{}, false
}

// Keep makes r, which is about to become the version after the given ones, keep
// them, so that there are at most so many versions in all.
func (r *Record) Keep(all int, before ...*Record) {
	r.Kept = nil
	for _, b := range before {
		r.Kept = append(r.Kept, b.Versions()...)
	}
	r.trim(all)
}

// Inherit is Keep for a file that comes in the place of target, with the versions
// that it had.
func (r *Record) Inherit(all int, from, target *Record) {
	r.Kept = append(slices.Clone(from.Kept), target.Versions()...)
	r.trim(all)
}

func (r *Record) trim(all int) {
	slices.SortFunc(r.Kept, func(x, y Version) int { return -cmpRevision(x, y) })
	r.Kept = r.Kept[:min(len(r.Kept), max(all-1, 0))]
}

func cmpRevision(x, y Version) int {
	switch {
	case x.Revision < y.Revision:
		return -1
	case x.Revision > y.Revision:
		return 1
	}
	return 0
}

// Held are the chunk ids that r needs, with how many bytes of each.
func (r *Record) Held() map[string]int64 {
	held := map[string]int64{}
	for _, v := range r.Versions() {
		held[v.ID] = max(held[v.ID], v.Size)
	}
	return held
}

// Bytes is what r takes of a quota, with the versions that it keeps.
func (r *Record) Bytes() (n int64) {
	if len(r.Kept) == 0 {
		if r.Exists() {
			n = r.Size
		}
		return n
	}
	for _, size := range r.Held() {
		n += size
	}
	return n
}

// Names tells whether r needs a chunk id.
func (r *Record) Names(id string) bool {
	return r.Exists() && (r.ID == id || slices.ContainsFunc(r.Kept, func(v Version) bool { return v.ID == id }))
}

// packVersions writes versions compactly: every write carries them.
func packVersions(vs []Version) string {
	var b []byte
	str := func(s []byte) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	for _, v := range vs {
		b = binary.AppendUvarint(b, v.Revision)
		b = binary.AppendVarint(b, v.Modified.UnixNano())
		str([]byte(v.ID))
		for _, n := range []uint64{uint64(v.Size), uint64(v.Chunks), v.Tail} {
			b = binary.AppendUvarint(b, n)
		}
		str(v.Digest)
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// unpackVersions reads them. What is unreadable is an error: they say which
// chunks are needed.
func unpackVersions(s string) (vs []Version, err error) {
	raw, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return nil, err
	}
	b := bytes.NewReader(raw)
	num := func() (n uint64) {
		if err == nil {
			n, err = binary.ReadUvarint(b)
		}
		return n
	}
	str := func() []byte {
		n := num()
		if n > uint64(b.Len()) {
			err = errors.New("cut short")
		}
		if err != nil {
			return nil
		}
		s := make([]byte, n)
		_, err = io.ReadFull(b, s)
		return s
	}
	for b.Len() > 0 && err == nil {
		v := Version{Revision: num()}
		if err == nil {
			var at int64
			at, err = binary.ReadVarint(b)
			v.Modified = time.Unix(0, at)
		}
		v.ID = string(str())
		v.Size, v.Chunks, v.Tail = int64(num()), int(num()), num()
		v.Digest = str()
		vs = append(vs, v)
	}
	if err != nil {
		return nil, err
	}
	return vs, nil
}
