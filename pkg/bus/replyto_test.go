package bus_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// The one who answers publishes to the reply subject with permissions that the
// one who asks does not have.
func TestARequestIsAnsweredToAnInboxOnly(t *testing.T) {
	ns := natstest.Start(t)
	var served atomic.Int64
	serve(t, ns, bus.ServerConfig{}, prometheus.NewRegistry(), map[string]bus.Handler{
		"greet": func(ctx context.Context, in *bus.Incoming) (any, error) { served.Add(1); return greet(ctx, in) },
	})
	nc := ns.Connect()
	foreign, err := nc.SubscribeSync("toolbus.v1.agent.>")
	if err != nil {
		t.Fatal(err)
	}
	system, err := nc.SubscribeSync("$X.>")
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range []string{"", "toolbus.v1.agent.rival.bot.call.pay", "toolbus.v1.agent.rival.bot.submit.pay", "$X.API"} {
		if err := nc.PublishMsg(&nats.Msg{Subject: "test.greet", Reply: reply, Data: []byte(`{"name":"Eve"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	// One with an inbox, also of a prefix of one's own, is served after them.
	for _, reply := range []string{nc.NewInbox(), "_INBOX_acme.x1", "replies.acme.1"} {
		sub, err := nc.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest("test.greet", reply, []byte(`{"name":"Ada"}`)); err != nil {
			t.Fatal(err)
		}
		if _, err := sub.NextMsg(5 * time.Second); err != nil {
			t.Errorf("no reply to %s: %v", reply, err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []*nats.Subscription{foreign, system} {
		if n, _, err := sub.Pending(); n > 0 || err != nil {
			t.Errorf("%d messages on %s, %v", n, sub.Subject, err)
		}
	}
	if served.Load() != 3 {
		t.Errorf("served %d requests", served.Load())
	}
}
