package faults

import (
	"fmt"
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

// shown is how many operations before and after the one that does not fit are
// shown.
const shown = 12

// explain shows the operations around the first one that no order explains.
func explain(model porcupine.Model, ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := 0
	for _, partition := range info.PartialLinearizations() {
		for _, order := range partition {
			longest = max(longest, len(order))
		}
	}
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	fmt.Fprintf(&b, "at most %d can be put in order; those around:\n", longest)
	for _, op := range ops[max(0, min(longest, len(ops))-shown):min(len(ops), longest+shown)] {
		fmt.Fprintf(&b, "  %9.3f to %9.3f ms, caller %d: %s\n", ms(op.Call), ms(op.Return), op.ClientId, model.DescribeOperation(op.Input, op.Output))
	}
	return b.String()
}

func ms(ns int64) float64 { return float64(ns) / float64(time.Millisecond) }
