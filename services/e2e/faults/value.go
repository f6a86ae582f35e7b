package faults

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// value is the state of one key of the store.
type value struct {
	text string
	rev  revision
}

// Values is the model of one key of the store. Its operations are get, set and
// delete.
func Values() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return value{rev: revision{none: true}} },
		Step: func(state, input, output any) (bool, any) {
			next, ok := state.(value).step(input.(Ask), output)
			return ok, next
		},
		DescribeOperation: func(in, out any) string { return describe(in.(Ask), out) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

func (s value) step(in Ask, output any) (value, bool) {
	out, answered := output.(Answer)
	if out.Missed {
		rev, ok := in.If.missed(s.rev, out.Revision)
		s.rev = rev
		return s, ok
	}
	rev, met := in.If.check(s.rev)
	if !met {
		return s, !answered
	}
	s.rev = rev
	switch in.Op {
	case "get":
		rev, ok := s.rev.is(out.Revision)
		return value{s.text, rev}, ok && out.Found == !s.rev.none && out.Value == s.text
	case "delete":
		return value{rev: s.rev.gone()}, !answered || out.Found == !s.rev.none
	}
	if !answered {
		return value{in.Value, s.rev.writtenUnseen()}, true
	}
	rev, ok := s.rev.written(out.Revision)
	return value{in.Value, rev}, ok
}
