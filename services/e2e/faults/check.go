package faults

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkWithin is how long one object's history may take to check.
const checkWithin = time.Minute

// Check tells, by an error, that an object's history is not linearizable, or that
// this could not be found out.
func Check(model porcupine.Model, object string, ops []porcupine.Operation) error {
	result, info := porcupine.CheckOperationsVerbose(model, ops, checkWithin)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%s: %d operations, %d of them unanswered, could not be checked in %s", object, len(ops), Unanswered(ops), checkWithin)
	}
	return fmt.Errorf("%s: %d operations, %d of them unanswered, are not linearizable:\n%s", object, len(ops), Unanswered(ops), explain(model, ops, info))
}

// shown is how many operations are shown of those that can be put in order, and of
// the others.
const shown = 12

// explain shows how far an order can be found: its last operations, the state
// after them, and what was answered next.
func explain(model porcupine.Model, ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var order []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, o := range partition {
			if len(o) > len(order) {
				order = o
			}
		}
	}
	var b strings.Builder
	line := func(op porcupine.Operation) {
		end := "never answered"
		if op.Return != math.MaxInt64 {
			end = fmt.Sprintf("to %.3f ms", ms(op.Return))
		}
		fmt.Fprintf(&b, "  %10.3f %s, caller %d: %s\n", ms(op.Call), end, op.ClientId, model.DescribeOperation(op.Input, op.Output))
	}
	type key struct {
		caller int
		call   int64
	}
	state, done := model.Init(), map[key]bool{}
	fmt.Fprintf(&b, "the end of the longest order, %d operations:\n", len(order))
	for i, op := range order {
		done[key{op.ClientId, op.Call}] = true
		_, state = model.Step(state, op.Input, op.Output)
		if i >= len(order)-shown {
			line(op)
		}
	}
	fmt.Fprintf(&b, "after which the state is %s, and these do not fit:\n", model.DescribeState(state))
	rest := slices.DeleteFunc(slices.Clone(ops), func(op porcupine.Operation) bool { return done[key{op.ClientId, op.Call}] })
	slices.SortFunc(rest, func(x, y porcupine.Operation) int { return cmp.Compare(x.Return, y.Return) })
	for _, op := range rest[:min(shown, len(rest))] {
		line(op)
	}
	called := 0
	for _, op := range rest {
		if op.Return == math.MaxInt64 {
			if called++; called <= shown {
				line(op)
			}
		}
	}
	return b.String()
}

func ms(ns int64) float64 { return float64(ns) / float64(time.Millisecond) }
