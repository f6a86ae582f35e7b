package toolworker_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/tool"
)

// A reply subject must not make Toolbus, or NATS, call another tenant's tools:
// NATS does not check it against the permissions of the one who asks.
func TestAReplySubjectReachesNoTenantsTools(t *testing.T) {
	s := start(t)
	ran := make(chan string, 64)
	pay := fn("pay", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		ran <- c.Tenant
		return tool.OK("paid"), nil
	})
	s.worker(nil, pay)
	s.apply("eve", grantAll(pay))
	s.apply("acme", grantAll(pay))
	sent := 0
	for _, victim := range []string{subject.AgentCall("acme", "bot", "pay"), subject.WorkerCall("acme", "bot", "pay"), subject.AgentSubmit("acme", "bot", "pay")} {
		for _, to := range []string{
			subject.AgentCall("eve", "bot", "pay"), subject.AgentTools("eve", "bot"), subject.AgentResult("eve", "bot", "c"),
			subject.AgentSubmit("eve", "bot", "pay"), subject.AgentSubmit("eve", "bot", "none"), subject.Files("eve", "list"),
		} {
			m := &nats.Msg{Subject: to, Reply: victim, Data: []byte(`{"callId":"c","arguments":{}}`)}
			if err := s.nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	// What the victim's own agent submits last runs last.
	s.emptied("pay")
	a := s.agent("acme", "bot")
	if _, err := a.Call(t.Context(), "pay", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(t, a, submit(t, a, "pay", nil)); err != nil {
		t.Fatal(err)
	}
	s.emptied("pay")
	victims := 0
	for len(ran) > 0 {
		if <-ran == "acme" {
			victims++
		}
	}
	if victims != 2 {
		t.Errorf("the victim's tool ran %d times besides its own calls, by %d messages", victims-2, sent)
	}
	// The results of the victim are its own.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var r message.ResultReply
	if err := bus.Request(ctx, s.nc, subject.AgentResult("acme", "bot", "c"), nil, &r); err == nil {
		t.Errorf("a result that nobody asked for: %+v", r)
	}
}
