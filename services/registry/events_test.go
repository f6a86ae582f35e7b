package registry_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// publish adds an event to the trail and returns its call id.
func (c client) publish(agent, kind string, n int, header nats.Header) string {
	c.t.Helper()
	id := fmt.Sprintf("%s-%s-%d", agent, kind, n)
	data, err := message.Marshal(message.Event{
		Kind: kind, Time: time.Now().UTC().Format(time.RFC3339Nano), AgentID: agent, Outcome: message.OutcomeOK, CallID: id,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	m := &nats.Msg{Subject: subject.Event(c.tenant, agent, kind), Header: header, Data: data}
	if err := c.nc.PublishMsg(m); err != nil {
		c.t.Fatal(err)
	}
	return id
}

// trail follows the pages to the end and returns the call ids.
func (c client) trail(req message.EventsList) (ids []string) {
	c.t.Helper()
	for range 100 {
		page := must[message.EventListing](c)(ask[message.EventListing](c, subject.Events(c.tenant, "list"), req))
		for _, e := range page.Events {
			ids = append(ids, e.CallID)
		}
		if req.Cursor = page.Cursor; page.Cursor == "" {
			return ids
		}
	}
	c.t.Fatal("the list does not end")
	return nil
}

// until waits until the trail has n events.
func (c client) until(n int, req message.EventsList) []string {
	c.t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		ids := c.trail(req)
		if len(ids) >= n || time.Now().After(end) {
			return ids
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s:\n%v, want\n%v", what, got, want)
	}
}

func TestEventsAreListedInOrderByTheirTenant(t *testing.T) {
	_, acme := setup(t)
	globex := acme
	globex.tenant = "globex"
	var all, calls, bots []string
	for n := range 10 {
		for _, agent := range []string{"support", "bot"} {
			for _, kind := range []string{message.EventCall, message.EventJob} {
				id := acme.publish(agent, kind, n, nil)
				all = append(all, id)
				if kind == message.EventCall {
					calls = append(calls, id)
				}
				if agent == "bot" {
					bots = append(bots, id)
				}
			}
		}
		globex.publish("support", message.EventCall, 100+n, nil)
	}
	same(t, "all", acme.until(len(all), message.EventsList{}), all)
	same(t, "in pages of seven", acme.trail(message.EventsList{Limit: 7}), all)
	same(t, "in full pages", acme.trail(message.EventsList{Limit: 10}), all)
	same(t, "calls", acme.trail(message.EventsList{Kind: message.EventCall, Limit: 3}), calls)
	same(t, "of an agent", acme.trail(message.EventsList{AgentID: "bot", Limit: 3}), bots)
	later := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	same(t, "of the future", acme.trail(message.EventsList{Since: later}), nil)
	earlier := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	same(t, "since an hour ago", acme.trail(message.EventsList{Since: earlier, Limit: 3}), all)
	if n := len(globex.until(10, message.EventsList{})); n != 10 {
		t.Errorf("another tenant sees %d events, want its 10", n)
	}
}

// Events that were published together are listed like others, and pages end between them.
func TestEventsOfOneMessage(t *testing.T) {
	_, c := setup(t)
	var want []string
	for n := range 3 {
		var e message.Event
		for i := range 5 {
			one := message.Event{Kind: "call", Time: "2026-03-02T10:00:00Z", AgentID: "a", Outcome: "ok", CallID: fmt.Sprint(n, "-", i)}
			want = append(want, one.CallID)
			if i == 0 {
				e = one
			} else {
				e.More = append(e.More, one)
			}
		}
		data, err := message.Marshal(e)
		if err == nil {
			err = c.nc.Publish(subject.Event("acme", "a", "call"), data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	same(t, "all", c.until(len(want), message.EventsList{}), want)
	for _, limit := range []int{1, 2, 5, 7} {
		same(t, fmt.Sprint("in pages of ", limit), c.trail(message.EventsList{Limit: limit}), want)
	}
}

// A listing fits a message, however large its events are.
func TestLargeEventsComeInSmallerPages(t *testing.T) {
	srv := natstest.Start(t)
	start(t, srv, 0)
	c := client{t, srv.Connect(), "acme"}
	const n = 40
	data := make([]byte, 60<<10)
	for i := range data {
		data[i] = 'x'
	}
	for i := range n {
		body := fmt.Sprintf(`{"kind":"call","time":"2026-03-02T10:00:00Z","agentId":"a","outcome":"ok","callId":"%d","arguments":{"v":"%s"}}`, i, data)
		if err := c.nc.Publish(subject.Event("acme", "a", "call"), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.until(n, message.EventsList{}); len(got) != n {
		t.Errorf("%d of %d events came", len(got), n)
	}
}

func TestBadQuestionsNameTheField(t *testing.T) {
	_, c := setup(t)
	for field, req := range map[string]message.EventsList{
		"agentId": {AgentID: "a.b"}, "kind": {Kind: ">"}, "since": {Since: "yesterday"}, "cursor": {Cursor: "x"}, "limit": {Limit: -1},
	} {
		_, err := ask[message.EventListing](c, subject.Events("acme", "list"), req)
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details == nil || e.Details.Fields[0].Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A publisher's headers neither remove what stands in the trail nor let an event
// vanish early.
func TestHeadersDoNotHarmTheTrail(t *testing.T) {
	_, c := setup(t)
	want := []string{c.publish("a", message.EventCall, 0, nil)}
	for i, h := range []nats.Header{
		{"Nats-Rollup": {"all"}}, {"Nats-Rollup": {"sub"}}, {"Nats-TTL": {"1s"}}, {"Nats-Schedule": {"@at 2020-01-01T00:00:00Z"}},
	} {
		c.publish("a", message.EventCall, 100+i, h) // refused by the stream
	}
	want = append(want, c.publish("a", message.EventCall, 1, nil))
	c.until(len(want), message.EventsList{})
	same(t, "the trail", c.trail(message.EventsList{}), want)
}

func TestConfigurationsStandInTheTrail(t *testing.T) {
	_, c := setup(t)
	apply := func(config string) {
		t.Helper()
		must[message.RegistryApplied](c)(ask[message.RegistryApplied](c, subject.Registry("acme", "apply"), message.RegistryApply{Config: []byte(config)}))
	}
	apply(`{"agentId":"a"}`)
	apply(`{"agentId":"a"}`) // nothing new
	must[message.RegistryDeleted](c)(ask[message.RegistryDeleted](c, subject.Registry("acme", "delete"), message.RegistryDelete{AgentID: "a"}))
	c.until(2, message.EventsList{})
	page := must[message.EventListing](c)(ask[message.EventListing](c, subject.Events("acme", "list"), message.EventsList{Kind: message.EventConfig}))
	var got []string
	for _, e := range page.Events {
		got = append(got, e.AgentID+" "+e.Outcome)
	}
	same(t, "the trail", got, []string{"a applied", "a removed"})
}
