package members

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/toolbus/toolbus/pkg/tool"
)

type logArgs struct {
	Event   string         `json:"event" jsonschema:"what happened, in a few words"`
	Details map[string]any `json:"details,omitempty" jsonschema:"anything worth keeping with it"`
}

// LogEvent adds a line to logs/<YYYY-MM>.log: the time in UTC, a tab, and the
// call's arguments as JSON. Calls at the same moment all get their line.
var LogEvent = tool.New("logEvent", "Notes an event in the club's log.",
	func(ctx context.Context, call *tool.Call, in logArgs) (tool.Result, error) {
		if in.Event == "" {
			return tool.Fail("event must not be empty"), nil
		}
		now := call.Now().UTC()
		var line bytes.Buffer
		line.WriteString(now.Format(time.RFC3339) + "\t")
		// The arguments as they came, so that numbers of any size stay exact;
		// compact JSON has no line breaks.
		if err := json.Compact(&line, call.Arguments); err != nil {
			return tool.Result{}, err
		}
		line.WriteByte('\n')
		w, err := write(ctx, call, writeArgs{Path: "logs/" + now.Format("2006-01") + ".log", Content: line.String(), Mode: "append"})
		if err != nil {
			return failed(err)
		}
		return tool.OK("noted in %s", w.Path).WithData(map[string]string{"path": w.Path}), nil
	})
