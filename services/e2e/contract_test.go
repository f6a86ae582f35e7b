package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/services/e2e/contract"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// unserved are the channels of the contract that nothing serves yet.
var unserved = []string{"instanceCall", "instanceLoad"} // of full workers, of which there are none here

// What really travels between Toolbus, its examples' worker, an agent and the
// command line is what contracts/asyncapi.yaml says, to the last field; and
// everything that it says travels.
func TestTrafficKeepsToTheContract(t *testing.T) {
	doc, err := contract.Load(repoRoot(t), contract.Strict)
	if err != nil {
		t.Fatal(err)
	}
	p, cli := up(t)
	rec := record(t, p.URL)
	harness.Start(t, builder.Build(t, "../examples/cmd/examples-worker"), "--server", p.URL)
	s := scenario{t: t, nc: connect(t, p.URL), cli: cli}
	s.play()

	seen := map[string]int{}
	requests, inbox := rec.stop()
	for _, fault := range check(doc, requests, inbox, seen) {
		t.Error(fault)
	}
	var unseen []string
	for key := range doc.Channels {
		if seen[key] == 0 && key != contract.Inbox && !slices.Contains(unserved, key) {
			unseen = append(unseen, key)
		}
	}
	if slices.Sort(unseen); len(unseen) > 0 {
		t.Errorf("the scenario saw nothing on the channels %v", unseen)
	}
	replies := doc.Channels[contract.Inbox].Messages
	var unanswered []string
	for name := range replies {
		if seen["reply "+name] == 0 {
			unanswered = append(unanswered, name)
		}
	}
	if slices.Sort(unanswered); len(unanswered) > 0 {
		t.Errorf("the scenario saw no reply of the kinds %v", unanswered)
	}
	if t.Failed() {
		t.Logf("seen: %v", seen)
	}
}

// Whatever the services answer is in the contract.
func TestEveryEndpointHasAChannel(t *testing.T) {
	doc, err := contract.Load(repoRoot(t), false)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := up(t)
	nc := connect(t, p.URL)
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest("$SRV.INFO", sub.Subject, nil); err != nil {
		t.Fatal(err)
	}
	services := map[string]bool{}
	for {
		m, err := sub.NextMsg(time.Second)
		if errors.Is(err, nats.ErrTimeout) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var info micro.Info
		if err := json.Unmarshal(m.Data, &info); err != nil {
			t.Fatal(err)
		}
		services[info.Name] = true
		for _, e := range info.Endpoints {
			if !slices.ContainsFunc(slices.Collect(maps.Values(doc.Channels)), func(c contract.Channel) bool { return mayMeet(e.Subject, c.Address) }) {
				t.Errorf("%s answers %s, which has no channel", info.Name, e.Subject)
			}
		}
	}
	for _, want := range []string{"state", "files", "registry", "scheduler", "toolworker"} {
		if !services[want] {
			t.Errorf("%s did not answer", want)
		}
	}
}

// mayMeet tells whether a pattern and an address, with {parameters}, have a
// subject in common.
func mayMeet(pattern, address string) bool {
	p, a := strings.Split(pattern, "."), strings.Split(address, ".")
	if len(p) != len(a) {
		return false
	}
	for i := range p {
		if p[i] != a[i] && p[i] != "*" && !strings.HasPrefix(a[i], "{") {
			return false
		}
	}
	return true
}

// recording is what passed on Toolbus's subjects and the inboxes. While it
// runs nobody ever hears "no responders" there, since the recorder listens.
type recording struct {
	t    *testing.T
	nc   *nats.Conn
	subs []*recorded
}

// recorded is what passed on one family of subjects, in order.
type recorded struct {
	end  string // the subject whose message ends it
	done chan struct{}
	msgs []*nats.Msg // complete once done is closed
}

func record(t *testing.T, url string) *recording {
	t.Helper()
	r := &recording{t: t, nc: connect(t, url)}
	for _, prefix := range []string{subject.Prefix, "_INBOX."} {
		s := &recorded{end: prefix + "end-of-recording", done: make(chan struct{})}
		r.subs = append(r.subs, s)
		sub, err := r.nc.Subscribe(prefix+">", func(m *nats.Msg) {
			if m.Subject == s.end {
				close(s.done)
				return
			}
			s.msgs = append(s.msgs, m)
		})
		if err == nil {
			err = sub.SetPendingLimits(-1, -1)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sub.Unsubscribe() })
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return r
}

// stop returns, when all of it is there, the requests and events, and what went
// to inboxes.
func (r *recording) stop() (requests, replies []*nats.Msg) {
	r.t.Helper()
	for _, s := range r.subs {
		if err := r.nc.Publish(s.end, nil); err != nil {
			r.t.Fatal(err)
		}
		select {
		case <-s.done:
		case <-time.After(15 * time.Second):
			r.t.Fatal("the recording does not end")
		}
	}
	r.nc.Close()
	return r.subs[0].msgs, r.subs[1].msgs
}

// check holds each message against the contract and counts what was seen, by
// channel and as "reply <message>".
func check(doc *contract.Document, requests, replies []*nats.Msg, seen map[string]int) (faults []string) {
	told := map[string]bool{}
	fault := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !told[text] && len(faults) < 50 {
			told[text] = true
			faults = append(faults, text)
		}
	}
	asked := map[string]contract.Channel{} // by reply subject
	for _, m := range requests {
		if doc.IsPrivate(m.Subject) {
			continue
		}
		ch, ok := doc.Match(m.Subject)
		if !ok {
			fault("a message on %s, which has no channel", m.Subject)
			continue
		}
		seen[ch.Key]++
		if _, err := fits(ch, slices.Collect(maps.Keys(ch.Messages)), m); err != nil {
			fault("%s: %v\n%.600s", m.Subject, err, m.Data)
		}
		expects := len(doc.Replies(ch.Key)) > 0
		if expects != (m.Reply != "") {
			fault("%s: reply subject %q; are there replies in the contract? %v", m.Subject, m.Reply, expects)
		}
		if m.Reply != "" {
			asked[m.Reply] = ch
		}
	}
	for _, m := range replies {
		ch, ok := asked[m.Subject]
		if !ok || m.Header.Get("Status") != "" {
			continue // of JetStream and NATS itself
		}
		name, err := fits(doc.Channels[contract.Inbox], doc.Replies(ch.Key), m)
		if err != nil {
			fault("reply on %s: %v\n%.600s", ch.Key, err, m.Data)
			continue
		}
		seen["reply "+name]++
	}
	return faults
}

// fits finds which of a channel's messages m is.
func fits(ch contract.Channel, names []string, m *nats.Msg) (string, error) {
	isError := m.Header.Get(message.HeaderErrorCode) != ""
	var errs []error
	for _, name := range names {
		if isError != (name == "error") {
			continue
		}
		err := ch.Messages[name].Check(m.Header, m.Data)
		if err == nil {
			return name, nil
		}
		errs = append(errs, fmt.Errorf("as %s: %w", name, err))
	}
	if len(errs) == 0 {
		return "", errors.New("no message is foreseen")
	}
	return "", errors.Join(errs...)
}

// scenario touches everything.
type scenario struct {
	t   *testing.T
	nc  *nats.Conn
	cli harness.CLI
}

const (
	acme    = "acme"
	support = "support"
)

func (s scenario) play() {
	s.registry()
	s.state()
	s.files()
	a, err := agent.New(s.nc, acme, support)
	if err != nil {
		s.t.Fatal(err)
	}
	defer a.Close()
	s.calls(a)
	s.submits(a)
	s.wakes(a)
	s.leave()
}

// ok makes a request that must be served.
func (s scenario) ok(to string, in any) {
	s.t.Helper()
	if err := bus.Request(s.t.Context(), s.nc, to, in, nil); err != nil {
		s.t.Errorf("%s: %v", to, err)
	}
}

func (s scenario) refused(code errcode.Code, to string, in any) {
	s.t.Helper()
	if err := bus.Request(s.t.Context(), s.nc, to, in, nil); !errors.Is(err, code) {
		s.t.Errorf("%s: got %v, want %s", to, err, code)
	}
}

// until asks again until something holds.
func (s scenario) until(what string, holds func() bool) {
	s.t.Helper()
	outsider{s.t, s.nc}.until(what, holds)
}

func (s scenario) registry() {
	s.t.Helper()
	config := `{"tenant":{"settings":{"region":"eu"}},"agents":[
		{"agentId":"support","timezone":"Europe/Berlin","tools":{"addTrackingCode":{},"setRelabelDirection":{},"submitRelabeling":{},
			"writeFile":{},"readFile":{},"readInbox":{"path":"inbox.txt"}},
		 "scheduler":[{"id":"daily","cron":"0 8 * * 1-5","taskMessage":"report","missed":"skip"}],
		 "toolJobs":[{"jobId":"inbox-watch","toolName":"readInbox","jobTypeId":"inbox_new_lines","cron":"* * * * * *"}]},
		{"agentId":"gone"}]}`
	s.until("the examples' tools are in the catalogue", func() bool {
		var c message.CatalogueTools
		if err := bus.Request(s.t.Context(), s.nc, subject.Catalogue("tools"), nil, &c); err != nil {
			s.t.Fatal(err)
		}
		return slices.ContainsFunc(c.Tools, func(e message.CatalogueEntry) bool { return e.Name == "readInbox" })
	})
	s.cli.OK(s.t, "apply", file(s.t, "agents.json", config), "-t", acme)
	s.refused(errcode.InvalidRequest, subject.Registry(acme, "apply"), message.RegistryApply{Config: json.RawMessage(`{"agentId":"a.b"}`)})
	s.cli.OK(s.t, "get", "agents", "-t", acme)
	s.cli.OK(s.t, "get", "agents", support, "-t", acme)
	s.cli.OK(s.t, "get", "tools", "-t", acme, "-a", support)
	s.ok(subject.Registry(acme, "delete"), message.RegistryDelete{AgentID: "gone"})
	s.ok(subject.Registry(subject.AllTenants, "tenants"), nil)
}

func (s scenario) state() {
	ref := message.ToolStateRef{ChatID: "chat 1", Namespace: "n"}
	raw := func(v string) json.RawMessage { return json.RawMessage(v) }
	zero := uint64(0)
	toolstate := func(op string) string { return subject.ToolState(acme, op) }
	s.ok(toolstate("set"), message.ToolStateSet{ToolStateRef: ref, Key: "k", Value: raw(`{"a":[1]}`), TTL: "+2 hours", OpID: "1"})
	s.ok(toolstate("get"), message.ToolStateGet{ToolStateRef: ref, Key: "k"})
	s.ok(toolstate("get"), message.ToolStateGet{ToolStateRef: ref, Key: "none"})
	s.ok(toolstate("append"), message.ToolStateAppend{ToolStateRef: ref, Key: "l", Values: []json.RawMessage{raw("1"), raw(`"x"`)}, Unique: true})
	s.ok(toolstate("increment"), message.ToolStateIncrement{ToolStateRef: ref, Key: "c", By: "1.5"})
	s.ok(toolstate("update"), message.ToolStateUpdate{ToolStateRef: ref, Set: map[string]json.RawMessage{"x": raw("null")}, Delete: []string{"l"}})
	s.ok(toolstate("all"), message.ToolStateAll{ToolStateRef: ref})
	s.ok(toolstate("list"), message.ToolStateList{Limit: 1})
	s.ok(toolstate("delete"), message.ToolStateDelete{ToolStateRef: ref, Key: "k"})
	s.refused(errcode.Conflict, toolstate("set"), message.ToolStateSet{ToolStateRef: ref, Key: "k", Value: raw("1"), IfRevision: &zero})
	s.ok(toolstate("clear"), message.ToolStateClear{ToolStateRef: ref})
	s.ok(toolstate("all"), message.ToolStateAll{ToolStateRef: ref})

	store := func(op string) string { return subject.Store(acme, support, "Mail", op) }
	s.ok(store("set"), message.StoreSet{Key: "offset", Value: "1", OpID: "1"})
	s.ok(store("get"), message.StoreGet{Key: "offset"})
	s.ok(store("get"), message.StoreGet{Key: "none"})
	s.ok(store("list"), message.StoreList{Prefix: "o"})
	s.ok(store("delete"), message.StoreDelete{Key: "offset"})
}

func (s scenario) files() {
	one := int64(1)
	ops := func(op string) string { return subject.Files(acme, op) }
	s.ok(ops("write"), message.FileWrite{Path: "a.txt", Content: "hello", OpID: "1"})
	s.ok(ops("write"), message.FileWrite{Path: "a.txt", Content: "AA==", Encoding: message.EncodingBase64, Mode: message.ModeAppend})
	s.refused(errcode.Conflict, ops("write"), message.FileWrite{Path: "a.txt", Mode: message.ModeCreate})
	s.ok(ops("read"), message.FileRead{Path: "a.txt", Encoding: message.EncodingBase64, Offset: 1, Length: &one})
	s.ok(ops("read"), message.FileRead{Path: "none.txt"})
	s.ok(ops("stat"), message.FileStat{Path: "a.txt"})
	s.ok(ops("list"), message.FileList{Limit: 1})
	s.ok(ops("move"), message.FileMove{Path: "a.txt", To: "b/a.txt", Overwrite: true, OpID: "2"})
	s.refused(errcode.NotFound, ops("move"), message.FileMove{Path: "a.txt", To: "c.txt"})
	s.ok(ops("versions"), message.FileVersions{Path: "b/a.txt"})
	s.refused(errcode.NotFound, ops("restore"), message.FileRestore{Path: "b/a.txt", Revision: 1, OpID: "3"})
	var stat message.FileInfo
	if err := bus.Request(s.t.Context(), s.nc, ops("stat"), message.FileStat{Path: "b/a.txt"}, &stat); err != nil {
		s.t.Error(err)
	}
	s.ok(ops("restore"), message.FileRestore{Path: "b/a.txt", Revision: stat.Revision})
	s.ok(ops("delete"), message.FileDelete{Path: "b/a.txt"})
	s.refused(errcode.InvalidRequest, ops("stat"), message.FileStat{Path: "../a"})
	if _, err := files.New(s.nc, acme).Put(s.t.Context(), "big.bin", strings.NewReader(strings.Repeat("x", 3<<20))); err != nil {
		s.t.Error(err)
	}
}

func (s scenario) calls(a *agent.Client) {
	s.t.Helper()
	ctx := s.t.Context()
	ok := func(tool string, arguments any, opts ...agent.Option) {
		s.t.Helper()
		if r, err := a.Call(ctx, tool, arguments, append(opts, agent.Chat("chat 1"))...); err != nil || !r.Success {
			s.t.Errorf("%s: %+v, %v", tool, r, err)
		}
	}
	ok("addTrackingCode", object{"code": "8806096235386"})
	ok("setRelabelDirection", object{"direction": "DHL->DPD"})
	ok("submitRelabeling", nil) // calls writeFile
	// A call too short for a beat, unless it is asked for at once.
	m, err := bus.NewMsg(subject.AgentCall("acme", "support", "addTrackingCode"), message.CallRequest{
		CallID: "beating", ChatID: "chat 1", Arguments: []byte(`{"code":"8806096235386"}`),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	m.Header.Set(message.HeaderBeats, "1")
	if _, err := bus.RequestMsg(ctx, s.nc, m); err != nil {
		s.t.Error(err)
	}
	if r, err := a.Call(ctx, "submitRelabeling", nil, agent.Chat("chat 2")); err != nil || r.Success {
		s.t.Errorf("a tool's own failure: %+v, %v", r, err)
	}
	// Bodies that do not fit a message, both ways.
	large := strings.Repeat("0123456789abcdef", 1<<17)
	ok("writeFile", object{"path": "large.txt", "content": large})
	ok("readFile", object{"path": "large.txt"})
	for code, call := range map[errcode.Code]struct {
		tool string
		in   object
	}{
		errcode.InvalidArguments: {"addTrackingCode", object{"cod": "x"}},
		errcode.NotAllowed:       {"registerMember", object{"name": "x", "email": "x@example.org", "disziplin": "y"}},
	} {
		if _, err := a.Call(ctx, call.tool, call.in); !errors.Is(err, code) {
			s.t.Errorf("%s: got %v, want %s", call.tool, err, code)
		}
	}
	if err := a.Cancel(ctx, "over"); err != nil { // harmless when it is over
		s.t.Error(err)
	}
}

func (s scenario) submits(a *agent.Client) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for code, in := range map[errcode.Code]object{"": {"code": "8806096235386"}, errcode.InvalidArguments: {"cod": "x"}} {
		id, err := a.Submit(ctx, "addTrackingCode", in, agent.Chat("chat 1"))
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := a.Wait(ctx, id); errcode.Of(err) != code {
			s.t.Errorf("submitted %v: got %v, want %q", in, err, code)
		}
	}
	s.until("what could not be served is dead", func() bool {
		var dead message.SubmitListing
		if err := bus.Request(ctx, s.nc, subject.Submits(acme, "list"), message.SubmitList{State: message.SubmitsDead}, &dead); err != nil {
			s.t.Fatal(err)
		}
		if len(dead.Submits) == 1 {
			s.ok(subject.Submits(acme, "redrive"), message.SubmitRef{AgentID: support, CallID: dead.Submits[0].CallID})
		}
		return len(dead.Submits) == 1
	})
	s.ok(subject.Submits(acme, "list"), message.SubmitList{AgentID: support})
	s.refused(errcode.NotFound, subject.Submits(acme, "redrive"), message.SubmitRef{AgentID: support, CallID: "never"})
	s.refused(errcode.NotFound, subject.Result(acme, "nobody", "get"), message.ResultGet{CallID: "never"})
	s.until("a call that was never submitted is not found", func() bool { // pending while another may be it
		_, err := a.Result(ctx, "never", 0)
		return errors.Is(err, errcode.NotFound)
	})
}

func (s scenario) wakes(a *agent.Client) {
	s.t.Helper()
	woken := make(chan *agent.Wake, 10)
	w, err := a.Wakes(s.t.Context(), func(_ context.Context, w *agent.Wake) error { woken <- w; return nil })
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := w.Stop(s.t.Context()); err != nil {
			s.t.Error(err)
		}
	}()
	next := func(kind string) {
		s.t.Helper()
		for {
			select {
			case w := <-woken:
				if w.Source.Kind == kind {
					return
				}
			case <-time.After(15 * time.Second):
				s.t.Fatalf("no wake of a %s", kind)
			}
		}
	}
	ops := func(op string) string { return subject.Scheduler(acme, op) }
	s.ok(ops("wake"), message.SchedulerWake{AgentID: support, Message: "hello", ChatID: "chat 1", OpID: "1"})
	next(message.SourceAPI)
	s.ok(ops("list"), message.SchedulerList{AgentID: support})
	entry := message.SchedulerEntryRef{AgentID: support, EntryID: "daily"}
	s.ok(ops("pause"), entry)
	s.ok(ops("resume"), entry)
	s.ok(ops("trigger"), entry)
	next(message.SourceSchedule)
	// A job that finds something: it runs every second.
	s.ok(subject.Files(acme, "write"), message.FileWrite{Path: "inbox.txt", Content: "first\nsecond\n", Mode: message.ModeAppend})
	next(message.SourceToolJob)
	s.ok(subject.Store(acme, support, "readInbox", "outbox"), message.StoreOutbox{JobID: "inbox-watch"})
	s.ok(ops("wake"), message.SchedulerWake{AgentID: support, Message: "later", In: "1h", ExpiresAfter: "1h"})
	s.ok(ops("wakes"), message.SchedulerWakes{AgentID: support})
	s.ok(ops("history"), message.SchedulerEntryRef{AgentID: support, EntryID: "inbox-watch"})
	for _, kind := range message.EventKinds {
		s.until("the audit trail has a "+kind, func() bool {
			var page message.EventListing
			err := bus.Request(s.t.Context(), s.nc, subject.Events(acme, "list"), message.EventsList{AgentID: support, Kind: kind, Limit: 1}, &page)
			return err == nil && len(page.Events) == 1 && page.Events[0].Kind == kind
		})
	}
	s.refused(errcode.InvalidRequest, subject.Events(acme, "list"), message.EventsList{Cursor: "none"})
	s.refused(errcode.NotFound, ops("trigger"), message.SchedulerEntryRef{AgentID: support, EntryID: "none"})
}

// leave ends the built-in worker, which takes its offers back.
func (s scenario) leave() {
	s.t.Helper()
	s.ok(subject.Catalogue("announce"), message.CatalogueAnnounce{WorkerID: "visitor", Tools: []message.ToolDefinition{
		{Name: "visit", Description: "visits", InputSchema: json.RawMessage(`{"type":"object"}`), Version: "1", TimeoutMs: 1000},
	}})
	s.ok(subject.Catalogue("announce"), message.CatalogueAnnounce{WorkerID: "visitor", Tools: []message.ToolDefinition{}})
}
