package record

import (
	"encoding/json"
	"errors"
)

// Move says that a file is about to stand under another path. It is written
// where the file stands, and takes effect with the message at To that names it as
// its Origin; until then the file is where it was. Whoever finds it can finish
// it. It is off when anything else has become To's version instead.
type Move struct {
	ID     string // of this move alone
	To     string // path
	Expect uint64 // revision of To that the moved file follows; 0: none
	Op     Op     // with its answer, but for the revision
}

// Origin is the Move that brought a file where it stands.
type Origin struct {
	ID   string `json:"id"`
	Path string `json:"path"` // where the file was
}

// Moved tells whether target is what m, found at path from, makes of it.
func (m *Move) Moved(from string, target *Record) bool {
	return target.From != nil && *target.From == Origin{ID: m.ID, Path: from}
}

// packedMove is a Move in metadata.
type packedMove struct {
	ID     string `json:"id"`
	To     string `json:"to"`
	Expect uint64 `json:"expect"`
	Op     string `json:"op"`
}

func (m *Move) pack() string { return packJSON(packedMove{m.ID, m.To, m.Expect, packOps([]Op{m.Op})}) }

func (o *Origin) pack() string { return packJSON(o) }

// packJSON writes what consists of strings and numbers.
func packJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func unpackMove(s string) (*Move, error) {
	if s == "" {
		return nil, nil
	}
	var p packedMove
	if err := json.Unmarshal([]byte(s), &p); err != nil {
		return nil, err
	}
	ops := unpackOps(p.Op, 0)
	if len(ops) != 1 || p.ID == "" || p.To == "" {
		return nil, errors.New("incomplete")
	}
	return &Move{ID: p.ID, To: p.To, Expect: p.Expect, Op: ops[0]}, nil
}

func unpackOrigin(s string) (*Origin, error) {
	if s == "" {
		return nil, nil
	}
	o := &Origin{}
	return o, json.Unmarshal([]byte(s), o)
}
