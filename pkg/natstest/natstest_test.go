package natstest_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/pkg/natstest"
)

func TestMain(m *testing.M) {
	natstest.RunChild()
	goleak.VerifyTestMain(m)
}

func TestDataOutliveARestart(t *testing.T) {
	ns := natstest.Start(t)
	url := ns.URL()
	nc := ns.Connect()
	js, err := jetstream.New(nc)
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
	ns.Down()
	if ns.URL() != url {
		t.Errorf("URL changed to %s", ns.URL())
	}
	ns.Down() // twice does no harm
	ns.Up()
	if ns.URL() != url {
		t.Errorf("URL changed to %s", ns.URL())
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		e, err := kv.Get(t.Context(), "k")
		if err == nil && string(e.Value()) == "v" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the value did not come back: %v", err)
		}
		time.Sleep(20 * time.Millisecond) // poll
	}
}
