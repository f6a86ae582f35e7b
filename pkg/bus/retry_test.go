package bus_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// A retry tells how long ago a try was sent that may have been received; the
// first one, and those after tries that nobody can have received, tell nothing.
func TestRetryTellsItsAge(t *testing.T) {
	ns := natstest.Start(t)
	client := ns.Connect()
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		done <- bus.Retry(ctx, client, "s.op", nil, nil) // nobody is there yet
	}()
	service := ns.Connect()
	for deadline := time.Now().Add(10 * time.Second); client.Stats().OutMsgs < 3; time.Sleep(time.Millisecond) { // poll
		if time.Now().After(deadline) {
			t.Fatal("no try was sent")
		}
	}
	var tries atomic.Int64
	ages := make(chan time.Duration, 10)
	srv, err := bus.NewServer(service, bus.ServerConfig{Name: "test", Version: "0.1.0"}, telemetry.Discard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Stop(context.Background()) })
	if err := srv.Handle(bus.Endpoint{Name: "op", Subject: "s.op", Handler: func(_ context.Context, in *bus.Incoming) (any, error) {
		ages <- in.Age()
		if tries.Add(1) < 3 {
			return nil, errcode.New(errcode.Unavailable, "not yet")
		}
		return nil, nil
	}}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	first, second, third := <-ages, <-ages, <-ages
	if first != 0 || second <= 0 || third <= second || third > 20*time.Second {
		t.Errorf("ages %s, %s, %s", first, second, third)
	}
}
