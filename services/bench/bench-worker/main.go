// Command bench-worker hosts the tool that the bench calls.
package main

import (
	"context"

	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
)

type echoArgs struct {
	Text string `json:"text" jsonschema:"what to answer"`
}

func main() {
	worker.Main(tool.New("echo", "Answers with its argument.",
		func(_ context.Context, _ *tool.Call, in echoArgs) (tool.Result, error) {
			return tool.OK("%s", in.Text), nil
		}))
}
