package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
)

// wake takes from asking the scheduler until the agent's handler has the wake.
// It is for one caller.
func wake(ctx context.Context, b *testbed) (op, error) {
	type arrival struct {
		message string
		at      time.Time
	}
	arrived := make(chan arrival, 16) // repeats are possible
	wakes, err := b.agent.Wakes(ctx, func(_ context.Context, w *agent.Wake) error {
		arrived <- arrival{w.Message, time.Now()}
		return nil
	})
	if err != nil {
		return nil, err
	}
	b.atEnd(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return wakes.Stop(ctx)
	})
	n := 0
	return func(ctx context.Context, _ int) (time.Duration, error) {
		n++
		req := message.SchedulerWake{AgentID: agentName, Mode: message.WakeStateless, Message: strconv.Itoa(n), OpID: bus.NewOpID()}
		start := time.Now()
		if err := bus.Request(ctx, b.nc, subject.Scheduler(tenant, "wake"), req, nil); err != nil {
			return 0, err
		}
		for {
			select {
			case a := <-arrived:
				if a.message == req.Message {
					return a.at.Sub(start), nil
				}
			case <-ctx.Done():
				return 0, fmt.Errorf("the wake did not arrive: %w", ctx.Err())
			}
		}
	}, nil
}
