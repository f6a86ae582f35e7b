package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// strangeTool is a tool of a worker that nobody of ours wrote.
type strangeTool struct {
	name   string
	schema object
	run    func(ctx context.Context, o outsider, tenant string, chat string, arguments json.RawMessage) (string, error)
}

// nap sleeps for so many seconds, unless it is cancelled.
var nap = strangeTool{
	name:   "nap",
	schema: object{"type": "object", "properties": object{"seconds": object{"type": "number"}}},
	run: func(ctx context.Context, _ outsider, _, _ string, arguments json.RawMessage) (string, error) {
		var in struct {
			Seconds float64 `json:"seconds"`
		}
		if err := json.Unmarshal(arguments, &in); err != nil {
			return "", err
		}
		select {
		case <-time.After(time.Duration(in.Seconds * float64(time.Second))):
			return "slept well", nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	},
}

// shout writes a text in capitals and counts its calls in the chat's ToolState.
var shout = strangeTool{
	name:   "shout",
	schema: object{"type": "object", "properties": object{"text": object{"type": "string"}}, "required": []string{"text"}},
	run: func(_ context.Context, o outsider, tenant, chat string, arguments json.RawMessage) (string, error) {
		var in map[string]any
		if err := json.Unmarshal(arguments, &in); err != nil {
			return "", err
		}
		text, ok := in["text"].(string)
		if !ok {
			return "", &fault{field: "text", message: "is required"}
		}
		var count struct {
			Value int `json:"value"`
		}
		err := o.ask("toolstate."+tenant+".increment", object{"chatId": chat, "namespace": "shout", "key": "calls", "by": 1}, &count)
		return fmt.Sprintf("%s (%d)", strings.ToUpper(text), count.Value), err
	},
}

type fault struct{ field, message string }

func (f *fault) Error() string { return f.field + ": " + f.message }

var errCancelled = errors.New("cancelled")

// strangeWorker hosts a tool with a NATS client only.
type strangeWorker struct {
	o       outsider
	tool    strangeTool
	id      string
	subs    []*nats.Subscription
	running sync.Map // "tenant.agent.callId" → context.CancelCauseFunc
	calls   sync.WaitGroup
}

// work starts a worker and announces its tool.
func (o outsider) work(tool strangeTool) *strangeWorker {
	o.t.Helper()
	w := &strangeWorker{o: o, tool: tool, id: "stranger-" + tool.name}
	subscribe := func(sub *nats.Subscription, err error) {
		o.t.Helper()
		if err != nil {
			o.t.Fatal(err)
		}
		w.subs = append(w.subs, sub)
	}
	for _, family := range []string{"agent", "worker"} {
		subscribe(o.nc.QueueSubscribe("toolbus.v1."+family+".*.*.call."+tool.name, tool.name, func(m *nats.Msg) {
			w.calls.Go(func() { w.serve(m) })
		}))
	}
	subscribe(o.nc.Subscribe("toolbus.v1.agent.*.*.cancel.*", func(m *nats.Msg) {
		t := strings.Split(m.Subject, ".")
		if cancel, ok := w.running.Load(t[3] + "." + t[4] + "." + t[6]); ok {
			cancel.(context.CancelCauseFunc)(errCancelled)
		}
	}))
	if err := o.nc.Flush(); err != nil {
		o.t.Fatal(err)
	}
	w.announce(object{"name": tool.name, "description": "of a stranger", "inputSchema": tool.schema})
	return w
}

func (w *strangeWorker) announce(tools ...object) {
	w.o.t.Helper()
	var reply struct {
		TTLMs int64 `json:"ttlMs"`
	}
	if tools == nil {
		tools = []object{}
	}
	w.o.must("catalogue.announce", object{"workerId": w.id, "tools": tools}, &reply)
	if reply.TTLMs < 1000 {
		w.o.t.Errorf("an offer stands for %d ms", reply.TTLMs)
	}
}

// leave takes no more calls and answers those that run.
func (w *strangeWorker) leave() {
	w.o.t.Helper()
	w.announce()
	for _, s := range w.subs {
		if err := s.Unsubscribe(); err != nil {
			w.o.t.Error(err)
		}
	}
	w.calls.Wait()
}

func (w *strangeWorker) serve(m *nats.Msg) {
	t := strings.Split(m.Subject, ".")
	tenant, agent := t[3], t[4]
	var req struct {
		CallID    string          `json:"callId"`
		ChatID    string          `json:"chatId"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(m.Data, &req); err != nil {
		w.refuse(m, "400", "invalid_request", err.Error())
		return
	}
	if m.Header.Get("Toolbus-Beats") == "1" {
		stop := make(chan struct{})
		defer close(stop)
		go w.beat("toolbus.v1.agent."+tenant+"."+agent+".progress."+req.CallID, stop)
	}
	var entry struct {
		Config struct {
			Tools map[string]json.RawMessage `json:"tools"`
		} `json:"config"`
	}
	var r *refusal
	if err := w.o.ask("registry."+tenant+".get", object{"agentId": agent}, &entry); errors.As(err, &r) {
		w.refuse(m, "404", r.Code, r.Message)
		return
	} else if err != nil {
		w.refuse(m, "500", "internal", err.Error())
		return
	}
	if _, granted := entry.Config.Tools[w.tool.name]; !granted {
		w.refuse(m, "403", "not_allowed", "not granted")
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	key := tenant + "." + agent + "." + req.CallID
	w.running.Store(key, cancel)
	defer w.running.Delete(key)
	start := time.Now()
	content, err := w.tool.run(ctx, w.o, tenant, req.ChatID, req.Arguments)
	var f *fault
	switch {
	case errors.As(err, &f):
		w.refuse(m, "400", "invalid_arguments", f.Error(), object{"field": f.field, "message": f.message})
	case errors.Is(err, errCancelled):
		w.refuse(m, "499", "cancelled", "the call was cancelled")
	case err != nil:
		w.refuse(m, "500", "internal", err.Error())
	default:
		body, err := json.Marshal(object{"callId": req.CallID, "success": true, "content": content, "durationMs": time.Since(start).Milliseconds()})
		if err == nil {
			err = m.Respond(body)
		}
		if err != nil {
			w.o.t.Error(err)
		}
	}
}

func (w *strangeWorker) beat(to string, stop <-chan struct{}) {
	for {
		if err := w.o.nc.Publish(to, []byte(`{"beat":true}`)); err != nil {
			return // the connection is closed
		}
		select {
		case <-stop:
			return
		case <-time.After(time.Second):
		}
	}
}

// refuse answers with an error: two headers and a body.
func (w *strangeWorker) refuse(m *nats.Msg, number, code, message string, fields ...object) {
	reply := nats.NewMsg(m.Reply)
	reply.Header.Set("Nats-Service-Error-Code", number)
	reply.Header.Set("Nats-Service-Error", code+": "+message)
	e := object{"code": code, "message": message, "retryable": false}
	if fields != nil {
		e["details"] = object{"fields": fields}
	}
	var err error
	if reply.Data, err = json.Marshal(object{"error": e}); err == nil {
		err = m.RespondMsg(reply)
	}
	if err != nil {
		w.o.t.Error(err)
	}
}

// A worker that speaks NATS and nothing of ours serves our agents: here the
// command line, which asks for beats and knows the error codes.
func TestOutsiderIsAWorker(t *testing.T) {
	p, cli := up(t)
	o := outsider{t, connect(t, p.URL)}
	w := o.work(shout)
	o.must("registry.acme.apply", object{"config": object{"agents": []object{
		{"agentId": "support", "tools": object{"shout": object{}}}, {"agentId": "other"},
	}}}, &struct{}{})
	var tools struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
		Unavailable []string `json:"unavailable"`
	}
	o.must("agent.acme.support.tools", object{}, &tools)
	if len(tools.Tools) != 1 || tools.Tools[0].Name != "shout" {
		t.Errorf("tools %+v", tools)
	}

	for i, want := range []string{"HELLO (1)\n", "HELLO (2)\n"} {
		if got := cli.OK(t, "call", "shout", `{"text":"hello"}`, "-t", "acme", "-a", "support", "-c", "chat1"); got != want {
			t.Errorf("call %d: %q", i, got)
		}
	}
	for _, c := range []struct{ agent, arguments, want string }{
		{"support", `{}`, "invalid_arguments"},
		{"other", `{"text":"x"}`, "not_allowed"},
		{"nobody", `{"text":"x"}`, "not_found"},
	} {
		if r := cli.Run(t, "call", "shout", c.arguments, "-t", "acme", "-a", c.agent, "-c", "c"); r.Code != 1 || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("%s %s: exit %d, %s", c.agent, c.arguments, r.Code, r.Stderr)
		}
	}

	w.leave()
	o.until("the tool has left", func() bool {
		tools.Unavailable = nil
		o.must("agent.acme.support.tools", object{}, &tools)
		return slices.Equal(tools.Unavailable, []string{"shout"})
	})
	if r := cli.Run(t, "call", "shout", `{"text":"x"}`, "-t", "acme", "-a", "support", "-c", "c"); r.Code != 1 || !strings.Contains(r.Stderr, "unavailable") {
		t.Errorf("after it left: exit %d, %s", r.Code, r.Stderr)
	}
}
