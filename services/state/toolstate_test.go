package state_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/state"
	"github.com/toolbus/toolbus/services/state/internal/oplog"
)

const doc = `"chatId":"chat 1","namespace":"relabeling"`

func TestEveryOp(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()

	none := must[message.ToolStateValue](t, nc, "acme", "get", `{`+doc+`,"key":"codes"}`)
	if none.Found || none.Revision != 0 || none.ExpiresAt != "" {
		t.Fatalf("get of nothing: %+v", none)
	}
	set := must[message.ToolStateWritten](t, nc, "acme", "set", `{`+doc+`,"key":"direction","value":"DHL->DPD <&>","opId":"a"}`)
	got := must[message.ToolStateValue](t, nc, "acme", "get", `{`+doc+`,"key":"direction"}`)
	if string(got.Value) != `"DHL->DPD <&>"` || got.Revision != set.Revision || got.ExpiresAt != set.ExpiresAt {
		t.Fatalf("get: %+v after %+v", got, set)
	}
	expires, err := time.Parse(time.RFC3339, set.ExpiresAt)
	if left := time.Until(expires); err != nil || left < 24*time.Hour-time.Minute || left > 24*time.Hour+time.Second {
		t.Fatalf("default life: %s, %v", left, err)
	}
	for i, want := range []int{2, 3, 3, 4} {
		body := []string{
			`"values":["0034043 ",{"a":1,"b":[ ]}]`, `"values":[{"b":[],"a":1.0},"x"],"unique":true`,
			`"values":["x"],"unique":true`, `"values":[null]`,
		}[i]
		if a := must[message.ToolStateAppended](t, nc, "acme", "append", `{`+doc+`,"key":"codes",`+body+`}`); a.Length != want {
			t.Fatalf("append %d: length %d, want %d", i, a.Length, want)
		}
	}
	for _, c := range [][2]string{{"9007199254740993", "9007199254740993"}, {"0.1", "9007199254740993.1"}, {"9e18", "9009007199254740993.1"}, {"-0.1", "9009007199254740993"}, {"9223372036854775807", "18232379236109516800"}} {
		if v := must[message.ToolStateIncremented](t, nc, "acme", "increment", `{`+doc+`,"key":"n","by":`+c[0]+`}`); v.Value.String() != c[1] {
			t.Fatalf("increment by %s: %s, want %s", c[0], v.Value, c[1])
		}
	}
	must[message.ToolStateWritten](t, nc, "acme", "set", `{`+doc+`,"key":"null","value":null}`)
	must[message.ToolStateWritten](t, nc, "acme", "update", `{`+doc+`,"set":{"big":123456789012345678901234567890,"f":1.50},"delete":["null","never"],"ttl":"+2 hours"}`)
	all := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`)
	b, err := json.Marshal(all.Data)
	want := `{"big":123456789012345678901234567890,"codes":["0034043 ",{"a":1,"b":[]},"x",null],"direction":"DHL-\u003eDPD \u003c\u0026\u003e","f":1.50,"n":18232379236109516800}`
	if err != nil || string(b) != want {
		t.Fatalf("all:\n%s\nwant\n%s", b, want)
	}
	if expires, _ := time.Parse(time.RFC3339, all.ExpiresAt); time.Until(expires) > 2*time.Hour {
		t.Fatalf("ttl +2 hours: %s", all.ExpiresAt)
	}
	if d := must[message.ToolStateDeleted](t, nc, "acme", "delete", `{`+doc+`,"key":"f"}`); !d.Deleted || d.Revision <= all.Revision {
		t.Fatalf("delete: %+v", d)
	}
	if d := must[message.ToolStateDeleted](t, nc, "acme", "delete", `{`+doc+`,"key":"f"}`); d.Deleted || d.Revision == 0 {
		t.Fatalf("delete again: %+v", d)
	}
	if c := must[message.ToolStateCleared](t, nc, "acme", "clear", `{`+doc+`}`); !c.Cleared {
		t.Fatal("not cleared")
	}
	if c := must[message.ToolStateCleared](t, nc, "acme", "clear", `{`+doc+`}`); c.Cleared {
		t.Fatal("cleared twice")
	}
	if d := must[message.ToolStateDeleted](t, nc, "acme", "delete", `{`+doc+`,"key":"f"}`); d.Deleted || d.Revision != 0 || d.ExpiresAt != "" {
		t.Fatalf("delete in nothing: %+v", d)
	}
	if all := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`); all.Found || all.Data == nil || len(all.Data) > 0 {
		t.Fatalf("all after clear: %+v", all)
	}
}

func TestBadRequests(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns, func(c *state.Config) { c.KeysLimit = 3 })
	nc := ns.Connect()
	must[message.ToolStateWritten](t, nc, "acme", "update", `{`+doc+`,"set":{"s":"text","l":[1]}}`)
	before := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`)
	long := strings.Repeat("x", 257)
	for _, c := range []struct{ op, body, field string }{
		{"fly", `{` + doc + `}`, "op"},
		{"get", `{"namespace":"a","key":"k"}`, "chatId"},
		{"get", `{"chatId":"` + long + `","namespace":"a","key":"k"}`, "chatId"},
		{"get", `{"chatId":"a\u0000","namespace":"a","key":"k"}`, "chatId"},
		{"get", `{"chatId":7,"namespace":"a","key":"k"}`, "chatId"},
		{"all", `{"chatId":"c"}`, "namespace"},
		{"set", `{"chatId":"c","namespace":"a.b","key":"k","value":1}`, "namespace"},
		{"clear", `{"chatId":"c","namespace":"*"}`, "namespace"},
		{"clear", `{"chatId":"c","namespace":"ünicode"}`, "namespace"},
		{"delete", `{` + doc + `,"key":""}`, "key"},
		{"delete", `{` + doc + `,"key":"` + long + `"}`, "key"},
		{"set", `{` + doc + `,"key":"a\nb","value":1}`, "key"},
		{"set", `{` + doc + `,"key":"k"}`, "value"},
		{"set", `{` + doc + `,"key":"k","value":1,"ttl":"soon"}`, "ttl"},
		{"set", `{` + doc + `,"key":"k","value":1,"ttl":"-1h"}`, "ttl"},
		{"set", `{` + doc + `,"key":"k","value":1,"ttl":"10ms"}`, "ttl"},
		{"set", `{` + doc + `,"key":"k","value":1,"ttl":"+31 days"}`, "ttl"},
		{"set", `{` + doc + `,"key":"k","value":1,"opId":"a\u0001"}`, "opId"},
		{"append", `{` + doc + `,"key":"l"}`, "values"},
		{"append", `{` + doc + `,"key":"s","values":[1]}`, "key"},
		{"increment", `{` + doc + `,"key":"n"}`, "by"},
		{"increment", `{` + doc + `,"key":"n","by":null}`, "by"},
		{"increment", `{` + doc + `,"key":"n","by":"NaN"}`, "by"},
		{"increment", `{` + doc + `,"key":"n","by":"1"}`, "by"},
		{"increment", `{` + doc + `,"key":"n","by":[1]}`, "by"},
		{"increment", `{` + doc + `,"key":"n","by":"` + strings.Repeat("9", 500_000) + `x"}`, "by"},
		{"increment", `{` + doc + `,"key":"l","by":1}`, "key"},
		{"increment", `{` + doc + `,"key":"n","by":1e100}`, "key"},
		{"update", `{` + doc + `}`, "set"},
		{"update", `{` + doc + `,"set":{"a":1},"delete":["a"]}`, "delete[0]"},
		{"update", `{` + doc + `,"set":{"":1}}`, `set[""]`},
		{"list", `{"limit":1001}`, "limit"},
		{"list", `{"cursor":"?"}`, "cursor"},
		{"list", `{"namespace":">"}`, "namespace"},
		{"set", `{` + doc + `,"key":"k","value":`, ""},
		{"set", "{" + doc + `,"key":"k","value":"` + "\xff" + `"}`, ""},
	} {
		_, err := call[map[string]any](t, nc, "acme", c.op, c.body)
		t.Run(c.op+c.field, func(t *testing.T) { wantCode(t, err, errcode.InvalidRequest, c.field) })
	}
	for _, tenant := range []string{"_sys", "a=b", "ünicode", strings.Repeat("t", 65)} {
		_, err := call[map[string]any](t, nc, tenant, "all", `{`+doc+`}`)
		wantCode(t, err, errcode.InvalidRequest, "tenant")
	}
	_, err := call[map[string]any](t, nc, "acme", "update", `{`+doc+`,"set":{"a":1,"b":2}}`)
	wantCode(t, err, errcode.TooLarge, "")
	if d := errcode.From(err).Details; *d.Limit != 3 || *d.Actual != 4 {
		t.Fatalf("too many keys: %+v", d)
	}
	if after := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`); after.Revision != before.Revision {
		t.Fatalf("bad requests changed the document: %+v", after)
	}
}

func TestTooLargeKeepsTheOldDocument(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	// The envelope takes 51 bytes, the member `"k":""` 6.
	fits := strings.Repeat("x", 64<<10-51-6)
	must[message.ToolStateWritten](t, nc, "acme", "set", `{`+doc+`,"key":"k","value":"`+fits+`"}`)
	raw, err := stream(t, nc, "KV_toolbus_toolstate").GetLastMsgForSubject(t.Context(), "$KV.toolbus_toolstate.acme.relabeling.chat=201")
	if err != nil || len(raw.Data) != 64<<10 {
		t.Fatalf("stored %d bytes, want exactly 64 KiB (%v)", len(raw.Data), err)
	}
	for _, c := range []struct{ op, body string }{
		{"set", `"key":"k","value":"` + fits + `x"`},
		{"set", `"key":"k2","value":1`},
		{"append", `"key":"l","values":[1]`},
		{"increment", `"key":"n","by":1`},
		{"update", `"set":{"a":1,"b":2}`},
	} {
		_, err := call[map[string]any](t, nc, "acme", c.op, `{`+doc+`,`+c.body+`}`)
		wantCode(t, err, errcode.TooLarge, "")
		if d := errcode.From(err).Details; *d.Limit != 64<<10 || *d.Actual <= *d.Limit {
			t.Errorf("%s: limit %d, actual %d", c.op, *d.Limit, *d.Actual)
		}
	}
	all := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`)
	if len(all.Data) != 1 || len(all.Data["k"]) != len(fits)+2 {
		t.Fatal("the old document is damaged")
	}
}

// The stored form is part of the contract: exactly two members, one version,
// readable as a plain KV entry.
func TestStoredForm(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	w := must[message.ToolStateWritten](t, nc, "acme", "update", `{"chatId":"ü/1","namespace":"n","set":{"b":[1, 2],"a":"<>","q\"":{}}}`)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), "toolbus_toolstate")
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), "acme.n.=C3=BC=2F1")
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"expires_at":"` + w.ExpiresAt + `","data":{"a":"<>","b":[1,2],"q\"":{}}}`; string(e.Value()) != want {
		t.Fatalf("stored:\n%s\nwant\n%s", e.Value(), want)
	}
	if e.Revision() != w.Revision {
		t.Fatalf("revision %d, want %d", w.Revision, e.Revision())
	}
	st, err := kv.Status(t.Context())
	if err != nil || st.History() != 1 {
		t.Fatalf("history %d, want 1 (%v)", st.History(), err)
	}
}

// A decoder would make U+FFFD of each of these: two chats would share a document,
// two keys a value, and a unique append would lose an element.
func TestWhatWouldBeRepairedIsRefused(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	for _, bad := range []string{`\ud800`, `\udfff`, "\xff", "\xed\xa0\x80"} {
		for _, c := range []struct{ op, body, field string }{
			{"set", `"chatId":"` + bad + `","namespace":"n","key":"k","value":1`, "chatId"},
			{"set", doc + `,"key":"` + bad + `","value":1`, "key"},
			{"set", doc + `,"key":"k","value":{"a":"` + bad + `"}`, "value"},
			{"append", doc + `,"key":"l","values":["` + bad + `"],"unique":true`, "values"},
			{"update", doc + `,"set":{"` + bad + `":1}`, "set"},
			{"clear", doc + `,"opId":"` + bad + `"`, "opId"},
		} {
			_, err := call[json.RawMessage](t, nc, "acme", c.op, `{`+c.body+`}`)
			wantCode(t, err, errcode.InvalidRequest, c.field)
		}
	}
}

// What is taken can be read again, however deep it nests.
func TestDeepValues(t *testing.T) {
	ns := natstest.Start(t)
	first := start(t, ns)
	nc := ns.Connect()
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	taken := 0
	for _, n := range []int{1, 100, 500, 512, 1000, 9_990, 9_997, 9_998, 9_999, 10_000, 20_000} {
		_, err := call[message.ToolStateWritten](t, nc, "acme", "set", fmt.Sprintf(`{%s,"key":"k%d","value":%s}`, doc, n, nested(n)))
		if err != nil {
			wantCode(t, err, errcode.InvalidRequest, "value")
			continue
		}
		taken++
		_, err = call[message.ToolStateAppended](t, nc, "acme", "append", fmt.Sprintf(`{%s,"key":"l","values":[%s]}`, doc, nested(n)))
		if err != nil {
			wantCode(t, err, errcode.InvalidRequest, "values")
		}
	}
	if taken < 3 {
		t.Errorf("only %d values were taken", taken)
	}
	stop(t, first) // what it kept in memory is gone
	start(t, ns)
	if all := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`); len(all.Data) != taken+1 {
		t.Errorf("%d keys, want %d", len(all.Data), taken+1)
	}
	must[message.ToolStateWritten](t, nc, "acme", "set", `{`+doc+`,"key":"k","value":1}`)
}

// A document left without keys is none, whichever write took the last one.
func TestNoKeysNoDocument(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	for op, body := range map[string]string{"delete": `"key":"k"`, "update": `"delete":["k"]`} {
		ref := `"chatId":"` + op + `","namespace":"n"`
		must[message.ToolStateWritten](t, nc, "acme", "set", `{`+ref+`,"key":"k","value":1}`)
		if w := must[message.ToolStateDeleted](t, nc, "acme", op, `{`+ref+`,`+body+`,"opId":"last"}`); w.Revision != 0 || w.ExpiresAt != "" {
			t.Errorf("%s: %+v", op, w)
		}
		if all := must[message.ToolStateData](t, nc, "acme", "all", `{`+ref+`}`); all.Found {
			t.Errorf("%s: %+v", op, all)
		}
		must[message.ToolStateWritten](t, nc, "acme", "set", `{`+ref+`,"key":"k","value":2,"ifRevision":0}`)
		// A retry takes nothing away from whoever came after.
		must[message.ToolStateDeleted](t, nc, "acme", op, `{`+ref+`,`+body+`,"opId":"last"}`)
		if all := must[message.ToolStateData](t, nc, "acme", "all", `{`+ref+`}`); string(all.Data["k"]) != "2" {
			t.Errorf("%s again: %+v", op, all)
		}
	}
	if list := must[message.ToolStateListing](t, nc, "acme", "list", `{}`); len(list.Documents) != 2 {
		t.Errorf("%+v", list)
	}
}

// A value's TTL belongs to the message, so each kind of write must set it anew;
// what expired is gone, announced as expired, and the next write starts afresh.
func TestExpiryAfterEveryWrite(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns, func(c *state.Config) { c.DefaultTTL = time.Second })
	nc := ns.Connect()
	c := toolstate.New(nc, "acme")
	var mu sync.Mutex
	events := map[string][]toolstate.ChangeKind{}
	watch, err := c.Watch(t.Context(), toolstate.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	go func() {
		for ch := range watch.Changes() {
			mu.Lock()
			events[ch.ChatID] = append(events[ch.ChatID], ch.Kind)
			mu.Unlock()
		}
	}()
	writes := map[string]string{
		"set": `"key":"k","value":1`, "delete": `"key":"old"`, "append": `"key":"l","values":[1]`,
		"increment": `"key":"n","by":1`, "update": `"set":{"k":1},"ttl":"1s"`,
	}
	for op, body := range writes {
		ref := `"chatId":"` + op + `","namespace":"n"`
		// A long life first: the write under test must end it.
		must[message.ToolStateWritten](t, nc, "acme", "update", `{`+ref+`,"set":{"old":1,"older":1},"ttl":"1h"}`)
		w := must[message.ToolStateDeleted](t, nc, "acme", op, `{`+ref+`,`+body+`}`)
		if w.ExpiresAt == "" {
			t.Fatalf("%s: no expiry", op)
		}
	}
	for op := range writes {
		ref := message.ToolStateRef{ChatID: op, Namespace: "n"}
		eventually(t, op+" expires", func() bool {
			all, err := c.All(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Now()
			expires, err := time.Parse(time.RFC3339, all.ExpiresAt)
			if all.Found && (err != nil || now.After(expires.Add(300*time.Millisecond))) {
				t.Fatalf("%s: shown after it expired at %s", op, all.ExpiresAt)
			}
			return !all.Found
		})
	}
	page, err := c.List(t.Context(), message.ToolStateList{})
	if err != nil || len(page.Documents) != 0 {
		t.Fatalf("list shows what expired: %+v, %v", page, err)
	}
	// Before and after the server removed it, expired is gone.
	zero := uint64(0)
	if _, err := c.Set(t.Context(), message.ToolStateSet{
		ToolStateRef: message.ToolStateRef{ChatID: "set", Namespace: "n"}, Key: "new", Value: json.RawMessage("1"), IfRevision: &zero,
	}); err != nil {
		t.Fatalf("write to an expired document: %v", err)
	}
	all, err := c.All(t.Context(), message.ToolStateRef{ChatID: "set", Namespace: "n"})
	if err != nil || len(all.Data) != 1 {
		t.Fatalf("not a fresh document: %s, %v", all.Data, err)
	}
	delete(writes, "set")
	eventually(t, "expiry events", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for op := range writes {
			if ev := events[op]; len(ev) != 3 || ev[0] != toolstate.Written || ev[1] != toolstate.Written || ev[2] != toolstate.Expired {
				return false
			}
		}
		return true
	})
	// And after the marker, too, a document can be made.
	for op := range writes {
		must[message.ToolStateWritten](t, nc, "acme", "set", `{"chatId":"`+op+`","namespace":"n","key":"k","value":1,"ifRevision":0}`)
	}
}

func TestIfRevision(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	conflictAt := func(body string, current uint64) {
		t.Helper()
		for _, op := range []string{"set", "update"} {
			_, err := call[message.ToolStateWritten](t, nc, "acme", op, `{`+doc+`,"key":"k","value":1,"set":{"k":1},`+body+`}`)
			wantCode(t, err, errcode.Conflict, "")
			if got := *errcode.From(err).Details.Revision; got != current {
				t.Fatalf("%s %s: current %d, want %d", op, body, got, current)
			}
		}
	}
	conflictAt(`"ifRevision":7`, 0)
	one := must[message.ToolStateWritten](t, nc, "acme", "set", `{`+doc+`,"key":"k","value":1,"ifRevision":0}`)
	conflictAt(`"ifRevision":0`, one.Revision)
	two := must[message.ToolStateWritten](t, nc, "acme", "update", fmt.Sprintf(`{%s,"set":{"k":2},"ifRevision":%d}`, doc, one.Revision))
	conflictAt(fmt.Sprintf(`"ifRevision":%d`, one.Revision), two.Revision)
	must[message.ToolStateCleared](t, nc, "acme", "clear", `{`+doc+`}`)
	conflictAt(fmt.Sprintf(`"ifRevision":%d`, two.Revision), 0)
	must[message.ToolStateWritten](t, nc, "acme", "set", `{`+doc+`,"key":"k","value":1,"ifRevision":0}`)
}

// The reply was lost: the same opId again, from anywhere, gets the first answer
// although the document has moved on.
func TestRetryGetsTheFirstAnswer(t *testing.T) {
	ns := natstest.Start(t)
	first := start(t, ns)
	nc := ns.Connect()
	bodies := []struct{ op, body string }{
		{"set", `"key":"k","value":1`},
		{"append", `"key":"l","values":["a","b"]`},
		{"increment", `"key":"n","by":2.5`},
		{"update", `"set":{"u":1}`},
		{"delete", `"key":"k"`},
		{"delete", `"key":"never"`},
		{"clear", `"x":0`},
		{"clear", `"x":0`},
		{"append", `"key":"l","values":["c"]`},
	}
	request := func(i int) string { return fmt.Sprintf(`{%s,%s,"opId":"op-%d"}`, doc, bodies[i].body, i) }
	var answers []string
	for i, b := range bodies {
		r := must[json.RawMessage](t, nc, "acme", b.op, request(i))
		answers = append(answers, string(r))
	}
	before := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`)
	stop(t, first) // what answered is gone
	start(t, ns)
	for i, b := range bodies {
		if r := must[json.RawMessage](t, nc, "acme", b.op, request(i)); string(r) != answers[i] {
			t.Errorf("%s again: %s, first %s", b.op, r, answers[i])
		}
	}
	after := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`)
	if after.Revision != before.Revision {
		t.Fatalf("retries had an effect: %+v", after)
	}
	_, err := call[json.RawMessage](t, nc, "acme", "set", `{`+doc+`,"key":"k","value":1,"opId":"op-1"}`)
	wantCode(t, err, errcode.InvalidRequest, "opId")
}

// On a document that many write, the ids of the recent operations are soon
// forgotten. A retry that comes later than that is refused: it is never done
// twice. One of which the service still knows everything is served as ever.
func TestLateRetryIsNotDoneAgain(t *testing.T) {
	ns := natstest.Start(t)
	replica := start(t, ns)
	nc := ns.Connect()
	appendOp := func(id string, age time.Duration) (message.ToolStateAppended, error) {
		m, err := bus.NewMsg(subject.ToolState("acme", "append"), json.RawMessage(fmt.Sprintf(`{%s,"key":"l","values":[%q],"opId":%q}`, doc, id, id)))
		if err != nil {
			t.Fatal(err)
		}
		if age > 0 {
			m.Header.Set(message.HeaderRetry, fmt.Sprint(age.Milliseconds()))
		}
		var out message.ToolStateAppended
		reply, err := bus.RequestMsg(t.Context(), nc, m)
		if err == nil {
			err = bus.DecodeReply(reply.Data, &out)
		}
		return out, err
	}
	first, err := appendOp("first", 0)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := appendOp("first", time.Minute); err != nil || again != first {
		t.Fatalf("a retry in time: %+v, %v, first %+v", again, err, first)
	}
	if _, err := appendOp("never received", time.Minute); err != nil {
		t.Fatalf("nothing is forgotten yet: %v", err)
	}
	var wg sync.WaitGroup
	for i := range oplog.MaxEntries {
		wg.Go(func() {
			if _, err := appendOp(fmt.Sprint(i), 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	stop(t, replica) // which may remember more than the message holds
	start(t, ns)
	_, err = appendOp("first", time.Minute)
	wantCode(t, err, errcode.Timeout, "")
	if errcode.From(err).Retryable {
		t.Error("another try is asked for, which would not find out either")
	}
	if _, err := appendOp("new", 0); err != nil {
		t.Errorf("a first try: %v", err)
	}
	v := must[message.ToolStateValue](t, nc, "acme", "get", `{`+doc+`,"key":"l"}`)
	if n := strings.Count(string(v.Value), `"first"`); n != 1 {
		t.Errorf("done %d times", n)
	}
}

// Three replicas, 50 callers of one chat, every request sent twice at once.
func TestParallelAppendsWithRetries(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	nc := ns.Connect()
	var wg sync.WaitGroup
	for i := range 50 {
		body := fmt.Sprintf(`{%s,"key":"codes","values":[%d],"opId":"op-%d"}`, doc, i, i)
		answers := make([]message.ToolStateAppended, 2)
		wg.Go(func() {
			var pair sync.WaitGroup
			for j := range answers {
				pair.Go(func() {
					var err error
					if answers[j], err = call[message.ToolStateAppended](t, nc, "acme", "append", body); err != nil {
						t.Error(err)
					}
				})
			}
			pair.Wait()
			if answers[0] != answers[1] {
				t.Errorf("two answers for one opId: %+v, %+v", answers[0], answers[1])
			}
		})
	}
	wg.Wait()
	v := must[message.ToolStateValue](t, nc, "acme", "get", `{`+doc+`,"key":"codes"}`)
	var codes []int
	if err := json.Unmarshal(v.Value, &codes); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, c := range codes {
		seen[c] = true
	}
	if len(codes) != 50 || len(seen) != 50 {
		t.Fatalf("%d values, %d different, want 50", len(codes), len(seen))
	}
}

// Writes that share one publish must not share a usable revision: otherwise a
// compare-and-set would overwrite what it never saw.
func TestOnlyTheLastWriteHasTheCurrentRevision(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	var wg sync.WaitGroup
	revs := make([]uint64, 64)
	for i := range revs {
		wg.Go(func() {
			w, err := call[message.ToolStateWritten](t, nc, "acme", "set", fmt.Sprintf(`{%s,"key":"k","value":%d}`, doc, i))
			if err != nil {
				t.Error(err)
			}
			revs[i] = w.Revision
		})
	}
	wg.Wait()
	now := must[message.ToolStateValue](t, nc, "acme", "get", `{`+doc+`,"key":"k"}`)
	current := 0
	for i, r := range revs {
		if r == now.Revision {
			current++
			if string(now.Value) != fmt.Sprint(i) {
				t.Errorf("the write at the current revision wrote %d, the value is %s", i, now.Value)
			}
		}
	}
	if current != 1 {
		t.Errorf("%d writes were answered with the current revision, want 1", current)
	}
}

// A compare-and-set loop through tool.State loses nothing either, across
// replicas.
func TestParallelUpdates(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	c := toolstate.New(ns.Connect(), "acme")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := c.Scratch("chat", "n").Update(t.Context(), "k", func(old json.RawMessage) (any, error) {
				n := 0
				if old != nil {
					if err := json.Unmarshal(old, &n); err != nil {
						return nil, err
					}
				}
				return n + 1, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	if _, err := c.Scratch("chat", "n").Get(t.Context(), "k", &n); err != nil || n != 20 {
		t.Fatalf("%d updates, want 20 (%v)", n, err)
	}
}

func TestTenantsAreApart(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	must[message.ToolStateWritten](t, nc, "acme", "set", `{`+doc+`,"key":"k","value":1}`)
	for _, tenant := range []string{"acm", "acme2", "ACME", "other"} {
		if all := must[message.ToolStateData](t, nc, tenant, "all", `{`+doc+`}`); all.Found {
			t.Errorf("%s sees acme's document", tenant)
		}
		if l := must[message.ToolStateListing](t, nc, tenant, "list", `{}`); len(l.Documents) != 0 {
			t.Errorf("%s lists acme's documents", tenant)
		}
		if c := must[message.ToolStateCleared](t, nc, tenant, "clear", `{`+doc+`}`); c.Cleared {
			t.Errorf("%s cleared acme's document", tenant)
		}
	}
	if all := must[message.ToolStateData](t, nc, "acme", "all", `{`+doc+`}`); !all.Found {
		t.Error("acme's document is gone")
	}
}

// Where messages are small, a page ends before it is more than one: a watch and a
// mirror ask for as many documents as there may be.
func TestListOfMoreThanAReply(t *testing.T) {
	ns := natstest.Start(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	start(t, ns, func(c *state.Config) { c.ValueLimit = 16 << 10; c.DocumentLimit = 16 << 10 })
	nc := ns.Connect()
	c := toolstate.New(nc, "acme")
	const n = 120 // of some 600 bytes each in a listing: a quotation mark takes two
	for i := range n {
		set(t, c, "a", fmt.Sprintf("%03d", i)+strings.Repeat(`"`, 253), 1)
	}
	pages, found := 0, map[string]bool{}
	for req := (message.ToolStateList{Limit: 1000}); ; {
		page, err := c.List(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		for _, d := range page.Documents {
			found[d.ChatID] = true
		}
		if page.Cursor == "" {
			break
		}
		req.Cursor = page.Cursor
	}
	if len(found) != n || pages != 2 {
		t.Errorf("%d documents in %d pages, want %d in 2", len(found), pages, n)
	}
	w := watch(t, c, toolstate.Scope{})
	set(t, c, "b", "1", 1)
	says(t, w, `written b/1 {"k":1}`)
}

func TestListPages(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	c := toolstate.New(ns.Connect(), "acme")
	var want []string
	var wg sync.WaitGroup
	for _, namespace := range []string{"a", "b"} {
		for i := range 150 {
			chat := fmt.Sprintf("chat %03d", i)
			want = append(want, namespace+"/"+chat)
			wg.Go(func() {
				if err := c.Scratch(chat, namespace).Set(t.Context(), "k", i); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if err := c.Scratch("chat 000", "a").Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	want = want[1:]
	for _, limit := range []int{0, 7, 299, 1000} {
		var got []string
		for req := (message.ToolStateList{Limit: limit}); ; {
			page, err := c.List(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range page.Documents {
				got = append(got, d.Namespace+"/"+d.ChatID)
				if d.Keys != 1 || d.Revision == 0 || d.ExpiresAt == "" {
					t.Fatalf("%+v", d)
				}
			}
			if req.Cursor = page.Cursor; req.Cursor == "" {
				break
			}
		}
		if strings.Join(got, ",") != strings.Join(want, ",") {
			t.Errorf("limit %d: %d documents %v…", limit, len(got), got[:3])
		}
	}
	page, err := c.List(t.Context(), message.ToolStateList{ChatID: "chat 005", Namespace: "b"})
	if err != nil || len(page.Documents) != 1 || page.Documents[0].ChatID != "chat 005" {
		t.Fatalf("filtered: %+v, %v", page, err)
	}
}

func TestRestartsKeepData(t *testing.T) {
	ns := natstest.Start(t)
	s := start(t, ns)
	nc := ns.Connect()
	c := toolstate.New(nc, "acme")
	if _, err := c.Scratch("chat", "n").Append(t.Context(), "k", 1); err != nil {
		t.Fatal(err)
	}
	ns.Down()
	ns.Up()
	// The client and the service find back by themselves.
	if n, err := c.Scratch("chat", "n").Append(t.Context(), "k", 2); err != nil || n != 2 {
		t.Fatalf("after a NATS restart: length %d, %v", n, err)
	}
	stop(t, s)
	stop(t, s) // twice is fine
	start(t, ns)
	if n, err := c.Scratch("chat", "n").Append(t.Context(), "k", 3); err != nil || n != 3 {
		t.Fatalf("after a service restart: length %d, %v", n, err)
	}
}

func TestClearedIsAnnouncedOnceAndItsMarkerGoes(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	c := toolstate.New(nc, "acme")
	watch, err := c.Watch(t.Context(), toolstate.Scope{ChatID: "chat", Namespace: "n"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	changes := watch.Changes()
	if err := c.Scratch("chat", "n").Set(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if err := c.Scratch("chat", "n").Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ch := <-changes; ch.Kind != toolstate.Written || string(ch.Data["k"]) != `"v"` {
		t.Fatalf("%+v", ch)
	}
	if ch := <-changes; ch.Kind != toolstate.Cleared {
		t.Fatalf("%+v", ch)
	}
	raw, err := stream(t, nc, "KV_toolbus_toolstate").GetLastMsgForSubject(t.Context(), "$KV.toolbus_toolstate.acme.n.chat")
	if err != nil || raw.Header.Get("KV-Operation") != "DEL" || raw.Header.Get("Nats-TTL") == "" {
		t.Fatalf("marker %v, %v", raw.Header, err)
	}
}

func TestScratchWithoutChat(t *testing.T) {
	ns := natstest.Start(t)
	s := toolstate.New(ns.Connect(), "acme").Scratch("", "n")
	ctx := t.Context()
	_, err := s.Get(ctx, "k", nil)
	errs := []error{err, s.Set(ctx, "k", 1), s.Clear(ctx), s.Update(ctx, "k", nil)}
	_, err = s.Delete(ctx, "k")
	errs = append(errs, err)
	_, err = s.All(ctx)
	errs = append(errs, err)
	_, err = s.Append(ctx, "k", 1)
	errs = append(errs, err)
	_, err = s.Increment(ctx, "k", 1)
	errs = append(errs, err)
	for _, err := range errs {
		wantCode(t, err, errcode.InvalidRequest, "chatId")
	}
}

func TestConfigValidate(t *testing.T) {
	for _, mod := range []func(*state.Config){
		func(c *state.Config) { c.Replicas = 2 },
		func(c *state.Config) { c.DocumentLimit = 0 },
		func(c *state.Config) { c.KeysLimit = 0 },
		func(c *state.Config) { c.ValueLimit = -1 },
		func(c *state.Config) { c.MinTTL = 48 * time.Hour },
		func(c *state.Config) { c.MaxTTL = time.Hour },
	} {
		cfg := state.DefaultConfig()
		mod(&cfg)
		if cfg.Validate() == nil {
			t.Errorf("%+v passes", cfg)
		}
	}
	if err := state.DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

// An update's function tells a missing key from null, and takes a key away by
// returning nil.
func TestScratchUpdate(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	s := toolstate.New(ns.Connect(), "acme").Scratch("c", "n")
	for _, step := range []struct {
		was string // "" for missing
		to  any
	}{{"", 1}, {"1", json.RawMessage("null")}, {"null", nil}, {"", nil}, {"", []int{2}}} {
		err := s.Update(t.Context(), "k", func(old json.RawMessage) (any, error) {
			if string(old) != step.was || (old == nil) != (step.was == "") {
				t.Errorf("old value %q, want %q", old, step.was)
			}
			return step.to, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
