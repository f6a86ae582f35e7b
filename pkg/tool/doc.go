// Package tool is what a tool author imports: a Tool, what it gets (Call) and
// what it gives back (Result).
//
// Most tools are a Go function with an argument struct:
//
//	type addArgs struct {
//		Code string `json:"code" jsonschema:"the code as scanned, GS1 prefix included"`
//	}
//
//	var Add = tool.New("addTrackingCode", "Adds one scanned code to this chat's list.",
//		func(ctx context.Context, call *tool.Call, in addArgs) (tool.Result, error) {
//			n, err := call.State("relabeling").Append(ctx, "codes", in.Code)
//			if err != nil {
//				return tool.Result{}, err // not the model's fault: the runtime reports it
//			}
//			return tool.OK("%d codes so far", n), nil
//		})
//
// A tool may bring background checks, which run on a schedule and wake the agent
// when something happened; see Job and JobProvider.
//
// A tool reaches the world only through its Call: settings, scratch state,
// durable store, files, other tools, progress, log and clock. Tools never
// import each other, and this package never imports a transport: a tool can be
// tested with tooltest alone.
package tool
