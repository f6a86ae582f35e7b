package worker

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

func TestDeliveredReadsTheReplySubject(t *testing.T) {
	for reply, want := range map[string]int{
		"$JS.ACK.TOOLBUS_SUBMITS.submits_x.3.10.7.1700000000000000000.0":            3,
		"$JS.ACK.hub.ABCDEF.TOOLBUS_SUBMITS.submits_x.4.10.7.1700000000000000000.0": 4,
		"$JS.ACK._.ABCDEF.TOOLBUS_SUBMITS.submits_x.5.10.7.17.0.random":             5,
		"$JS.ACK.a.b":          0,
		"$JS.ACK.a.b.x.1.2.3":  0,
		"$JS.ACK.a.b.-1.1.2.3": 0,
		"":                     0,
	} {
		if got := delivered(&nats.Msg{Reply: reply}); got != want {
			t.Errorf("%s: got %d, want %d", reply, got, want)
		}
	}
	for reply, want := range map[string]uint64{
		"$JS.ACK.TOOLBUS_SUBMITS.submits_x.3.10.7.1700000000000000000.0":            10,
		"$JS.ACK.hub.ABCDEF.TOOLBUS_SUBMITS.submits_x.4.10.7.1700000000000000000.0": 10,
		"$JS.ACK.a.b.1.18446744073709551615.7.17.0":                                 math.MaxUint64,
		"$JS.ACK.a.b.1":         0,
		"$JS.ACK.a.b.1.x.2.3.4": 0,
		"":                      0,
	} {
		if got := sequence(&nats.Msg{Reply: reply}); got != want {
			t.Errorf("%s: got sequence %d, want %d", reply, got, want)
		}
	}
	if got := string(nak(1500 * time.Millisecond)); got != `-NAK {"delay":1500000000}` {
		t.Errorf("got %s", got)
	}
}

func FuzzDelivered(f *testing.F) {
	f.Add("$JS.ACK.a.b.3.10.7.17.0")
	f.Fuzz(func(t *testing.T, reply string) {
		if delivered(&nats.Msg{Reply: reply}) < 0 {
			t.Fatal("negative")
		}
	})
}

func FuzzSubmittedID(f *testing.F) {
	f.Add([]byte(`{"callId":"a","timeoutMs":"x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		id := submittedID(b)
		if id != "" && subject.CheckName("callId", id) != nil {
			t.Fatalf("%q", id)
		}
		if req, _, err := readCall(b, nil); err == nil && id != "" && req.CallID != id {
			t.Fatalf("%q and %q", req.CallID, id)
		}
	})
}

func TestCheckJobNamesEveryField(t *testing.T) {
	_, err := checkJob(message.JobRequest{})
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details == nil || len(e.Details.Fields) != 5 {
		t.Errorf("got %v", err)
	}
	due, err := checkJob(message.JobRequest{TickID: "a.b:1", JobID: "j", JobTypeID: "t", ScheduledAt: "2026-01-02T03:04:05.5+01:00", Attempt: 1})
	if err != nil || !due.Equal(time.Date(2026, 1, 2, 2, 4, 5, 5e8, time.UTC)) {
		t.Errorf("got %s, %v", due, err)
	}
}
