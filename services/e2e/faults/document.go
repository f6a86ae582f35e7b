package faults

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Keys of the documents in the scenarios.
const (
	KeyList = "list" // appended to
	KeyN    = "n"    // incremented
	KeyA    = "a"    // set, updated and deleted
	KeyB    = "b"
)

// Ask is a request on a document.
type Ask struct {
	Op     string // as on the wire
	Key    string
	Value  string // set, append, update: a JSON value
	By     int64  // increment
	Delete string // update: a key
	If     Condition
}

// Answer is what was answered.
type Answer struct {
	Missed   bool // conflict; Revision is the current one
	Found    bool // get, all; also deleted and cleared
	Value    string
	Number   int64 // append: the length; increment: the sum
	Revision uint64
	All      Data // all
}

// describe shows a request and what was answered on a line.
func describe(in Ask, output any) string {
	s := strings.TrimSpace(in.Op + " " + in.Key)
	if in.Value != "" {
		s += "=" + in.Value
	}
	if in.By != 0 {
		s += fmt.Sprintf(" by %d", in.By)
	}
	if in.Delete != "" {
		s += ", deletes " + in.Delete
	}
	if in.If.Set {
		s += fmt.Sprintf(", if at %d", in.If.Revision)
	}
	out, answered := output.(Answer)
	switch {
	case !answered:
		return s + " -> ?"
	case out.Missed:
		return s + fmt.Sprintf(" -> is at %d", out.Revision)
	}
	return s + fmt.Sprintf(" -> %t %q %d at %d, %+v", out.Found, out.Value, out.Number, out.Revision, out.All)
}

// Data is a document's content: JSON values by key, "" for none.
type Data struct {
	List   string // its elements, each with a comma before it
	Length int64
	N      string
	A, B   string
}

func (d Data) empty() bool { return d == (Data{}) }

// get returns a key's value.
func (d Data) get(key string) string {
	switch key {
	case KeyList:
		if d.Length == 0 {
			return ""
		}
		return "[" + d.List[1:] + "]"
	case KeyN:
		return d.N
	case KeyA:
		return d.A
	default:
		return d.B
	}
}

// with returns d with another value under KeyA or KeyB.
func (d Data) with(key, value string) Data {
	if key == KeyA {
		d.A = value
	} else {
		d.B = value
	}
	return d
}

// without returns d without a key.
func (d Data) without(key string) Data {
	switch key {
	case KeyList:
		d.List, d.Length = "", 0
	case KeyN:
		d.N = ""
	default:
		d = d.with(key, "")
	}
	return d
}

// document is the model's state.
type document struct {
	data Data
	rev  revision
}

// Documents is the model of one document.
func Documents() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return document{rev: revision{none: true}} },
		Step: func(state, input, output any) (bool, any) {
			next, ok := state.(document).step(input.(Ask), output)
			return ok, next
		},
		DescribeOperation: func(in, out any) string { return describe(in.(Ask), out) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// step returns the state after a request, and whether it can have been answered
// so.
func (s document) step(in Ask, output any) (document, bool) {
	if _, ok := output.(Unknown); ok {
		rev, met := in.If.check(s.rev)
		if !met {
			return s, true
		}
		next, _ := document{s.data, rev}.apply(in)
		if next.rev == (revision{}) { // written
			next.rev = rev.writtenUnseen()
		}
		return next, true
	}
	out := output.(Answer)
	if out.Missed {
		rev, ok := in.If.missed(s.rev, out.Revision)
		s.rev = rev
		return s, ok
	}
	var ok bool
	if s.rev, ok = in.If.check(s.rev); !ok {
		return s, false
	}
	next, want := s.apply(in)
	if next.rev == (revision{}) {
		next.rev, ok = s.rev.written(out.Revision)
	} else {
		next.rev, ok = next.rev.is(out.Revision)
	}
	if in.Op == "clear" { // tells no revision
		ok = true
	}
	out.Revision = 0
	return next, ok && out == want
}

// apply returns the state after a request and its answer but for the revision. A
// zero revision stands for the one that the write gets.
func (s document) apply(in Ask) (document, Answer) {
	next, out := s, Answer{}
	switch in.Op {
	case "get":
		out.Value = s.data.get(in.Key)
		out.Found = out.Value != ""
		return s, out
	case "all":
		return s, Answer{Found: !s.rev.none, All: s.data}
	case "clear":
		return document{rev: s.rev.gone()}, Answer{Found: !s.rev.none}
	case "set":
		next.data = s.data.with(in.Key, in.Value)
	case "update":
		next.data = s.data.with(in.Key, in.Value).without(in.Delete)
	case "append":
		next.data.List += "," + in.Value
		next.data.Length++
		out.Number = next.data.Length
	case "increment":
		old, _ := strconv.ParseInt(s.data.N, 10, 64) // "" is 0
		out.Number = old + in.By
		next.data.N = strconv.FormatInt(out.Number, 10)
	case "delete":
		if s.rev.none {
			return s, out
		}
		out.Found = s.data.get(in.Key) != ""
		next.data = s.data.without(in.Key)
	}
	if next.data.empty() {
		return document{rev: s.rev.gone()}, out
	}
	next.rev = revision{}
	return next, out
}
