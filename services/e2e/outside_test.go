package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/services/e2e/harness"
)

// What follows is written as a stranger would write it, from
// contracts/asyncapi.yaml: a NATS client and JSON, and nothing of ours but the
// processes under test. TestOutsidersImportNothingOfOurs holds it to that.

// outsider is a program that has read the contract.
type outsider struct {
	t  *testing.T
	nc *nats.Conn
}

// refusal is an error reply.
type refusal struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	Details   struct {
		Fields []struct {
			Field string `json:"field"`
		} `json:"fields"`
		Revision *uint64 `json:"revision"`
	} `json:"details"`
}

func (r *refusal) Error() string { return r.Code + ": " + r.Message }

// ask sends a request and reads the reply, or the error it carries.
func (o outsider) ask(to string, request, reply any) error {
	o.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		o.t.Fatal(err)
	}
	m, err := o.nc.Request("toolbus.v1."+to, body, 10*time.Second)
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return readReply(m, reply)
}

func readReply(m *nats.Msg, reply any) error {
	if m.Header.Get("Nats-Service-Error-Code") != "" {
		var body struct {
			Error *refusal `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &body); err != nil || body.Error == nil {
			return fmt.Errorf("an error reply without an error: %s", m.Data)
		}
		return body.Error
	}
	return json.Unmarshal(m.Data, reply)
}

// must is ask for what has to work.
func (o outsider) must(to string, request, reply any) {
	o.t.Helper()
	if err := o.ask(to, request, reply); err != nil {
		o.t.Fatalf("%s: %v", to, err)
	}
}

// refused is ask for what must be refused.
func (o outsider) refused(to string, request any, code string, fields ...string) {
	o.t.Helper()
	var r *refusal
	if err := o.ask(to, request, &struct{}{}); !errors.As(err, &r) || r.Code != code {
		o.t.Errorf("%s: got %v, want %s", to, err, code)
		return
	}
	var got []string
	for _, f := range r.Details.Fields {
		got = append(got, f.Field)
	}
	slices.Sort(got)
	if slices.Sort(fields); !slices.Equal(got, fields) {
		o.t.Errorf("%s: fields %v, want %v", to, got, fields)
	}
}

type object = map[string]any

// outside starts Toolbus with the examples' worker.
func outside(t *testing.T) outsider {
	t.Helper()
	p, _ := up(t)
	harness.Start(t, builder.Build(t, "../examples/cmd/examples-worker"), "--server", p.URL)
	o := outsider{t, connect(t, p.URL)}
	o.until("the examples' tools are in the catalogue", func() bool {
		var c struct {
			Tools []struct {
				Name string `json:"name"`
			} `json:"tools"`
		}
		o.must("catalogue.tools", object{}, &c)
		names := map[string]bool{}
		for _, tool := range c.Tools {
			names[tool.Name] = true
		}
		return names["addTrackingCode"] && names["writeFile"]
	})
	return o
}

// until asks again until something holds.
func (o outsider) until(what string, holds func() bool) {
	o.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			o.t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type callReply struct {
	CallID       string          `json:"callId"`
	Success      bool            `json:"success"`
	Content      string          `json:"content"`
	ErrorMessage string          `json:"errorMessage"`
	Data         json.RawMessage `json:"data"`
}

func TestOutsiderCallsAToolAndReadsWhatItDid(t *testing.T) {
	o := outside(t)
	config := object{"agents": []object{
		{"agentId": "support", "tools": object{"addTrackingCode": object{}, "setRelabelDirection": object{}, "submitRelabeling": object{}}},
	}}
	var applied struct {
		Agents []struct {
			AgentID string `json:"agentId"`
			Changed bool   `json:"changed"`
		} `json:"agents"`
	}
	o.must("registry.acme.apply", object{"config": config}, &applied)
	if len(applied.Agents) != 1 || applied.Agents[0].AgentID != "support" || !applied.Agents[0].Changed {
		t.Errorf("applied %+v", applied)
	}
	var tools struct {
		Tools []struct {
			Name        string `json:"name"`
			InputSchema struct {
				Type string `json:"type"`
			} `json:"inputSchema"`
		} `json:"tools"`
	}
	o.must("agent.acme.support.tools", object{}, &tools)
	if len(tools.Tools) != 3 || tools.Tools[0].Name != "addTrackingCode" || tools.Tools[0].InputSchema.Type != "object" {
		t.Errorf("tools %+v", tools)
	}

	var reply callReply
	call := object{"callId": "one", "chatId": "chat 1", "arguments": object{"code": "]C100340434757211819883"}}
	o.must("agent.acme.support.call.addTrackingCode", call, &reply)
	if !reply.Success || reply.CallID != "one" || !strings.Contains(reply.Content, "00340434757211819883") {
		t.Errorf("reply %+v", reply)
	}
	var state struct {
		Found    bool                       `json:"found"`
		Data     map[string]json.RawMessage `json:"data"`
		Revision uint64                     `json:"revision"`
	}
	ref := object{"chatId": "chat 1", "namespace": "relabeling"}
	o.must("toolstate.acme.all", ref, &state)
	if got := string(state.Data["codes"]); !state.Found || !strings.Contains(got, "00340434757211819883") {
		t.Errorf("ToolState %+v", state)
	}

	// What fails says how.
	reply = callReply{}
	o.must("agent.acme.support.call.submitRelabeling", object{"chatId": "empty", "arguments": object{}}, &reply)
	if reply.Success || reply.ErrorMessage == "" {
		t.Errorf("a tool's own failure: %+v", reply)
	}
	o.refused("agent.acme.support.call.addTrackingCode", object{"chatId": "c", "arguments": object{"cod": "x"}}, "invalid_arguments", "code", "cod")
	o.refused("agent.acme.support.call.registerMember", object{"arguments": object{"name": "x", "email": "x@example.org", "disziplin": "y"}}, "not_allowed")
	o.refused("agent.acme.nobody.tools", object{}, "not_found")
	o.refused("toolstate.acme.set", object{"chatId": "chat 1", "namespace": "relabeling", "key": "k", "value": 1, "ifRevision": 0}, "conflict")
	if err := o.ask("agent.acme.support.call.noSuchTool", object{}, &reply); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a tool that nobody hosts: %v", err)
	}
}

func TestOutsiderWritesAndReadsFiles(t *testing.T) {
	p, _ := up(t)
	o := outsider{t, connect(t, p.URL)}
	var written struct {
		Size     int64  `json:"size"`
		Revision uint64 `json:"revision"`
	}
	o.must("files.acme.write", object{"path": "notes/a.txt", "content": "Grüße\n", "opId": "1"}, &written)
	o.must("files.acme.write", object{"path": "notes/a.txt", "content": "more\n", "mode": "append", "opId": "2"}, &written)
	o.must("files.acme.write", object{"path": "notes/a.txt", "content": "more\n", "mode": "append", "opId": "2"}, &written) // a retry
	var read struct {
		Exists  bool    `json:"exists"`
		Content *string `json:"content"`
		Size    int64   `json:"size"`
	}
	o.must("files.acme.read", object{"path": "notes/a.txt"}, &read)
	if !read.Exists || read.Content == nil || *read.Content != "Grüße\nmore\n" || read.Size != written.Size {
		t.Errorf("read %+v after %+v", read, written)
	}
	o.must("files.globex.read", object{"path": "notes/a.txt"}, &read)
	if read.Exists {
		t.Error("another tenant reads it")
	}
	o.refused("files.acme.write", object{"path": "../a.txt", "content": ""}, "invalid_request", "path")
	o.refused("files.acme.write", object{"path": "notes/a.txt", "content": "", "ifRevision": written.Revision - 1}, "conflict")
}

func TestOutsiderHearsBeatsAndCancels(t *testing.T) {
	o := outside(t)
	o.must("registry.acme.apply", object{"config": object{"agentId": "support", "tools": object{"nap": object{}}}}, &struct{}{})
	w := o.work(nap)
	heard := o.listen("toolbus.v1.agent.acme.support.progress.*")
	m := nats.NewMsg("toolbus.v1.agent.acme.support.call.nap")
	m.Header.Set("Toolbus-Beats", "1")
	m.Data = []byte(`{"callId":"long","arguments":{"seconds":60}}`)
	m.Reply = o.nc.NewInbox()
	replies := o.listen(m.Reply)
	if err := o.nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if beat := o.next(heard); beat.Subject != "toolbus.v1.agent.acme.support.progress.long" || string(beat.Data) != `{"beat":true}` {
			t.Errorf("%s: %s", beat.Subject, beat.Data)
		}
	}
	start := time.Now()
	if err := o.nc.Publish("toolbus.v1.agent.acme.support.cancel.long", nil); err != nil {
		t.Fatal(err)
	}
	var r *refusal
	if err := readReply(o.next(replies), &struct{}{}); !errors.As(err, &r) || r.Code != "cancelled" || time.Since(start) > time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	w.leave()
}

func TestOutsiderSubmits(t *testing.T) {
	o := outside(t)
	o.must("registry.acme.apply", object{"config": object{"agentId": "support", "tools": object{"addTrackingCode": object{}}}}, &struct{}{})
	var ack struct {
		Stream string          `json:"stream"`
		Error  json.RawMessage `json:"error"`
	}
	submit := func(id string, arguments object) {
		t.Helper()
		m := nats.NewMsg("toolbus.v1.agent.acme.support.submit.addTrackingCode")
		m.Header.Set("Toolbus-Call-Id", id)
		var err error
		if m.Data, err = json.Marshal(object{"callId": id, "chatId": "c", "arguments": arguments}); err != nil {
			t.Fatal(err)
		}
		reply, err := o.nc.RequestMsg(m, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Stream == "" || ack.Error != nil {
			t.Fatalf("acknowledged with %s", reply.Data)
		}
	}
	type result struct {
		State string     `json:"state"`
		Reply *callReply `json:"reply"`
		Error *refusal   `json:"error"`
	}
	wait := func(id string) (r result) {
		t.Helper()
		o.until("the result of "+id, func() bool {
			r = result{}
			o.must("agent.acme.support.result."+id, object{"waitMs": 2000}, &r)
			return r.State == "done"
		})
		return r
	}
	submit("good", object{"code": "8806096235386"})
	if r := wait("good"); r.Reply == nil || !r.Reply.Success || r.Reply.CallID != "good" || r.Error != nil {
		t.Errorf("got %+v", r)
	}
	submit("bad", object{"cod": "8806096235386"})
	if r := wait("bad"); r.Reply != nil || r.Error == nil || r.Error.Code != "invalid_arguments" {
		t.Errorf("got %+v", r)
	}
	// Certain only once none of the agent's calls is under way any more.
	o.until("not_found for a call never submitted", func() bool {
		var r *refusal
		return errors.As(o.ask("agent.acme.support.result.never", object{}, &struct{}{}), &r) && r.Code == "not_found"
	})
}

type wake struct {
	WakeID  string `json:"wakeId"`
	Mode    string `json:"mode"`
	Message string `json:"message"`
	ChatID  string `json:"chatId"`
	Attempt int    `json:"attempt"`
	Source  struct {
		Kind string `json:"kind"`
	} `json:"source"`
}

func TestOutsiderIsWoken(t *testing.T) {
	p, _ := up(t)
	o := outsider{t, connect(t, p.URL)}
	o.must("registry.acme.apply", object{"config": object{"agentId": "support"}}, &struct{}{})
	send := func(message string) string {
		t.Helper()
		var sent struct {
			WakeID string `json:"wakeId"`
		}
		o.must("scheduler.acme.wake", object{"agentId": "support", "message": message, "chatId": "chat 1", "opId": message}, &sent)
		return sent.WakeID
	}
	ids := []string{send("first"), send("second")} // nobody listens yet
	wakes := o.listen("toolbus.v1.agent.acme.support.wake")
	if err := o.nc.Publish("toolbus.v1.agent.acme.support.ready", nil); err != nil {
		t.Fatal(err)
	}
	receive := func() (w wake, m *nats.Msg) {
		t.Helper()
		m = o.next(wakes)
		if err := json.Unmarshal(m.Data, &w); err != nil {
			t.Fatal(err)
		}
		return w, m
	}
	respond := func(m *nats.Msg, body string) {
		t.Helper()
		if err := m.Respond([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	w, m := receive()
	if w.WakeID != ids[0] || w.Message != "first" || w.Mode != "chat" || w.ChatID != "chat 1" || w.Source.Kind != "api" {
		t.Errorf("got %+v, want %s", w, ids[0])
	}
	respond(m, `{"inProgress":true}`)
	respond(m, `{"accepted":false,"retryAfter":"100ms"}`) // busy: the same comes again
	if again, busy := receive(); again != w {
		t.Errorf("got %+v after %+v", again, w) // being busy is no failed attempt
	} else {
		m = busy
	}
	respond(m, `{"accepted":true}`)
	if w, m = receive(); w.WakeID != ids[1] {
		t.Errorf("got %+v, want %s", w, ids[1])
	}
	respond(m, `{"accepted":true}`)
	ids = append(ids, send("third"))
	if w, m = receive(); w.WakeID != ids[2] {
		t.Errorf("got %+v, want %s", w, ids[2])
	}
	respond(m, `{"accepted":true}`)
	o.until("the mailbox is empty", func() bool {
		var left struct {
			Wakes []json.RawMessage `json:"wakes"`
		}
		o.must("scheduler.acme.wakes", object{"agentId": "support"}, &left)
		return len(left.Wakes) == 0
	})
}

// listen subscribes; what arrives waits for next.
func (o outsider) listen(to string) *nats.Subscription {
	o.t.Helper()
	sub, err := o.nc.SubscribeSync(to)
	if err == nil {
		err = o.nc.Flush()
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return sub
}

func (o outsider) next(sub *nats.Subscription) *nats.Msg {
	o.t.Helper()
	m, err := sub.NextMsg(15 * time.Second)
	if err != nil {
		o.t.Fatalf("%s: %v", sub.Subject, err)
	}
	return m
}

func TestOutsidersImportNothingOfOurs(t *testing.T) {
	for _, name := range []string{"outside_test.go", "outside_worker_test.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(path, ours) && path != ours+"services/e2e/harness" {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}
