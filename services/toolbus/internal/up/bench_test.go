package up

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// BenchmarkSync shows what the choice of Config.Sync costs: a call that only
// reads, a ToolState write, a file write.
func BenchmarkSync(b *testing.B) {
	for _, sync := range []string{SyncAlways, "2m"} {
		cfg := config(b.TempDir())
		cfg.Sync = sync
		u, err := New(cfg, telemetry.Discard(), telemetry.NewRegistry())
		if err != nil {
			b.Fatal(err)
		}
		if err := u.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		nc, err := nats.Connect(u.URL())
		if err != nil {
			b.Fatal(err)
		}
		apply := message.RegistryApply{Config: json.RawMessage(`{"agentId":"bot","tools":{"readFile":{},"writeFile":{}}}`)}
		if err := bus.Request(b.Context(), nc, subject.Registry("acme", "apply"), apply, nil); err != nil {
			b.Fatal(err)
		}
		client, err := agent.New(nc, "acme", "bot")
		if err != nil {
			b.Fatal(err)
		}
		call := func(b *testing.B, tool, arguments string) {
			for b.Loop() {
				if r, err := client.Call(b.Context(), tool, json.RawMessage(arguments)); err != nil || !r.Success {
					b.Fatal(r, err)
				}
			}
		}
		b.Run(sync+"/call-read", func(b *testing.B) { call(b, "readFile", `{"path":"none"}`) })
		b.Run(sync+"/call-write", func(b *testing.B) { call(b, "writeFile", `{"path":"f","content":"x"}`) })
		b.Run(sync+"/toolstate-set", func(b *testing.B) {
			req := message.ToolStateSet{ToolStateRef: message.ToolStateRef{ChatID: "c", Namespace: "n"}, Key: "k", Value: json.RawMessage(`1`)}
			for b.Loop() {
				if err := bus.Request(b.Context(), nc, subject.ToolState("acme", "set"), req, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
		client.Close()
		nc.Close()
		if err := stop(u); err != nil {
			b.Fatal(err)
		}
	}
}
