package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// fileState is all that a file is to its clients.
type fileState struct {
	exists  bool
	content string
	// revision is the file's, when it is known; else it is above floor.
	revision, floor uint64
	appended        bool // by the last change
}

// at is the state when the service has said that the revision is n.
func (s fileState) at(n uint64) (fileState, bool) {
	switch {
	case !s.exists:
		return s, n == 0
	case s.revision != 0:
		return s, n == s.revision
	}
	s.revision = n
	return s, n > s.floor
}

type fileOp struct {
	kind       string // read, overwrite, append, create or delete
	content    string
	ifRevision *uint64
}

func (o fileOp) String() string {
	s := o.kind
	if o.ifRevision != nil {
		s += fmt.Sprintf(" if %d", *o.ifRevision)
	}
	return fmt.Sprintf("%s %q", s, o.content)
}

// fileAnswer is what the service said. The zero value is nothing: what was asked
// for may have happened or not.
type fileAnswer struct {
	said     bool
	conflict bool
	exists   bool // of a read; of a delete: there was a file
	content  string
	size     int64
	revision uint64
}

// fileModel is a file as design and contract describe it: operations happen one
// after the other, each at once.
var fileModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{fileState{}} },
	Step: func(state, input, output any) []any {
		s, op, out := state.(fileState), input.(fileOp), output.(fileAnswer)
		if op.kind == "read" {
			if out.exists != s.exists || out.content != s.content {
				return nil
			}
			if s, ok := s.at(out.revision); ok {
				return []any{s}
			}
			return nil
		}
		var states []any
		for _, applied := range s.apply(op, out) {
			states = append(states, applied)
		}
		if refused, ok := s.refuse(op, out); ok {
			states = append(states, refused)
		}
		return states
	},
	Equal:             func(a, b any) bool { return a.(fileState) == b.(fileState) },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v → %+v", in, out) },
}

// refuse is op refused: the condition does not hold. Without an answer that may
// be what happened.
func (s fileState) refuse(op fileOp, out fileAnswer) (fileState, bool) {
	if !out.said {
		return s, op.ifRevision != nil || op.kind == "create"
	}
	if !out.conflict {
		return s, false
	}
	s, ok := s.at(out.revision)
	if !ok {
		return s, false
	}
	return s, op.ifRevision != nil && *op.ifRevision != out.revision || op.kind == "create" && s.exists
}

// apply is what may come of op done; nothing when it cannot have been done.
func (s fileState) apply(op fileOp, out fileAnswer) []fileState {
	if out.conflict || op.kind == "create" && s.exists {
		return nil
	}
	if op.ifRevision != nil {
		var ok bool
		if s, ok = s.at(*op.ifRevision); !ok {
			return nil
		}
	}
	next := fileState{exists: true, content: op.content, floor: max(s.floor, s.revision)}
	switch op.kind {
	case "delete":
		switch {
		case out.said && out.exists != s.exists:
			return nil
		case !s.exists:
			return []fileState{s}
		}
		return []fileState{{floor: next.floor}}
	case "append":
		next.content, next.appended = s.content+op.content, op.ifRevision == nil
	}
	if !out.said {
		return []fileState{next}
	}
	if out.size != int64(len(next.content)) {
		return nil
	}
	// Appends that are committed together are answered with one less than the
	// file's revision, all but the last.
	var states []fileState
	if out.revision > next.floor {
		last := next
		last.revision = out.revision
		states = append(states, last)
	}
	if next.appended && (out.revision > next.floor || out.revision == next.floor && s.appended && s.revision == 0) {
		next.floor = out.revision
		states = append(states, next)
	}
	return states
}

// The model takes what may happen and refuses what may not.
func TestFileModel(t *testing.T) {
	rev := func(n uint64) *uint64 { return &n }
	appendA := fileOp{kind: "append", content: "a"}
	appendB := fileOp{kind: "append", content: "b"}
	read := fileOp{kind: "read"}
	holds := func(content string, revision uint64) fileAnswer {
		return fileAnswer{said: true, exists: true, content: content, revision: revision}
	}
	ok := func(size int64, revision uint64) fileAnswer {
		return fileAnswer{said: true, size: size, revision: revision}
	}
	type step struct {
		in  fileOp
		out fileAnswer
	}
	for name, c := range map[string]struct {
		want  porcupine.CheckResult
		steps []step // one after the other; what has no answer stays open
	}{
		"appends":                                {porcupine.Ok, []step{{appendA, ok(1, 5)}, {appendB, ok(2, 7)}, {read, holds("ab", 7)}}},
		"appends in one commit":                  {porcupine.Ok, []step{{appendA, ok(1, 4)}, {appendB, ok(2, 5)}, {read, holds("ab", 5)}}},
		"compare and set with what was followed": {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {appendB, ok(2, 5)}, {read, holds("ab", 5)}}},
		"a lost append":                          {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {appendB, ok(2, 7)}, {read, holds("b", 7)}}},
		"a doubled append":                       {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {read, holds("aa", 6)}}},
		"a stale read":                           {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {appendB, ok(2, 7)}, {read, holds("a", 5)}}},
		"an older revision":                      {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {fileOp{kind: "overwrite", content: "b"}, ok(1, 5)}}},
		"an open append":                         {porcupine.Ok, []step{{appendA, fileAnswer{}}, {read, holds("a", 5)}}},
		"an open append, not yet":                {porcupine.Ok, []step{{appendA, fileAnswer{}}, {read, fileAnswer{said: true}}, {read, holds("a", 5)}}},
		"an open append, taken back":             {porcupine.Illegal, []step{{appendA, fileAnswer{}}, {read, holds("a", 5)}, {read, fileAnswer{said: true}}}},
		"an open append, twice":                  {porcupine.Illegal, []step{{appendA, fileAnswer{}}, {read, holds("aa", 5)}}},
		"compare and set":                        {porcupine.Ok, []step{{appendA, ok(1, 5)}, {fileOp{kind: "overwrite", content: "c", ifRevision: rev(5)}, ok(1, 9)}, {read, holds("c", 9)}}},
		"compare and set, missed":                {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {fileOp{kind: "overwrite", content: "c", ifRevision: rev(4)}, ok(1, 9)}}},
		"refused":                                {porcupine.Ok, []step{{appendA, ok(1, 5)}, {fileOp{kind: "append", content: "c", ifRevision: rev(4)}, fileAnswer{said: true, conflict: true, revision: 5}}}},
		"refused without reason":                 {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {fileOp{kind: "append", content: "c", ifRevision: rev(5)}, fileAnswer{said: true, conflict: true, revision: 5}}}},
		"created twice":                          {porcupine.Illegal, []step{{fileOp{kind: "create", content: "a"}, ok(1, 5)}, {fileOp{kind: "create", content: "b"}, ok(1, 6)}}},
		"deleted":                                {porcupine.Ok, []step{{appendA, ok(1, 5)}, {fileOp{kind: "delete"}, fileAnswer{said: true, exists: true}}, {read, fileAnswer{said: true}}}},
		"deleted nothing":                        {porcupine.Illegal, []step{{appendA, ok(1, 5)}, {fileOp{kind: "delete"}, fileAnswer{said: true}}}},
	} {
		var ops []porcupine.Operation
		for i, s := range c.steps {
			end := int64(2*i + 1)
			if !s.out.said {
				end = math.MaxInt64
			}
			ops = append(ops, porcupine.Operation{ClientId: i, Input: s.in, Call: int64(2 * i), Output: s.out, Return: end})
		}
		if got := porcupine.CheckOperationsTimeout(fileModel.ToModel(), ops, time.Minute); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
