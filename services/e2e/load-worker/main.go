// Command load-worker hosts the tools that the calls under load use.
package main

import (
	"context"
	"time"

	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
)

type in struct {
	ID string `json:"id"`
}

func main() {
	worker.Main(
		// plain waits a moment and answers.
		tool.New("plain", "Answers with the id.", func(ctx context.Context, _ *tool.Call, in in) (tool.Result, error) {
			select {
			case <-time.After(5 * time.Millisecond):
				return tool.OK("%s", in.ID), nil
			case <-ctx.Done():
				return tool.Result{}, ctx.Err()
			}
		}),
		// note changes what the platform keeps, and may run again.
		tool.New("note", "Notes the id wherever it can.", note, tool.Idempotent()),
		// pay must not run twice.
		tool.New("pay", "Notes the id, at most once.", note),
	)
}

func note(ctx context.Context, c *tool.Call, in in) (tool.Result, error) {
	if _, err := c.State("load").Append(ctx, "ids", in.ID); err != nil {
		return tool.Result{}, err
	}
	if _, err := c.Files().Append(ctx, "load/"+c.Chat+".log", []byte(in.ID+"\n")); err != nil {
		return tool.Result{}, err
	}
	if err := c.Store().Set(ctx, in.ID, c.IdempotencyKey()); err != nil {
		return tool.Result{}, err
	}
	if c.IdempotencyKey() == "" {
		return tool.Fail("no key"), nil
	}
	return tool.OK("%s", in.ID), nil
}
