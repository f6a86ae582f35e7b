package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"time"
)

// What a file remembers of its operations. The newest stand in the metadata
// itself, as long as OpAge; when they become too many the older half of them goes
// to a Page. A retry that comes within PageAge is recognised in any case.
const (
	MaxOps  = 256
	OpAge   = 10 * time.Minute
	PageAge = 3 * time.Minute
)

// Kinds of operations.
const (
	KindOverwrite = 'o'
	KindAppend    = 'a'
	KindCreate    = 'c'
	KindDelete    = 'd'
	KindRestore   = 'r'
	KindMove      = 'm' // remembered where the file was
	KindRefused   = 'x' // of any kind, but did nothing and never will: see Refused
)

// OpKey stands for an opId.
type OpKey [12]byte

// KeyOf makes an opId's key.
func KeyOf(opID string) OpKey {
	sum := sha256.Sum256([]byte(opID))
	return OpKey(sum[:12])
}

// Op is a finished operation with its answer. It travels in the metadata
// message that made it true, so both are there or neither.
type Op struct {
	Key      OpKey
	Kind     byte
	At       int64  // Unix seconds
	Bytes    int64  // written
	Size     int64  // of the file afterwards
	Revision uint64 // as answered; 0: by the message that carries it, see Answered
}

// Find returns the operation with a key.
func (r *Record) Find(key OpKey) (Op, bool) { return find(r.Ops, key) }

func find(ops []Op, key OpKey) (Op, bool) {
	for _, op := range ops {
		if op.Key == key {
			return op, true
		}
	}
	return Op{}, false
}

// Carry returns the operations that the next revision carries on, oldest first,
// with room for more new ones, and those that must go to a page before; nil for
// none.
func (r *Record) Carry(now time.Time, room int) (kept, spill []Op) {
	oldest := now.Add(-OpAge).Unix()
	for _, op := range r.Ops {
		if op.At >= oldest {
			kept = append(kept, op)
		}
	}
	if over := len(kept) + room - MaxOps; over > 0 {
		n := min(max(over, MaxOps/2), len(kept))
		kept, spill = kept[n:len(kept):len(kept)], kept[:n:n]
	}
	return kept, spill
}

// Page holds operations that have no place in the metadata any more. Pages do
// not change; each names the one before.
type Page struct {
	Prev uint64 // sequence; 0: none
	Ops  []Op
}

// Find returns the operation with a key.
func (p Page) Find(key OpKey) (Op, bool) { return find(p.Ops, key) }

// Newest is when the page's newest operation was, in Unix seconds.
func (p Page) Newest() int64 {
	if len(p.Ops) == 0 {
		return 0
	}
	return p.Ops[len(p.Ops)-1].At
}

// Encode writes the page as a message's body.
func (p Page) Encode() []byte {
	return []byte(strconv.FormatUint(p.Prev, 10) + " " + packOps(p.Ops))
}

// DecodePage reads it; what is unreadable is empty.
func DecodePage(b []byte) Page {
	prev, ops, _ := strings.Cut(string(b), " ")
	n, err := strconv.ParseUint(prev, 10, 64)
	if err != nil {
		return Page{}
	}
	return Page{Prev: n, Ops: unpackOps(ops, 0)}
}

// packOps writes operations compactly: many files carry some on every write.
func packOps(ops []Op) string {
	var b []byte
	for _, op := range ops {
		b = append(b, op.Key[:]...)
		b = append(b, op.Kind)
		b = binary.AppendUvarint(b, uint64(op.At))
		b = binary.AppendUvarint(b, uint64(op.Bytes))
		b = binary.AppendUvarint(b, uint64(op.Size))
		b = binary.AppendUvarint(b, op.Revision)
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// Answered is the revision that number i of n operations is answered with which
// one message committed. All but the last get one less: a compare-and-set with it
// then notices that something followed.
func Answered(i, n int, revision uint64) uint64 {
	if i < n-1 {
		return revision - 1
	}
	return revision
}

// unpackOps reads them; what is unreadable is left out. Operations of the
// carrying message are answered with its revision.
func unpackOps(s string, revision uint64) []Op {
	ops := unpack(s)
	if revision > 0 {
		Answer(ops, revision)
	}
	return ops
}

// Answer fills in what those of ops are answered with that a message commits as
// revision.
func Answer(ops []Op, revision uint64) {
	n := 0
	for _, op := range ops {
		if op.open() {
			n++
		}
	}
	own := 0
	for i := range ops {
		if ops[i].open() {
			ops[i].Revision = Answered(own, n, revision)
			own++
		}
	}
}

// open tells whether the revision of op's answer is that of the message which
// carries it.
func (op Op) open() bool { return op.Revision == 0 && op.Kind != KindRefused }

func unpack(s string) (ops []Op) {
	raw, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return nil
	}
	for b := bytes.NewReader(raw); b.Len() > 0; {
		var op Op
		if n, err := b.Read(op.Key[:]); err != nil || n != len(op.Key) {
			return ops
		}
		if op.Kind, err = b.ReadByte(); err != nil {
			return ops
		}
		var v [4]uint64
		for i := range v {
			if v[i], err = binary.ReadUvarint(b); err != nil {
				return ops
			}
		}
		op.At, op.Bytes, op.Size, op.Revision = int64(v[0]), int64(v[1]), int64(v[2]), v[3]
		ops = append(ops, op)
	}
	return ops
}
