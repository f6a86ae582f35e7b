package worker

import (
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/tool"
)

// A change event may be late or lost: a refusal never rests on what the registry
// said before the call came in, and yet many of them ask it only now and then.
func TestARefusalAsksFirstButNotForEachCall(t *testing.T) {
	ns := natstest.Start(t)
	var granted atomic.Bool
	var asked atomic.Int64
	nc := ns.Connect()
	sub, err := nc.Subscribe(subject.Registry("acme", "get"), func(m *nats.Msg) {
		asked.Add(1)
		entry := message.AgentEntry{Config: message.AgentConfig{AgentID: "bot", Tools: map[string]json.RawMessage{}}}
		if granted.Load() {
			entry.Config.Tools["t"] = json.RawMessage(`{"n":1}`)
		}
		b, _ := json.Marshal(entry)
		_ = m.Respond(b)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	g, err := newGrants(ns.Connect())
	if err != nil {
		t.Fatal(err)
	}
	who, def := subject.Agent{Family: subject.FamilyAgent, Tenant: "acme", Agent: "bot"}, tool.Definition{Name: "t"}
	refused := func() {
		if _, err := g.entry(t.Context(), who, def); !errors.Is(err, errcode.NotAllowed) {
			t.Errorf("not granted: %v", err)
		}
	}
	refused()
	granted.Store(true) // and no event
	if s, err := g.entry(t.Context(), who, def); err != nil || string(s.Settings) != `{"n":1}` {
		t.Fatalf("granted: %s, %v", s.Settings, err)
	}
	granted.Store(false)
	g.drop()
	asked.Store(0)
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(refused)
	}
	wg.Wait()
	if n := asked.Load(); n > 10 {
		t.Errorf("200 refusals at once asked %d times", n)
	}
}
