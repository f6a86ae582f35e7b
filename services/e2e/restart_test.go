package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// Agents, ToolState, store and files outlive the process, however it ends.
func TestRestartKeepsEverything(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			data := t.TempDir()
			p := harness.Up(t, toolbus(t), data)
			cli := harness.CLI{Bin: toolbus(t), URL: p.URL}
			applyAgent(t, cli, "acme", "bot")
			cli.OK(t, "state", "set", "step", `{"n":2}`, "-t", "acme", "-n", "wizard", "-c", "chat 1")
			cli.OK(t, "call", "writeFile", `{"path":"logs/a.txt","content":"hello\n"}`, "-t", "acme", "-a", "bot")
			setStore(t, p.URL, "offset", "42")
			var before message.RegistryListing
			cli.JSON(t, &before, "get", "agents", "-t", "acme")

			p.Stop(s)
			p = harness.Up(t, toolbus(t), data)
			cli.URL = p.URL

			var after message.RegistryListing
			cli.JSON(t, &after, "get", "agents", "-t", "acme")
			if len(after.Agents) != 1 || after.Agents[0].Revision != before.Agents[0].Revision || len(after.Agents[0].Config.Tools) != 2 {
				t.Errorf("agents: %+v, before: %+v", after, before)
			}
			var value message.ToolStateValue
			cli.JSON(t, &value, "state", "get", "step", "-t", "acme", "-n", "wizard", "-c", "chat 1")
			if got := compact(t, value.Value); got != `{"n":2}` {
				t.Errorf("ToolState: %s", got)
			}
			if got := cli.OK(t, "files", "cat", "logs/a.txt", "-t", "acme"); got != "hello\n" {
				t.Errorf("file: %q", got)
			}
			var stored message.StoreValue
			if err := bus.Request(t.Context(), connect(t, p.URL), subject.Store("acme", "bot", "Mail", "get"), message.StoreGet{Key: "offset"}, &stored); err != nil || stored.Value != "42" {
				t.Errorf("store: %+v, %v", stored, err)
			}
			// It goes on working, and a call still finds its agent.
			if got := cli.OK(t, "call", "readFile", `{"path":"logs/a.txt"}`, "-t", "acme", "-a", "bot"); !strings.Contains(got, "hello") {
				t.Errorf("readFile: %q", got)
			}
			cli.OK(t, "call", "writeFile", `{"path":"logs/a.txt","content":"again\n","mode":"append"}`, "-t", "acme", "-a", "bot")
			if got := cli.OK(t, "files", "cat", "logs/a.txt", "-t", "acme"); got != "hello\nagain\n" {
				t.Errorf("file: %q", got)
			}
		})
	}
}

// What was acknowledged before a kill -9 in the middle of writing is there.
func TestKillLosesNoAcknowledgedWrite(t *testing.T) {
	data := t.TempDir()
	p := harness.Up(t, toolbus(t), data)
	nc := connect(t, p.URL)
	ref := message.ToolStateRef{ChatID: "c", Namespace: "n"}
	const enough = 50
	var acked atomic.Int64
	reached, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			req := message.ToolStateAppend{ToolStateRef: ref, Key: "list", Values: []json.RawMessage{json.RawMessage(fmt.Sprint(i))}}
			if err := bus.Request(t.Context(), nc, subject.ToolState("acme", "append"), req, nil); err != nil {
				ended <- err
				return
			}
			if acked.Add(1) == enough {
				close(reached)
			}
		}
	}()
	select {
	case <-reached:
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(10 * time.Second):
		t.Fatal("too slow")
	}
	p.Stop(syscall.SIGKILL)
	nc.Close()
	<-ended
	p = harness.Up(t, toolbus(t), data)
	var got message.ToolStateValue
	harness.CLI{Bin: toolbus(t), URL: p.URL}.JSON(t, &got, "state", "get", "list", "-t", "acme", "-n", "n", "-c", "c")
	var list []int
	if err := json.Unmarshal(got.Value, &list); err != nil {
		t.Fatal(err)
	}
	// One more may have landed whose acknowledgement did not.
	if n := int(acked.Load()); len(list) < n || len(list) > n+1 {
		t.Errorf("%d of %d acknowledged writes are there", len(list), n)
	}
	for i, v := range list {
		if v != i {
			t.Fatalf("element %d is %d", i, v)
		}
	}
}

func setStore(t *testing.T, url, key, value string) {
	t.Helper()
	err := bus.Request(t.Context(), connect(t, url), subject.Store("acme", "bot", "Mail", "set"), message.StoreSet{Key: key, Value: value}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

func compact(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
