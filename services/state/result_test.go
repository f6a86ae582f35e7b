package state_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/results"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files"
	"github.com/toolbus/toolbus/services/state"
)

func reply(id, content string) message.ResultComplete {
	return message.ResultComplete{CallID: id, Tool: "mail", Reply: &message.CallReply{CallID: id, Success: true, Content: content, DurationMs: 3}}
}

func complete(t testing.TB, r *results.Recorder, end message.ResultComplete) bool {
	t.Helper()
	ok, err := r.Complete(t.Context(), end)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// submit publishes a submitted call as an agent does.
func submit(t testing.TB, nc *nats.Conn, tenant, agent, tool, body string, header nats.Header) (message.SubmitAck, error) {
	t.Helper()
	m := nats.NewMsg(subject.AgentSubmit(tenant, agent, tool))
	m.Data = []byte(body)
	if header != nil {
		m.Header = header
	}
	var ack message.SubmitAck
	got, err := nc.RequestMsg(m, 5*time.Second)
	if err != nil {
		return ack, err
	}
	return ack, json.Unmarshal(got.Data, &ack)
}

func TestResultFirstEndStands(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	nc := ns.Connect()
	worker, agent := results.NewRecorder(nc, "acme", "support"), results.NewReader(nc, "acme", "support")
	var won atomic.Int64
	var winner atomic.Value
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			mine := fmt.Sprint("worker ", i)
			switch ok, err := worker.Complete(t.Context(), reply("c_1", mine)); {
			case err != nil:
				t.Error(err)
			case ok:
				won.Add(1)
				winner.Store(mine)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d ends were recorded", won.Load())
	}
	mine := winner.Load().(string)
	for name, get := range map[string]func(context.Context, string, time.Duration) (message.ResultReply, error){"agent": agent.Get, "worker": worker.Get} {
		r, err := get(t.Context(), "c_1", 0)
		if err != nil || r.State != message.ResultDone || r.CallID != "c_1" || r.Tool != "mail" || r.Reply == nil || r.Reply.Content != mine || r.Reply.DurationMs != 3 {
			t.Errorf("%s got %+v, %v; winner %s", name, r, err, mine)
		}
	}
	// Again, as after a lost answer, it is still the one that stands.
	if !complete(t, worker, reply("c_1", mine)) {
		t.Error("the same end again was refused")
	}
	failed := message.ResultComplete{CallID: "c_2", Tool: "mail", Error: json.RawMessage(`{"code":"worker_lost","message":"gone","retryable":true}`)}
	if !complete(t, worker, failed) || complete(t, worker, reply("c_2", "late")) {
		t.Error("an error does not stand")
	}
	if r, err := agent.Get(t.Context(), "c_2", time.Second); err != nil || r.State != message.ResultDone || r.Reply != nil || string(r.Error) != string(failed.Error) {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, other := range []*results.Reader{results.NewReader(nc, "acme", "sales"), results.NewReader(nc, "acme2", "support")} {
		if r, err := other.Get(t.Context(), "c_1", 0); !errors.Is(err, errcode.NotFound) {
			t.Errorf("a foreign result: %+v, %v", r, err)
		}
	}
}

func TestResultPendingAndUnknown(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	agent := results.NewReader(nc, "acme", "support")
	if _, err := agent.Get(t.Context(), "c1", 0); !errors.Is(err, errcode.NotFound) {
		t.Fatalf("unknown: %v", err)
	}
	ack, err := submit(t, nc, "acme", "support", "mail", `{"callId":"c1"}`, nil)
	if err != nil || ack.Stream != "TOOLBUS_SUBMITS" || ack.Seq == 0 || ack.Error != nil {
		t.Fatalf("%+v, %v", ack, err)
	}
	for _, wait := range []time.Duration{0, 1200 * time.Millisecond} {
		begun := time.Now()
		r, err := agent.Get(t.Context(), "c1", wait)
		if err != nil || r.State != message.ResultPending || r.CallID != "c1" {
			t.Errorf("after %s: %+v, %v", wait, r, err)
		}
		if took := time.Since(begun); took < wait || took > wait+3*time.Second {
			t.Errorf("took %s, wait %s", took, wait)
		}
	}
	// What a worker takes, ends and acknowledges is never unknown in between.
	worker := results.NewRecorder(nc, "acme", "support")
	var c message.SubmitsConsumer
	if err := bus.Request(t.Context(), nc, subject.SubmitsConsumer("mail"), nil, &c); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if r, err := agent.Get(t.Context(), "c1", 0); err != nil {
				t.Errorf("%+v, %v", r, err)
				return
			}
		}
	})
	cons, err := stream(t, nc, c.Stream).Consumer(t.Context(), c.Durable)
	if err != nil {
		t.Fatal(err)
	}
	m, err := cons.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if !complete(t, worker, reply("c1", "done")) {
		t.Error("not recorded")
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	if r, err := agent.Get(t.Context(), "c1", 0); err != nil || r.State != message.ResultDone {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestResultWakesWhoWaits(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	nc := ns.Connect()
	if _, err := submit(t, nc, "acme", "support", "mail", `{"callId":"c1"}`, nil); err != nil {
		t.Fatal(err)
	}
	worker, agent := results.NewRecorder(nc, "acme", "support"), results.NewReader(nc, "acme", "support")
	const n = 30
	ended := make(chan time.Time, n)
	for range n {
		go func() {
			r, err := agent.Get(t.Context(), "c1", 20*time.Second)
			if err != nil || r.State != message.ResultDone || r.Reply.Content != "done" {
				t.Errorf("%+v, %v", r, err)
			}
			ended <- time.Now()
		}()
	}
	// In this time the others ask.
	if r, err := agent.Get(t.Context(), "c1", 200*time.Millisecond); err != nil || r.State != message.ResultPending {
		t.Fatalf("%+v, %v", r, err)
	}
	complete(t, worker, reply("c1", "done"))
	done := time.Now()
	for range n {
		select {
		case at := <-ended:
			if at.Sub(done) > 3*time.Second {
				t.Errorf("woken after %s", at.Sub(done))
			}
		case <-time.After(15 * time.Second):
			t.Fatal("somebody still waits")
		}
	}
}

func TestResultWaitersAreBoundedAndSentElsewhere(t *testing.T) {
	ns := natstest.Start(t)
	only := start(t, ns, func(c *state.Config) { c.ResultWaiters = 1 })
	nc := ns.Connect()
	if _, err := submit(t, nc, "acme", "support", "mail", `{"callId":"c1"}`, nil); err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context, waitMs int64) (message.ResultReply, error) {
		var r message.ResultReply
		err := bus.Request(ctx, nc, subject.AgentResult("acme", "support", "c1"), message.ResultRequest{WaitMs: waitMs}, &r)
		return r, err
	}
	first := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		err := error(errcode.Overloaded)
		for errors.Is(err, errcode.Overloaded) { // the probe below may have the place
			_, err = ask(ctx, 30_000)
		}
		first <- err
	}()
	eventually(t, "the second waiter is one too many", func() bool {
		r, err := ask(t.Context(), 1)
		if err != nil && !errors.Is(err, errcode.Overloaded) {
			t.Fatalf("%+v, %v", r, err)
		}
		return err != nil
	})
	if r, err := ask(t.Context(), 0); err != nil || r.State != message.ResultPending {
		t.Errorf("without waiting: %+v, %v", r, err)
	}
	// A reader is not bothered when its replica leaves.
	read := make(chan message.ResultReply, 1)
	start(t, ns)
	stop(t, only)
	if err := <-first; !errors.Is(err, errcode.Unavailable) {
		t.Errorf("the waiter of a stopped service: %v", err)
	}
	third := start(t, ns)
	go func() {
		r, err := results.NewReader(nc, "acme", "support").Get(t.Context(), "c1", 20*time.Second)
		if err != nil {
			t.Error(err)
		}
		read <- r
	}()
	stop(t, third)
	complete(t, results.NewRecorder(nc, "acme", "support"), reply("c1", "done"))
	select {
	case r := <-read:
		if r.State != message.ResultDone {
			t.Errorf("%+v", r)
		}
	case <-time.After(15 * time.Second):
		t.Fatal("never answered")
	}
}

func TestResultExpires(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns, func(c *state.Config) { c.ResultKeep = time.Second })
	nc := ns.Connect()
	worker := results.NewRecorder(nc, "acme", "support")
	complete(t, worker, reply("c1", "first"))
	if r, err := worker.Get(t.Context(), "c1", 0); err != nil || r.State != message.ResultDone {
		t.Fatalf("%+v, %v", r, err)
	}
	eventually(t, "the result expires", func() bool {
		_, err := worker.Get(t.Context(), "c1", 0)
		return errors.Is(err, errcode.NotFound)
	})
	if !complete(t, worker, reply("c1", "second")) {
		t.Error("an expired end still stands")
	}
}

func TestResultOfAnySize(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	cfg := files.DefaultConfig()
	cfg.Bus = ns.Config()
	fs, err := files.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := fs.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	nc := ns.Connect()
	worker, agent := results.NewRecorder(nc, "acme", "support"), results.NewReader(nc, "acme", "support")
	limit := int(bus.MaxBody(nc))
	for i, n := range []int{limit - 1200, limit - 1000, limit, limit + 1} {
		// Non-Latin text and angle brackets, whose JSON may be longer than itself.
		content := strings.Repeat("x", n-20) + "<\u2028>"
		id := fmt.Sprint("c", i)
		if !complete(t, worker, reply(id, content)) {
			t.Errorf("%d bytes: not recorded", n)
		}
		r, err := agent.Get(t.Context(), id, 0)
		if err != nil || r.Reply == nil || r.Reply.Content != content || r.ReplyBlob != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if complete(t, worker, reply("c3", "late")) {
		t.Error("the large end does not stand")
	}
	// One that says everything in data says it once.
	data, err := json.Marshal(bytes.Repeat([]byte("d"), 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	complete(t, worker, message.ResultComplete{CallID: "d", Tool: "mail", Reply: &message.CallReply{CallID: "d", Success: true, Data: data}})
	if r, err := agent.Get(t.Context(), "d", 0); err != nil || r.Reply.Content != string(data) {
		t.Errorf("%v", err)
	}
}

func TestResultBadRequests(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	op := func(name string) string { return subject.Result("acme", "a", name) }
	for _, c := range []struct{ to, body, field string }{
		{op("fly"), `{}`, "op"},
		{op("complete"), `{"tool":"t","reply":{"callId":"c"}}`, "callId"},
		{op("complete"), `{"callId":"a.b","tool":"t","reply":{}}`, "callId"},
		{op("complete"), `{"callId":"c","reply":{}}`, "tool"},
		{op("complete"), `{"callId":"c","tool":"t"}`, "reply"},
		{op("complete"), `{"callId":"c","tool":"t","reply":null,"error":null}`, "reply"},
		{op("complete"), `{"callId":"c","tool":"t","reply":{},"error":{}}`, "reply"},
		{op("complete"), `{"callId":"c","tool":"t","reply":7}`, "reply"},
		{op("complete"), `{"callId":"c","tool":"t","replyBlob":"x"}`, "replyBlob"},
		{op("complete"), `{"callId":"c","tool":"t","error":"x"}`, "error"},
		{op("get"), `{}`, "callId"},
		{op("get"), `{"callId":"c","waitMs":60001}`, "waitMs"},
		{subject.AgentResult("acme", "a", "c"), `{"waitMs":-1}`, "waitMs"},
		{subject.AgentResult("acme", "a", "c="), `{}`, "callId"},
		{subject.AgentResult("_x", "a", "c"), `{}`, "tenant"},
		{subject.Result("acme", "a=", "get"), `{"callId":"c"}`, "agent"},
		{subject.Result("_all", "other", "get"), `{}`, "tenant"},
		{subject.SubmitsConsumer("a="), `{}`, "tool"},
	} {
		err := bus.Request(t.Context(), nc, c.to, json.RawMessage(c.body), nil)
		t.Run(c.to+" "+c.body, func(t *testing.T) { wantCode(t, err, errcode.InvalidRequest, c.field) })
	}
}

// Tenants publish to this stream with any header they like.
func TestSubmitsAreSafeAgainstHeaders(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns, func(c *state.Config) { c.SubmitPending = 5 })
	nc := ns.Connect()
	if ack, err := submit(t, nc, "acme", "support", "mail", `{"callId":"c1"}`, nil); err != nil || ack.Error != nil {
		t.Fatalf("%+v, %v", ack, err)
	}
	for _, h := range []nats.Header{
		{"Nats-Rollup": {"all"}}, {"Nats-Rollup": {"sub"}}, {"Nats-TTL": {"1s"}},
		{"Nats-Schedule": {"@at 2030-01-01T00:00:00Z"}, "Nats-Schedule-Target": {subject.AgentSubmit("acme", "support", "mail")}},
		{"Nats-Incr": {"1"}}, {"Nats-Batch-Id": {"x"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}},
	} {
		if ack, err := submit(t, nc, "evil", "agent", "mail", `{"callId":"x"}`, h); err != nil || ack.Error == nil {
			t.Errorf("%v was taken: %+v, %v", h, ack, err)
		}
	}
	info, err := stream(t, nc, "TOOLBUS_SUBMITS").Info(t.Context())
	if err != nil || info.State.Msgs != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	// One agent's calls to one tool do not crowd out others'.
	for i := range 4 {
		if ack, err := submit(t, nc, "acme", "support", "mail", `{}`, nil); err != nil || ack.Error != nil {
			t.Fatalf("%d: %+v, %v", i, ack, err)
		}
	}
	if ack, err := submit(t, nc, "acme", "support", "mail", `{}`, nil); err != nil || ack.Error == nil {
		t.Errorf("one too many: %+v, %v", ack, err)
	}
	if ack, err := submit(t, nc, "acme", "sales", "mail", `{}`, nil); err != nil || ack.Error != nil {
		t.Errorf("another agent's: %+v, %v", ack, err)
	}
}

func TestSubmitsConsumer(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	nc := ns.Connect()
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			var c message.SubmitsConsumer
			err := bus.Request(t.Context(), nc, subject.SubmitsConsumer(fmt.Sprint("tool", i%2)), nil, &c)
			if err != nil || c.Stream != "TOOLBUS_SUBMITS" || c.Durable != fmt.Sprint("submits_tool", i%2) {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
	wg.Wait()
	for i := range 2 {
		if _, err := submit(t, nc, "acme", "support", fmt.Sprint("tool", i), fmt.Sprintf(`{"callId":"c%d"}`, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	st := stream(t, nc, "TOOLBUS_SUBMITS")
	for i := range 2 {
		cons, err := st.Consumer(t.Context(), subject.SubmitsDurable(fmt.Sprint("tool", i)))
		if err != nil {
			t.Fatal(err)
		}
		m, err := cons.Next(jetstream.FetchMaxWait(5 * time.Second))
		if err != nil || m.Subject() != subject.AgentSubmit("acme", "support", fmt.Sprint("tool", i)) {
			t.Fatalf("%v, %v", m, err)
		}
		// Asking again does not disturb what is under way.
		if err := bus.Request(t.Context(), nc, subject.SubmitsConsumer(fmt.Sprint("tool", i)), nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := m.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	info, err := st.Info(t.Context())
	if err != nil || info.State.Msgs != 0 {
		t.Errorf("%+v, %v", info.State, err)
	}
}
