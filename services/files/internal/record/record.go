// Package record is the metadata of one file: the object store's own format,
// so that any NATS client reads the file, with what we need for appends and
// retries in its free-form metadata.
package record

import (
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Keys of the object's metadata.
const (
	keyState = "toolbus-sha256-state" // the running SHA-256, so that an append hashes only what it adds
	keyTail  = "toolbus-tail"         // sequence of the last chunk
	keyBorn  = "toolbus-born"         // revision since which content was only added; left out in that revision itself
	keyOps   = "toolbus-ops"          // recent operations, see Op
	keyPage  = "toolbus-page"         // sequence of the newest Page of older operations
	keyKey   = "toolbus-key"          // secret of the chunk id, see Group
	keySame  = "toolbus-same"         // revision and time, in Unix nanoseconds, of the version that is repeated
	keyKept  = "toolbus-versions"     // older versions that are kept
	keyMove  = "toolbus-move"         // the Move that the file is under
	keyFrom  = "toolbus-from"         // the Origin of a file that was moved
)

// Record is a file's metadata as it stands at one revision.
type Record struct {
	Path     string
	Revision uint64    // sequence of the metadata message; 0: never written
	Modified time.Time // when the version was stored
	Deleted  bool

	// Same is the revision that clients know this version by, when this message
	// only repeats it, since its chunks stand elsewhere or to fence off others; 0
	// when it is Revision.
	Same uint64

	ID     string // chunk id: the last token of the chunks' subject
	Size   int64  // bytes
	Chunks int
	Tail   uint64 // sequence of the last chunk; 0: no chunks
	Born   uint64 // revision since which content was only added
	Digest []byte // SHA-256 of the content
	Key    string // secret of ID

	Kept []Version // older versions, newest first

	Move *Move   // nil unless the file is being moved away
	From *Origin // of a file that was moved here; nil once it was written since

	// State is the running hash; nil when the object was written by another
	// client.
	State []byte
	Ops   []Op   // oldest first
	Page  uint64 // sequence of the newest Page; 0: none
}

// Exists tells whether there is a file.
func (r *Record) Exists() bool { return r.Revision > 0 && !r.Deleted }

// Current is the revision as clients see it: 0 when there is no file.
func (r *Record) Current() uint64 {
	if !r.Exists() {
		return 0
	}
	if r.Same > 0 {
		return r.Same
	}
	return r.Revision
}

// Growable tells whether an append can add chunks under ID. The content of a
// file that another client wrote must be copied first.
func (r *Record) Growable() bool { return r.State != nil && r.Key != "" }

// SHA256 is the content's digest in lower-case hex.
func (r *Record) SHA256() string { return hex.EncodeToString(r.Digest) }

// Hash returns a hash that continues the content's.
func (r *Record) Hash() (hash.Hash, error) {
	h := sha256.New()
	if r.State == nil {
		return h, nil
	}
	u, ok := h.(encoding.BinaryUnmarshaler)
	if !ok {
		return nil, errcode.New(errcode.Internal, "SHA-256 has no saved state")
	}
	return h, u.UnmarshalBinary(r.State)
}

// SetHash takes digest and state from h.
func (r *Record) SetHash(h hash.Hash) error {
	m, ok := h.(encoding.BinaryMarshaler)
	if !ok {
		return errcode.New(errcode.Internal, "SHA-256 has no saved state")
	}
	var err error
	r.State, err = m.MarshalBinary()
	r.Digest = h.Sum(nil)
	return err
}

const digestPrefix = "SHA-256="

// Encode writes the record as the object store's metadata message.
func (r *Record) Encode(bucket string) ([]byte, error) {
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: r.Path, Metadata: map[string]string{}},
		Bucket:     bucket, NUID: r.ID, Size: uint64(r.Size), Chunks: uint32(r.Chunks), Deleted: r.Deleted,
	}
	if !r.Deleted {
		info.Digest = digestPrefix + base64.URLEncoding.EncodeToString(r.Digest)
		info.Metadata[keyState] = base64.RawStdEncoding.EncodeToString(r.State)
		info.Metadata[keyTail] = strconv.FormatUint(r.Tail, 10)
		if r.Key != "" {
			info.Metadata[keyKey] = r.Key
		}
		if r.Same > 0 {
			info.Metadata[keySame] = fmt.Sprintf("%d %d", r.Same, r.Modified.UnixNano())
		}
		if r.Born > 0 {
			info.Metadata[keyBorn] = strconv.FormatUint(r.Born, 10)
		}
		if len(r.Kept) > 0 {
			info.Metadata[keyKept] = packVersions(r.Kept)
		}
		if r.Move != nil {
			info.Metadata[keyMove] = r.Move.pack()
		}
		if r.From != nil {
			info.Metadata[keyFrom] = r.From.pack()
		}
	}
	if len(r.Ops) > 0 {
		info.Metadata[keyOps] = packOps(r.Ops)
	}
	if r.Page > 0 {
		info.Metadata[keyPage] = strconv.FormatUint(r.Page, 10)
	}
	return json.Marshal(info)
}

// Decode reads a metadata message.
func Decode(data []byte, revision uint64, modified time.Time) (*Record, error) {
	var info jetstream.ObjectInfo
	err := json.Unmarshal(data, &info)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "unreadable file metadata at revision %d", revision)
	}
	r := &Record{
		Path: info.Name, Revision: revision, Modified: modified, Deleted: info.Deleted,
		ID: info.NUID, Size: int64(info.Size), Chunks: int(info.Chunks), Born: revision,
	}
	if d, ok := strings.CutPrefix(info.Digest, digestPrefix); ok {
		r.Digest, _ = base64.URLEncoding.DecodeString(d)
	}
	r.Tail, _ = strconv.ParseUint(info.Metadata[keyTail], 10, 64)
	if b, err := strconv.ParseUint(info.Metadata[keyBorn], 10, 64); err == nil {
		r.Born = b
	}
	var same, at int64
	if n, err := fmt.Sscanf(info.Metadata[keySame], "%d %d", &same, &at); err == nil && n == 2 && same > 0 {
		r.Same, r.Modified = uint64(same), time.Unix(0, at)
	}
	r.Page, _ = strconv.ParseUint(info.Metadata[keyPage], 10, 64)
	r.Key = info.Metadata[keyKey]
	if r.Kept, err = unpackVersions(info.Metadata[keyKept]); err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "unreadable versions of a file at revision %d", revision)
	}
	if r.Move, err = unpackMove(info.Metadata[keyMove]); err == nil {
		r.From, err = unpackOrigin(info.Metadata[keyFrom])
	}
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "unreadable move of a file at revision %d", revision)
	}
	r.Ops = unpackOps(info.Metadata[keyOps], revision)
	// An unreadable state is none: the next append copies the file and makes one.
	if s, err := base64.RawStdEncoding.DecodeString(info.Metadata[keyState]); err == nil && len(s) > 0 {
		r.State = s
		if _, err := r.Hash(); err != nil || (r.Tail == 0) != (r.Chunks == 0) {
			r.State = nil
		}
	}
	return r, nil
}
