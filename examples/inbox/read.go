package inbox

import (
	"bytes"
	"context"
	"strings"

	"github.com/toolbus/toolbus/pkg/tool"
)

type readArgs struct {
	Count int `json:"count" default:"10" jsonschema:"how many of the newest lines to show, 1 to 100"`
}

type newest struct {
	Path  string   `json:"path"`
	Lines []string `json:"lines"` // the newest last
}

// readWindow is how much of the file's end is looked at, in bytes.
const readWindow = 64 << 10

// ReadInbox shows the newest lines, and brings the job that watches for them.
var ReadInbox = tool.New("readInbox", "Shows the newest lines of the inbox, the newest last.",
	func(ctx context.Context, call *tool.Call, in readArgs) (tool.Result, error) {
		if in.Count < 1 || in.Count > 100 {
			return tool.Fail("count must be from 1 to 100"), nil
		}
		path, err := path(call.BindSettings)
		if err != nil {
			return tool.Result{}, err
		}
		out := newest{Path: path, Lines: []string{}}
		info, exists, err := call.Files().Stat(ctx, path)
		if err != nil {
			return tool.Result{}, err
		}
		if exists {
			from := max(info.Size-readWindow, 0)
			b, _, _, err := call.Files().ReadAt(ctx, path, from, readWindow)
			if err != nil {
				return tool.Result{}, err
			}
			if from > 0 { // it begins within a line
				_, b, _ = bytes.Cut(b, []byte("\n"))
			}
			out.Lines = lines(b)
			out.Lines = out.Lines[max(len(out.Lines)-in.Count, 0):]
		}
		if len(out.Lines) == 0 {
			return tool.OK("The inbox is empty.").WithData(out), nil
		}
		return tool.OK("%s", strings.Join(out.Lines, "\n")).WithData(out), nil
	},
	tool.Job("inbox_new_lines", "New lines in the inbox",
		"Looks for lines that were appended to the inbox since the last look, and wakes the agent with them.", newLines))
