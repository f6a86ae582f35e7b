package registry_test

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
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a registry against srv until the test ends.
func start(t *testing.T, srv *natstest.Server, ttl time.Duration) *registry.Service {
	t.Helper()
	cfg := registry.DefaultConfig()
	cfg.Bus = srv.Config()
	if ttl > 0 {
		cfg.CatalogueTTL = ttl
	}
	s, err := registry.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client asks one tenant's questions.
type client struct {
	t      *testing.T
	nc     *nats.Conn
	tenant string
}

func setup(t *testing.T) (*natstest.Server, client) {
	t.Helper()
	srv := natstest.Start(t)
	start(t, srv, 0)
	return srv, client{t, srv.Connect(), "acme"}
}

func ask[Out any](c client, subj string, in any) (Out, error) {
	var out Out
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	err := bus.Request(ctx, c.nc, subj, in, &out)
	return out, err
}

func must[Out any](c client) func(Out, error) Out {
	return func(v Out, err error) Out {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
		return v
	}
}

func (c client) apply(config string, mod ...func(*message.RegistryApply)) (message.RegistryApplied, error) {
	req := message.RegistryApply{Config: json.RawMessage(config)}
	for _, m := range mod {
		m(&req)
	}
	return ask[message.RegistryApplied](c, subject.Registry(c.tenant, "apply"), req)
}

func (c client) get(agent string) (message.AgentEntry, error) {
	return ask[message.AgentEntry](c, subject.Registry(c.tenant, "get"), message.RegistryGet{AgentID: agent})
}

func (c client) list() []string {
	c.t.Helper()
	l := must[message.RegistryListing](c)(ask[message.RegistryListing](c, subject.Registry(c.tenant, "list"), nil))
	ids := []string{}
	for _, a := range l.Agents {
		ids = append(ids, a.Config.AgentID)
	}
	return ids
}

func (c client) announce(worker string, tools ...message.ToolDefinition) (message.CatalogueAnnounced, error) {
	return ask[message.CatalogueAnnounced](c, subject.Catalogue("announce"), message.CatalogueAnnounce{WorkerID: worker, Tools: tools})
}

func (c client) tools(agent string) (message.AgentToolsReply, error) {
	return ask[message.AgentToolsReply](c, subject.AgentTools(c.tenant, agent), nil)
}

func (c client) catalogue() []message.CatalogueEntry {
	c.t.Helper()
	return must[message.CatalogueTools](c)(ask[message.CatalogueTools](c, subject.Catalogue("tools"), nil)).Tools
}

func dryRun(r *message.RegistryApply) { r.DryRun = true }
func prune(r *message.RegistryApply)  { r.Prune = true }

func def(name, version string) message.ToolDefinition {
	return message.ToolDefinition{Name: name, Description: "does " + name, InputSchema: json.RawMessage(`{"type":"object"}`), Version: version}
}

// eventually polls until ok or a deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func refused(t *testing.T, err error, code errcode.Code, field string) *errcode.Error {
	t.Helper()
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	if field != "" && (e.Details == nil || !slices.ContainsFunc(e.Details.Fields, func(f errcode.FieldFault) bool { return f.Field == field })) {
		t.Fatalf("got %v, want a fault of %s", err, field)
	}
	return e
}

func TestApplyGetListDelete(t *testing.T) {
	_, c := setup(t)
	first := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"b","tools":{"T":{"k":{"$secret":"n"}}}},{"agentId":"a"}],"tenant":{"settings":{"x":1}}}`))
	if len(first.Agents) != 2 || first.Agents[0].AgentID != "b" || !first.Agents[0].Changed || !first.Agents[1].Changed ||
		first.Agents[1].Revision != first.Agents[0].Revision+1 {
		t.Fatalf("got %+v", first)
	}
	if want := []string{"agents[0].tools.T: no worker hosts it now"}; !slices.Equal(first.Warnings, want) {
		t.Errorf("warnings %q", first.Warnings)
	}
	got := must[message.AgentEntry](c)(c.get("b"))
	if got.Revision != first.Agents[0].Revision || string(got.Config.Tools["T"]) != `{"k":{"$secret":"n"}}` || string(got.Tenant.Settings["x"]) != "1" {
		t.Errorf("got %+v", got)
	}
	if at, err := time.Parse(time.RFC3339, got.Modified); err != nil || time.Since(at).Abs() > time.Minute || !strings.HasSuffix(got.Modified, "Z") {
		t.Errorf("modified %s", got.Modified)
	}

	// Again: nothing changes. One changed: only that one.
	again := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"tools":{"T":{"k":{"$secret":"n"}}},"agentId":"b"},{"agentId":"a","toolJobs":[]}],"tenant":{"settings":{"x":1}}}`))
	for i, a := range again.Agents {
		if a.Changed || a.Revision != first.Agents[i].Revision {
			t.Errorf("re-applied: %+v", a)
		}
	}
	one := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"b"},{"agentId":"a"}]}`))
	if !one.Agents[0].Changed || one.Agents[0].Revision <= first.Agents[1].Revision || one.Agents[1].Changed || one.Agents[1].Revision != first.Agents[1].Revision {
		t.Errorf("got %+v", one)
	}
	if got := must[message.AgentEntry](c)(c.get("b")); got.Revision != one.Agents[0].Revision || got.Tenant == nil {
		t.Errorf("a file without tenant must leave its settings: %+v", got)
	}

	// A single agent; the others stay.
	single := must[message.RegistryApplied](c)(c.apply(`{"agentId":"c","tools":{"U":{}}}`))
	if want := []string{"tools.U: no worker hosts it now"}; !slices.Equal(single.Warnings, want) {
		t.Errorf("warnings %q", single.Warnings)
	}
	if got := c.list(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("list %v", got)
	}

	// Delete, twice, and apply again.
	del := func() bool {
		return must[message.RegistryDeleted](c)(ask[message.RegistryDeleted](c, subject.Registry("acme", "delete"), message.RegistryDelete{AgentID: "c"})).Deleted
	}
	if !del() || del() {
		t.Error("delete must say true, then false")
	}
	_, err := c.get("c")
	refused(t, err, errcode.NotFound, "")
	_, err = c.tools("c")
	refused(t, err, errcode.NotFound, "")
	if got := c.list(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("list %v", got)
	}
	if back := must[message.RegistryApplied](c)(c.apply(`{"agentId":"c"}`)); !back.Agents[0].Changed {
		t.Errorf("got %+v", back)
	}
	must[message.AgentEntry](c)(c.get("c"))
}

func TestDryRunAndPrune(t *testing.T) {
	_, c := setup(t)
	dry := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a"},{"agentId":"b"}]}`, dryRun))
	if dry.Agents[0] != (message.AgentApplied{AgentID: "a", Changed: true}) || len(c.list()) != 0 {
		t.Errorf("got %+v, list %v", dry, c.list())
	}
	must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a"},{"agentId":"b"},{"agentId":"c"}],"tenant":{}}`))
	dry = must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"b"}]}`, dryRun, prune))
	if !slices.Equal(dry.Removed, []string{"a", "c"}) || dry.Agents[0].Changed || dry.Agents[0].Revision == 0 || len(c.list()) != 3 {
		t.Errorf("got %+v, list %v", dry, c.list())
	}
	other := client{t, c.nc, "globex"}
	must[message.RegistryApplied](c)(other.apply(`{"agentId":"a"}`))
	did := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"b"},{"agentId":"d"}]}`, prune))
	if !slices.Equal(did.Removed, []string{"a", "c"}) || !slices.Equal(c.list(), []string{"b", "d"}) {
		t.Errorf("got %+v, list %v", did, c.list())
	}
	if got := must[message.RegistryApplied](c)(c.apply(`{"agents":[]}`)); len(got.Agents) != 0 || len(c.list()) != 2 {
		t.Error("an empty file without prune must change nothing")
	}
	must[message.RegistryApplied](c)(c.apply(`{"agents":[]}`, prune))
	if got := c.list(); len(got) != 0 || !slices.Equal(other.list(), []string{"a"}) {
		t.Errorf("list %v, the other tenant's %v", got, other.list())
	}
	tenants := must[message.RegistryTenants](c)(ask[message.RegistryTenants](c, subject.Registry(subject.AllTenants, "tenants"), nil))
	if !slices.Equal(tenants.Tenants, []string{"globex"}) {
		t.Errorf("tenants %v", tenants.Tenants)
	}
}

// One bad agent of five: none changes, and what ran keeps its last good
// configuration.
func TestAllOrNothing(t *testing.T) {
	_, c := setup(t)
	before := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a0"},{"agentId":"a1"}]}`))
	_, err := c.apply(`{"agents":[{"agentId":"a0","timezone":"UTC"},{"agentId":"a1"},{"agentId":"a2"},{"agentId":"a3","scheduler":[{"cron":"bad","taskMessage":"m"}]},{"agentId":"a4"}]}`)
	e := refused(t, err, errcode.InvalidRequest, "agents[3].scheduler[0].cron")
	if e.Retryable || len(e.Details.Fields) != 1 {
		t.Errorf("got %+v", e)
	}
	if got := c.list(); !slices.Equal(got, []string{"a0", "a1"}) {
		t.Errorf("list %v", got)
	}
	if got := must[message.AgentEntry](c)(c.get("a0")); got.Revision != before.Agents[0].Revision {
		t.Errorf("a0 changed: %+v", got)
	}
}

func TestBadRequests(t *testing.T) {
	_, c := setup(t)
	for name, r := range map[string]struct {
		subj, body string
		code       errcode.Code
		field      string
	}{
		"no config":         {subject.Registry("acme", "apply"), `{}`, errcode.InvalidRequest, "config"},
		"empty body":        {subject.Registry("acme", "apply"), ``, errcode.InvalidRequest, "config"},
		"null config":       {subject.Registry("acme", "apply"), `{"config":null}`, errcode.InvalidRequest, "config"},
		"config, a string":  {subject.Registry("acme", "apply"), `{"config":"{}"}`, errcode.InvalidRequest, "config"},
		"no JSON":           {subject.Registry("acme", "apply"), `{`, errcode.InvalidRequest, ""},
		"dryRun, a string":  {subject.Registry("acme", "apply"), `{"config":{"agents":[]},"dryRun":"yes"}`, errcode.InvalidRequest, "dryRun"},
		"reserved tenant":   {subject.Registry("_all", "list"), `{}`, errcode.InvalidRequest, "tenant"},
		"tenant, a script":  {subject.Registry("租户", "list"), `{}`, errcode.InvalidRequest, "tenant"},
		"tenant, too long":  {subject.Registry(strings.Repeat("a", 65), "get"), `{"agentId":"a"}`, errcode.InvalidRequest, "tenant"},
		"get nothing":       {subject.Registry("acme", "get"), `{}`, errcode.InvalidRequest, "agentId"},
		"get a wildcard":    {subject.Registry("acme", "get"), `{"agentId":"*"}`, errcode.InvalidRequest, "agentId"},
		"get a path":        {subject.Registry("acme", "get"), `{"agentId":"a.b"}`, errcode.InvalidRequest, "agentId"},
		"get unknown":       {subject.Registry("acme", "get"), `{"agentId":"a"}`, errcode.NotFound, ""},
		"delete a wildcard": {subject.Registry("acme", "delete"), `{"agentId":">"}`, errcode.InvalidRequest, "agentId"},
		"list, bad limit":   {subject.Registry("acme", "list"), `{"limit":-1}`, errcode.InvalidRequest, "limit"},
		"list, bad cursor":  {subject.Registry("acme", "list"), `{"cursor":"a b"}`, errcode.InvalidRequest, "cursor"},
		"tools, bad agent":  {subject.AgentTools("acme", "a=b"), `{}`, errcode.InvalidRequest, "agent"},
		"tools, bad tenant": {subject.AgentTools("_x", "a"), `{}`, errcode.InvalidRequest, "tenant"},
		"tools, unknown":    {subject.AgentTools("acme", "a"), `{}`, errcode.NotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ask[json.RawMessage](c, r.subj, json.RawMessage(r.body))
			refused(t, err, r.code, r.field)
		})
	}
	if err := c.nc.LastError(); err != nil {
		t.Error(err)
	}
}

// What belongs to another tenant answers like what does not exist.
func TestForeignTenant(t *testing.T) {
	_, c := setup(t)
	must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a","tools":{"T":{}}}],"tenant":{"settings":{"s":1}}}`))
	foreign := client{t, c.nc, "acme-2"}
	_, here := foreign.get("a")
	_, nowhere := client{t, c.nc, "nobody"}.get("a")
	if refused(t, here, errcode.NotFound, "").Message != refused(t, nowhere, errcode.NotFound, "").Message {
		t.Errorf("%v and %v differ", here, nowhere)
	}
	_, err := foreign.tools("a")
	refused(t, err, errcode.NotFound, "")
	if got := foreign.list(); len(got) != 0 {
		t.Errorf("list %v", got)
	}
	if del := must[message.RegistryDeleted](c)(ask[message.RegistryDeleted](c, subject.Registry("acme-2", "delete"), message.RegistryDelete{AgentID: "a"})); del.Deleted {
		t.Error("deleted another tenant's agent")
	}
	must[message.RegistryApplied](c)(foreign.apply(`{"agents":[]}`, prune))
	must[message.AgentEntry](c)(c.get("a"))
}

// Change events carry headers only, for puts and removals, of the agent that
// changed and no other.
func TestChangeEvents(t *testing.T) {
	_, c := setup(t)
	sub, err := c.nc.SubscribeSync(subject.ChangesAgent("acme", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	next := func(agent, op string) {
		t.Helper()
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject != subject.ChangesAgent("acme", agent) || len(m.Data) != 0 || m.Header.Get("KV-Operation") != op {
			t.Errorf("got %s %q %v", m.Subject, m.Data, m.Header)
		}
	}
	must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a","tools":{"T":{"k":"v"}}},{"agentId":"b"}]}`))
	next("a", "")
	next("b", "")
	must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a"},{"agentId":"b"}]}`))
	next("a", "")
	must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a","timezone":"UTC"}]}`, prune))
	next("a", "")
	next("b", "DEL")
}

func TestManyAgents(t *testing.T) {
	_, c := setup(t)
	file := func(from, to int) string {
		var list []string
		for i := range to - from {
			list = append(list, fmt.Sprintf(`{"agentId":"agent-%05d"}`, from+i))
		}
		return `{"agents":[` + strings.Join(list, ",") + `]}`
	}
	got := must[message.RegistryApplied](c)(c.apply(file(0, 1000)))
	if len(got.Agents) != 1000 {
		t.Fatalf("got %d", len(got.Agents))
	}
	last := got.Agents[999]
	if e := must[message.AgentEntry](c)(c.get(last.AgentID)); e.Revision != last.Revision {
		t.Errorf("revision %d reported, %d stored", last.Revision, e.Revision)
	}
	_, err := c.apply(file(0, 1001))
	if e := refused(t, err, errcode.TooLarge, ""); *e.Details.Limit != 1000 || *e.Details.Actual != 1001 {
		t.Errorf("got %+v", e.Details)
	}
	must[message.RegistryApplied](c)(c.apply(file(1000, 1100)))
	// Over what the server lists at once, and in pages.
	if got := c.list(); len(got) != 1100 || !slices.IsSorted(got) {
		t.Errorf("%d agents", len(got))
	}
	var paged []string
	for cursor, pages := "", 0; ; pages++ {
		l := must[message.RegistryListing](c)(ask[message.RegistryListing](c, subject.Registry("acme", "list"), message.RegistryList{Cursor: cursor, Limit: 400}))
		for _, a := range l.Agents {
			paged = append(paged, a.Config.AgentID)
		}
		if cursor = l.Cursor; cursor == "" || pages > 10 {
			break
		}
	}
	if len(paged) != 1100 || !slices.IsSorted(paged) {
		t.Errorf("%d agents in pages", len(paged))
	}
	_, err = c.apply(`{"agents":[]}`, prune)
	refused(t, err, errcode.TooLarge, "")
}

// Two replicas apply to the same agents at once: every apply is whole, and the
// last one stands on all agents alike.
func TestReplicasApplyConcurrently(t *testing.T) {
	srv, c := setup(t)
	start(t, srv, 0)
	const agents, writers, rounds = 5, 4, 5
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for r := range rounds {
				var list []string
				for a := range agents {
					list = append(list, fmt.Sprintf(`{"agentId":"a%d","tools":{"T":{"by":"%d-%d"}}}`, a, w, r))
				}
				_, err := c.apply(`{"agents":[` + strings.Join(list, ",") + `]}`)
				if err != nil && errcode.Of(err) != errcode.Conflict {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var want string
	for a := range agents {
		got := string(must[message.AgentEntry](c)(c.get(fmt.Sprintf("a%d", a))).Config.Tools["T"])
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("agent %d has %s, agent 0 %s", a, got, want)
		}
	}
}

func TestCatalogue(t *testing.T) {
	srv, c := setup(t)
	start(t, srv, 0) // another replica: who answers is chance
	got := must[message.CatalogueAnnounced](c)(c.announce("w1", def("B", "1"), def("A", "")))
	if got.TTLMs != 15000 || got.Warnings != nil {
		t.Errorf("got %+v", got)
	}
	names := func() string {
		var out []string
		for _, e := range c.catalogue() {
			out = append(out, fmt.Sprintf("%s%v%v", e.Name, e.Workers, e.Versions))
		}
		return strings.Join(out, " ")
	}
	both := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { // both replicas, many times
			for range 8 {
				if got := names(); got != want {
					return false
				}
			}
			return true
		})
	}
	both("A[w1][] B[w1][1]")

	// Another definition: the newest announced counts, also after renewals of
	// the older.
	newer := def("B", "2")
	newer.Description = "does more"
	got = must[message.CatalogueAnnounced](c)(c.announce("w0", newer))
	if len(got.Warnings) != 1 || !strings.HasPrefix(got.Warnings[0], "B: worker w1 ") {
		t.Errorf("warnings %q", got.Warnings)
	}
	if got = must[message.CatalogueAnnounced](c)(c.announce("w1", def("B", "1"), def("A", ""))); got.Warnings != nil {
		t.Errorf("warned again: %q", got.Warnings)
	}
	both("A[w1][] B[w0 w1][1 2]")
	if b := c.catalogue()[1]; b.Description != "does more" || b.Version != "2" {
		t.Errorf("got %+v", b)
	}

	// What a worker no longer lists is gone; no tools at all: it has left.
	must[message.CatalogueAnnounced](c)(c.announce("w1", def("A", "")))
	both("A[w1][] B[w0][2]")
	must[message.CatalogueAnnounced](c)(c.announce("w0"))
	both("A[w1][]")
	must[message.CatalogueAnnounced](c)(c.announce("w0", newer))
	both("A[w1][] B[w0][2]")
}

func TestApplyWarnsOfChecksThatAToolDoesNotOffer(t *testing.T) {
	_, c := setup(t)
	watcher := def("W", "")
	watcher.Jobs = []message.JobDefinition{{ID: "new"}, {ID: "old"}}
	must[message.CatalogueAnnounced](c)(c.announce("w", watcher, def("P", "")))
	got := must[message.RegistryApplied](c)(c.apply(`{"agentId":"a","tools":{"W":{},"P":{},"gone":{}},"toolJobs":[
		{"toolName":"W","jobTypeId":"new","cron":"@daily"},{"toolName":"W","jobTypeId":"nwe","cron":"@daily"},
		{"toolName":"P","jobTypeId":"x","cron":"@daily"},{"toolName":"gone","jobTypeId":"x","cron":"@daily"}]}`))
	want := []string{
		"tools.gone: no worker hosts it now",
		`toolJobs[1].jobTypeId: W offers "new", "old" now, not "nwe"`,
		`toolJobs[2].jobTypeId: P offers no check now, not "x"`,
	}
	if !slices.Equal(got.Warnings, want) {
		t.Errorf("warnings %q", got.Warnings)
	}
}

func TestAgentTools(t *testing.T) {
	_, c := setup(t)
	internal := def("inner", "")
	internal.Internal = true
	must[message.CatalogueAnnounced](c)(c.announce("w", def("B", ""), def("A", ""), def("C", ""), internal))
	applied := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a","tools":{"B":{},"A":{},"gone":{}}},{"agentId":"b","tools":{"inner":{}}},{"agentId":"none"}]}`))
	if want := []string{"agents[0].tools.gone: no worker hosts it now"}; !slices.Equal(applied.Warnings, want) {
		t.Errorf("warnings %q", applied.Warnings)
	}
	check := func(agent, want string, unavailable ...string) {
		t.Helper()
		got := must[message.AgentToolsReply](c)(c.tools(agent))
		var names []string
		for _, d := range got.Tools {
			names = append(names, d.Name)
		}
		if strings.Join(names, " ") != want || !slices.Equal(got.Unavailable, unavailable) || got.Tools == nil {
			t.Errorf("%s: got %v, unavailable %v", agent, names, got.Unavailable)
		}
	}
	check("a", "A B", "gone")
	check("b", "inner")
	check("none", "")
	must[message.RegistryApplied](c)(c.apply(`{"agentId":"a","tools":{"C":{}}}`))
	check("a", "C") // at once
}

func TestAnnounceRefused(t *testing.T) {
	_, c := setup(t)
	with := func(f func(*message.ToolDefinition)) []message.ToolDefinition {
		d := def("T", "")
		f(&d)
		return []message.ToolDefinition{def("fine", ""), d}
	}
	for name, r := range map[string]struct {
		worker string
		tools  []message.ToolDefinition
		field  string
	}{
		"no worker":      {"", nil, "workerId"},
		"worker":         {"a.*", nil, "workerId"},
		"name":           {"w", with(func(d *message.ToolDefinition) { d.Name = "a.b" }), "tools[1].name"},
		"twice":          {"w", with(func(d *message.ToolDefinition) { d.Name = "fine" }), "tools[1].name"},
		"description":    {"w", with(func(d *message.ToolDefinition) { d.Description = "" }), "tools[1].description"},
		"long":           {"w", with(func(d *message.ToolDefinition) { d.Description = strings.Repeat("x", 20000) }), "tools[1].description"},
		"no schema":      {"w", with(func(d *message.ToolDefinition) { d.InputSchema = nil }), "tools[1].inputSchema"},
		"schema, null":   {"w", with(func(d *message.ToolDefinition) { d.InputSchema = json.RawMessage(`null`) }), "tools[1].inputSchema"},
		"schema, a list": {"w", with(func(d *message.ToolDefinition) { d.InputSchema = json.RawMessage(`[]`) }), "tools[1].inputSchema"},
		"schema's type":  {"w", with(func(d *message.ToolDefinition) { d.InputSchema = json.RawMessage(`{"type":"string"}`) }), "tools[1].inputSchema"},
		"big schema": {"w", with(func(d *message.ToolDefinition) {
			d.InputSchema = json.RawMessage(`{"type":"object","x":"` + strings.Repeat("x", 200000) + `"}`)
		}), "tools[1].inputSchema"},
		"version": {"w", with(func(d *message.ToolDefinition) { d.Version = "a\nb" }), "tools[1].version"},
		"timeout": {"w", with(func(d *message.ToolDefinition) { d.TimeoutMs = -1 }), "tools[1].timeoutMs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.announce(r.worker, r.tools...)
			refused(t, err, errcode.InvalidRequest, r.field)
			if got := c.catalogue(); len(got) != 0 {
				t.Errorf("announced all the same: %v", got)
			}
		})
	}
}

// An offer stands while it is repeated, and goes soon after its worker did.
func TestOfferExpires(t *testing.T) {
	srv := natstest.Start(t)
	start(t, srv, time.Second)
	c := client{t, srv.Connect(), "acme"}
	events, err := c.nc.SubscribeSync(subject.ChangesTool("*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	must[message.CatalogueAnnounced](c)(c.announce("dies", def("D", "")))
	deadline := time.Now().Add(2500 * time.Millisecond)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(deadline) {
		must[message.CatalogueAnnounced](c)(c.announce("lives", def("L", "")))
		if got := c.catalogue(); !slices.ContainsFunc(got, func(e message.CatalogueEntry) bool { return e.Name == "L" }) {
			t.Fatalf("a repeated offer went: %v", got)
		}
		<-tick.C
	}
	eventually(t, "the dead worker's tool is gone", func() bool { return len(c.catalogue()) == 1 })
	for {
		m, err := events.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatal("no event of the expiry:", err)
		}
		if m.Subject == subject.ChangesTool("D", "dies") && m.Header.Get("Nats-Marker-Reason") == "MaxAge" {
			return
		}
	}
}

// NATS restarts: what was applied stays, requests are answered again, and
// change events and the catalogue's view go on.
func TestServerRestart(t *testing.T) {
	srv := natstest.Start(t)
	s := start(t, srv, 0)
	s2 := start(t, srv, 0)
	c := client{t, srv.Connect(), "acme"}
	before := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a"},{"agentId":"b"}]}`))
	must[message.CatalogueAnnounced](c)(c.announce("w", def("T", "")))
	changes, err := c.nc.SubscribeSync(subject.ChangesAgent("acme", "a"))
	if err != nil {
		t.Fatal(err)
	}
	srv.Down()
	if err := s.Ready(shortly(t)); err == nil {
		t.Error("ready without NATS")
	}
	srv.Up()
	eventually(t, "both replicas are ready", func() bool {
		return s.Ready(t.Context()) == nil && s2.Ready(t.Context()) == nil && c.nc.IsConnected()
	})
	got := must[message.AgentEntry](c)(c.get("a"))
	if got.Revision != before.Agents[0].Revision {
		t.Errorf("revision %d, was %d", got.Revision, before.Agents[0].Revision)
	}
	if again := must[message.RegistryApplied](c)(c.apply(`{"agents":[{"agentId":"a"},{"agentId":"b"}]}`)); again.Agents[0].Changed || again.Agents[1].Changed {
		t.Errorf("got %+v", again)
	}
	must[message.RegistryApplied](c)(c.apply(`{"agentId":"a","timezone":"UTC"}`))
	if _, err := changes.NextMsg(5 * time.Second); err != nil {
		t.Error("no change event after the restart:", err)
	}
	must[message.CatalogueAnnounced](c)(c.announce("w", def("U", "")))
	eventually(t, "both replicas see the new tool", func() bool {
		for range 8 {
			if got := c.catalogue(); len(got) != 1 || got[0].Name != "U" {
				return false
			}
		}
		return true
	})
}

func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestStartStop(t *testing.T) {
	srv := natstest.Start(t)
	cfg := registry.DefaultConfig()
	cfg.Bus = srv.Config()
	s, err := registry.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error("stop before start:", err)
	}
	if s.Ready(t.Context()) == nil {
		t.Error("ready before start")
	}
	for range 2 {
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Start(t.Context()) == nil {
			t.Error("started twice")
		}
		if err := s.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	cfg.Bus.Server, cfg.Bus.Wait = "nats://127.0.0.1:1", 0
	if s, err = registry.New(cfg, telemetry.Discard(), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); errcode.Of(err) != errcode.Unavailable {
		t.Errorf("got %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error("stop after a failed start:", err)
	}
	for _, mod := range []func(*registry.Config){
		func(c *registry.Config) { c.Replicas = 0 },
		func(c *registry.Config) { c.CatalogueTTL = 1500 * time.Millisecond },
		func(c *registry.Config) { c.CatalogueTTL = 0 },
	} {
		cfg := registry.DefaultConfig()
		mod(&cfg)
		if _, err := registry.New(cfg, telemetry.Discard(), nil); errcode.Of(err) != errcode.InvalidRequest {
			t.Errorf("%+v: got %v", cfg, err)
		}
	}
}
