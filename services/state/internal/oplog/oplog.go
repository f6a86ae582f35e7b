// Package oplog keeps the ids of the recent operations on a stored message in
// a header of that message, each with its answer: a retry finds its id, has no
// second effect and gets the first answer. Since the log is written in the same
// compare-and-set as the value, the two never disagree.
package oplog

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"
)

// Header is the message header that holds a log.
const Header = "Toolbus-Ops"

// Bounds of a log. What is older or more is forgotten, the oldest first;
// MayHaveForgotten tells whether a retry is too late to be recognized.
const (
	Retention  = 2 * time.Minute
	MaxEntries = 256
	MaxBytes   = 8 << 10  // of the packed log
	MaxHeader  = 20 << 10 // of the header; a full batch of long answers may exceed MaxBytes
)

// ID identifies an operation: the first bytes of its opId's SHA-256.
type ID [9]byte

// Hash is the ID of an opId.
func Hash(opID string) ID {
	sum := sha256.Sum256([]byte(opID))
	return ID(sum[:9])
}

// Random is an ID for an operation without an opId.
func Random() ID {
	var id ID
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// Kind says what an operation was; 0 to 15. The values are stored: never
// renumber them.
type Kind byte

// Entry is one operation and its answer.
type Entry struct {
	ID       ID
	Kind     Kind
	Revision uint64        // that it was answered with
	At       time.Time     // when it was applied, to the millisecond
	TTL      time.Duration // life it gave the value from At on, to the millisecond; 0: none
	Answer   string        // the rest of the answer
}

// Log is the operations on one message, oldest first. The zero Log is empty.
// Not safe for concurrent use.
type Log struct {
	entries []*Entry
	index   map[ID]*Entry
}

// Find returns the entry of id, or nil.
func (l *Log) Find(id ID) *Entry { return l.index[id] }

// Len is the number of entries.
func (l *Log) Len() int { return len(l.entries) }

// Add appends an entry.
func (l *Log) Add(e *Entry) {
	if l.index == nil {
		l.index = make(map[ID]*Entry)
	}
	l.entries = append(l.entries, e)
	l.index[e.ID] = e
}

// Trim forgets what is out of bounds at now, but never the newest keep entries.
func (l *Log) Trim(now time.Time, keep int) {
	drop := max(0, len(l.entries)-max(MaxEntries, keep))
	for drop < len(l.entries)-keep && now.Sub(l.entries[drop].At) > Retention {
		drop++
	}
	size := 0
	for i := len(l.entries) - 1; i >= drop; i-- {
		if size += packedSize(l.entries[i]); size > MaxBytes && i < len(l.entries)-keep {
			drop = i + 1
		}
	}
	for _, e := range l.entries[:drop] {
		if l.index[e.ID] == e {
			delete(l.index, e.ID)
		}
	}
	l.entries = l.entries[drop:]
}

// MayHaveForgotten tells whether the log may have held an operation of since or
// later that it holds no more, because there were too many, or because it was
// too old when the newest was added. Of an empty log it knows nothing.
func (l *Log) MayHaveForgotten(since time.Time) bool {
	if len(l.entries) == 0 || l.entries[0].At.Before(since) {
		return false
	}
	if l.entries[len(l.entries)-1].At.Sub(since) > Retention {
		return true
	}
	size := 0
	for _, e := range l.entries {
		size += packedSize(e)
	}
	return len(l.entries) >= MaxEntries || size > MaxBytes/2
}

// packedSize bounds what an entry takes from above.
func packedSize(e *Entry) int { return len(ID{}) + 1 + 3 + 3 + 4 + 1 + len(e.Answer) }

// How an entry's revision is packed. The sequence of the message that carries
// the log is not known when it is written.
const (
	revZero  = iota // 0
	revHead         // the sequence of the message
	revBelow        // one less
	revDelta        // the difference to the last one packed so
)

// Pending stands for a revision of the message that is being written.
const (
	PendingHead  = ^uint64(0)     // its sequence
	PendingBelow = ^uint64(0) - 1 // one less
)

const version = 1

// Encode packs the log into a header value. Revisions may be pending.
func (l *Log) Encode() string {
	b := make([]byte, 0, 1+24*len(l.entries))
	b = append(b, version)
	var at, ttl, rev int64
	for _, e := range l.entries {
		code := byte(revDelta)
		switch e.Revision {
		case 0:
			code = revZero
		case PendingHead:
			code = revHead
		case PendingBelow:
			code = revBelow
		}
		b = append(b, e.ID[:]...)
		b = append(b, byte(e.Kind)&15|code<<4)
		if code == revDelta {
			b = binary.AppendVarint(b, int64(e.Revision)-rev)
			rev = int64(e.Revision)
		}
		b = binary.AppendVarint(b, e.At.UnixMilli()-at)
		at = e.At.UnixMilli()
		b = binary.AppendVarint(b, e.TTL.Milliseconds()-ttl)
		ttl = e.TTL.Milliseconds()
		b = binary.AppendUvarint(b, uint64(len(e.Answer)))
		b = append(b, e.Answer...)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// Supersede marks the entries from index from on, of the message being written,
// as followed by another change in the same message: the revision they are
// answered with must never be the current one, or a compare-and-set with it
// would not notice that change.
func (l *Log) Supersede(from int) {
	for _, e := range l.entries[from:] {
		if e.Revision == PendingHead {
			e.Revision = PendingBelow
		}
	}
}

// Settle replaces pending revisions once the message has its sequence.
func (l *Log) Settle(seq uint64) {
	for i := len(l.entries) - 1; i >= 0; i-- {
		switch e := l.entries[i]; e.Revision {
		case PendingHead:
			e.Revision = seq
		case PendingBelow:
			e.Revision = seq - 1
		}
	}
}

// ErrCorrupt is a header value that Encode cannot have written.
var ErrCorrupt = errors.New("corrupt " + Header + " header")

// Decode unpacks the header value of the message with sequence seq. An empty
// one is an empty log.
func Decode(header string, seq uint64) (Log, error) {
	var l Log
	if header == "" {
		return l, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil || len(b) == 0 || b[0] != version {
		return Log{}, ErrCorrupt
	}
	r := reader{b: b[1:]}
	var at, ttl, rev int64
	for len(r.b) > 0 {
		e := &Entry{}
		copy(e.ID[:], r.take(uint64(len(e.ID))))
		kind := r.take(1)
		if r.bad {
			break
		}
		e.Kind = Kind(kind[0] & 15)
		switch kind[0] >> 4 {
		case revZero:
		case revHead:
			e.Revision = seq
		case revBelow:
			e.Revision = seq - 1
		case revDelta:
			rev += r.varint()
			e.Revision = uint64(rev)
		default:
			r.bad = true
		}
		at += r.varint()
		e.At = time.UnixMilli(at)
		ttl += r.varint()
		e.TTL = time.Duration(ttl) * time.Millisecond
		e.Answer = string(r.take(r.uvarint()))
		if r.bad {
			break
		}
		l.Add(e)
	}
	if r.bad {
		return Log{}, ErrCorrupt
	}
	return l, nil
}

type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}
