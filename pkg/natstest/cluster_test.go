package natstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/pkg/natstest"
)

// A replicated stream outlives the kill of its leader, which comes back with its
// data; a leader steps down when asked.
func TestClusterSurvivesItsLeader(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	js, err := jetstream.New(c.Connect())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	put := func(value string) {
		t.Helper()
		within(t, "put "+value, func(ctx context.Context) bool { _, err := kv.Put(ctx, "k", []byte(value)); return err == nil })
	}
	put("1")
	first := c.Leader("KV_b")
	first.Kill()
	first.Kill() // twice does no harm
	if second := c.Leader("KV_b"); second == first || first.Running() {
		t.Fatalf("%s leads though it was killed", first.Name())
	}
	put("2")
	first.Start()
	c.WaitCurrent("KV_b")
	leads := c.Leader("KV_b")
	c.StepDown("KV_b")
	if c.Leader("KV_b") == leads {
		t.Errorf("%s leads though it stepped down", leads.Name())
	}
	put("3")
	within(t, "the last value", func(ctx context.Context) bool {
		e, err := kv.Get(ctx, "k")
		return err == nil && string(e.Value()) == "3"
	})
}

func TestSingleServerInAProcess(t *testing.T) {
	c := natstest.StartCluster(t, 1)
	js, err := jetstream.New(c.Connect())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	m := c.Leader("KV_b")
	m.Kill()
	m.Start()
	c.WaitCurrent("KV_b")
	within(t, "the value", func(ctx context.Context) bool {
		e, err := kv.Get(ctx, "k")
		return err == nil && string(e.Value()) == "v"
	})
}

func TestProxyCuts(t *testing.T) {
	ns := natstest.Start(t)
	p := natstest.StartProxy(t, ns.URL())
	nc := natstest.Connect(t, p.URL())
	if _, err := nc.RTT(); err != nil {
		t.Fatal(err)
	}
	if n := p.Cut(); n != 1 {
		t.Fatalf("%d connections cut, want 1", n)
	}
	within(t, "the client reconnects", func(context.Context) bool { _, err := nc.RTT(); return err == nil && nc.Stats().Reconnects == 1 })
}

// within polls until ok.
func within(t *testing.T, what string, ok func(context.Context) bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		done := ok(ctx)
		cancel()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond) // poll
	}
}
