package relabeling

import (
	"context"
	"slices"

	"github.com/toolbus/toolbus/pkg/tool"
)

type addArgs struct {
	Code string `json:"code" jsonschema:"one tracking code exactly as it was scanned, prefixes such as ]C1 included"`
}

type added struct {
	Code      string `json:"code"`      // as kept
	Count     int    `json:"count"`     // codes collected so far
	Duplicate bool   `json:"duplicate"` // it was there already
}

// AddTrackingCode collects one code. A code that is scanned twice counts once.
var AddTrackingCode = tool.New("addTrackingCode",
	"Adds one scanned tracking code to this chat's list of parcels to relabel. Call it once per code, as soon as the code is there, even if it looks like noise.",
	func(ctx context.Context, call *tool.Call, in addArgs) (tool.Result, error) {
		code := clean(in.Code)
		if err := check(code); err != nil {
			return tool.Fail("%v", err), nil
		}
		state := call.State(namespace)
		// The look before is for the wording only. Calls of one chat run in
		// parallel, so Append decides what is there already.
		before, err := tool.Get(ctx, state, keyCodes, []string{})
		if err != nil {
			return tool.Result{}, err
		}
		n, err := state.Append(ctx, keyCodes, code, tool.Unique())
		if err != nil {
			return tool.Result{}, err
		}
		out := added{Code: code, Count: n, Duplicate: slices.Contains(before, code)}
		if out.Duplicate {
			return tool.OK("%s was scanned before and counts once; %s so far", code, codes(n)).WithData(out), nil
		}
		return tool.OK("added %s; %s so far", code, codes(n)).WithData(out), nil
	})
