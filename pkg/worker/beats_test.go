package worker

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
)

func TestFirstBeatMayWaitASecondAtMost(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "250": 250 * time.Millisecond, "1000": time.Second, "60000": time.Second,
		"-1": 0, "1s": 0, "99999999999999999999": 0,
	} {
		if got := firstBeat(nats.Header{message.HeaderFirstBeat: {value}}); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
	if got := firstBeat(nil); got != 0 {
		t.Errorf("no header: %s", got)
	}
}

func TestBeats(t *testing.T) {
	ns := natstest.Start(t)
	nc := ns.Connect()
	sub, err := nc.SubscribeSync("beats.*")
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return m.Subject
	}
	begin := time.Now()
	stop := startBeats(nc, "beats.now", 0)
	if s := next(); s != "beats.now" {
		t.Fatalf("got %s", s)
	}
	if s, took := next(), time.Since(begin); s != "beats.now" || took < beatEvery {
		t.Errorf("the second came on %s after %s", s, took)
	}
	stop()

	// A call that ends before its first beat has none.
	startBeats(nc, "beats.short", time.Second)()
	begin = time.Now()
	stop = startBeats(nc, "beats.later", time.Second)
	for range 2 {
		if s := next(); s != "beats.later" {
			t.Errorf("got %s", s)
		}
	}
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("two beats in %s", took)
	}
	stop()
	if err := nc.Publish("beats.end", nil); err != nil {
		t.Fatal(err)
	}
	if s := next(); s != "beats.end" {
		t.Errorf("%s after the stop", s)
	}
}
