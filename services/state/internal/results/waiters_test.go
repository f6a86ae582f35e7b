package results

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Events are at most once: who waits is answered without one, too, and only
// once with several.
func TestWaiters(t *testing.T) {
	ns := natstest.Start(t)
	nc := ns.Connect()
	var done atomic.Bool
	look := func(_ context.Context, c call, sure bool) (any, bool, error) {
		switch {
		case done.Load():
			return message.ResultReply{CallID: c.id, State: message.ResultDone}, true, nil
		case sure && c.id == "unknown":
			return nil, false, errcode.New(errcode.NotFound, "unknown")
		}
		return message.ResultReply{CallID: c.id, State: message.ResultPending}, false, nil
	}
	w, err := newWaiters(nc, 10, look, telemetry.Discard())
	if err != nil {
		t.Fatal(err)
	}
	enter := func(id string, wait time.Duration) func() (message.ResultReply, error) {
		t.Helper()
		inbox := nc.NewRespInbox()
		sub, err := nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.enter(call{"acme", "a", id}, wait, inbox); err != nil {
			t.Fatal(err)
		}
		return func() (message.ResultReply, error) {
			t.Helper()
			var r message.ResultReply
			m, err := sub.NextMsg(4 * lookEvery)
			if err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			if err := bus.ReplyError(m); err != nil {
				return r, err
			}
			if err := json.Unmarshal(m.Data, &r); err != nil {
				t.Fatal(err)
			}
			w.mu.Lock()
			left := len(w.calls[call{"acme", "a", id}])
			w.mu.Unlock()
			if left != 0 {
				t.Errorf("%s: %d wait after the answer", id, left)
			}
			return r, nil
		}
	}
	short, unknown, missed := enter("short", 50*time.Millisecond), enter("unknown", time.Minute), enter("missed", time.Minute)
	if r, err := short(); err != nil || r.State != message.ResultPending {
		t.Errorf("a wait that ends: %+v, %v", r, err)
	}
	if _, err := unknown(); errcode.Of(err) != errcode.NotFound {
		t.Errorf("an unknown call: %v", err)
	}
	told := enter("told", time.Minute)
	done.Store(true)
	for range 3 {
		if err := nc.Publish(subject.ChangesResult("acme", "a", "told"), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, nonsense := range []string{subject.ChangesResult("_x", "a", "told"), subject.ChangesResult("acme", "a", "=4")} {
		if err := nc.Publish(nonsense, nil); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	if r, err := told(); err != nil || r.State != message.ResultDone || time.Since(begun) > time.Second {
		t.Errorf("%+v, %v after %s", r, err, time.Since(begun))
	}
	if r, err := missed(); err != nil || r.State != message.ResultDone {
		t.Errorf("without an event: %+v, %v", r, err)
	}
	w.mu.Lock()
	if w.count != 0 || len(w.calls) != 0 {
		t.Errorf("%d wait, %d calls", w.count, len(w.calls))
	}
	w.mu.Unlock()
	w.close()
	if _, err := w.enter(call{"acme", "a", "late"}, time.Minute, "x"); errcode.Of(err) != errcode.Unavailable {
		t.Errorf("after the end: %v", err)
	}
}
