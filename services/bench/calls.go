package main

import (
	"context"
	"fmt"
)

// request asks the responder: the limit of a call.
func request(_ context.Context, b *testbed) (op, error) {
	body := []byte(payload)
	return timed(func(ctx context.Context, _ int) error {
		m, err := b.raw.RequestWithContext(ctx, echoSubject, body)
		if err == nil && len(m.Data) != len(body) {
			err = fmt.Errorf("%d bytes came back", len(m.Data))
		}
		return err
	}), nil
}

// call calls the echo tool as an agent does.
func call(_ context.Context, b *testbed) (op, error) {
	return timed(func(ctx context.Context, _ int) error {
		r, err := b.agent.Call(ctx, echoTool, map[string]string{"text": payload})
		if err == nil && (!r.Success || r.Content != payload) {
			err = fmt.Errorf("got %+v", r)
		}
		return err
	}), nil
}
