package state_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/state"
)

// The server counts lives in whole seconds, a document's counts in milliseconds.
// In between the message stands, but the document is gone for every operation.
func TestExpiredButNotRemoved(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	for try := range 10 {
		if expiredButNotRemoved(t, nc, fmt.Sprint("tenant", try)) {
			return
		}
	}
	t.Fatal("never looked in time: the machine is too slow")
}

// expiredButNotRemoved returns false when the server was faster.
func expiredButNotRemoved(t *testing.T, nc *nats.Conn, tenant string) bool {
	const life = 1010 * time.Millisecond // 2 s for the server
	type reply struct {
		Found, Deleted, Cleared bool
		Value                   json.RawMessage
		Data                    map[string]json.RawMessage
		Length                  int
		Revision                uint64
		Documents               []json.RawMessage
	}
	cases := []struct {
		op, body string
		ok       func(r reply) bool
	}{
		{"get", `"key":"k"`, func(r reply) bool { return !r.Found && r.Revision == 0 }},
		{"all", `"x":0`, func(r reply) bool { return !r.Found && len(r.Data) == 0 && r.Revision == 0 }},
		{"list", `"limit":10`, func(r reply) bool { return len(r.Documents) == 0 }},
		{"delete", `"key":"k"`, func(r reply) bool { return !r.Deleted && r.Revision == 0 }},
		{"clear", `"x":0`, func(r reply) bool { return !r.Cleared }},
		{"append", `"key":"list","values":[2]`, func(r reply) bool { return r.Length == 1 }},
		{"increment", `"key":"n","by":1`, func(r reply) bool { return string(r.Value) == "1" }},
		{"set", `"key":"new","value":1,"ifRevision":0`, func(r reply) bool { return r.Revision > 0 }},
		{"update", `"set":{"new":1},"delete":["k"],"ifRevision":0`, func(r reply) bool { return r.Revision > 0 }},
	}
	chats := make([]string, len(cases))
	var expires time.Time
	var stale uint64
	for i, c := range cases {
		chats[i] = fmt.Sprintf(`"chatId":"%d %s","namespace":"n"`, i, c.op)
		w := must[message.ToolStateWritten](t, nc, tenant, "update", fmt.Sprintf(`{%s,"set":{"k":1,"list":[1],"n":41},"ttl":"%s"}`, chats[i], life))
		at, err := time.Parse(time.RFC3339, w.ExpiresAt)
		if err != nil {
			t.Fatal(err)
		}
		expires, stale = at, w.Revision
	}
	// A condition on what has expired is missed.
	missed := chats[len(chats)-1]
	time.Sleep(time.Until(expires)) // the last one's end
	st := stream(t, nc, "KV_toolbus_toolstate")
	for i, c := range cases {
		m, err := st.GetLastMsgForSubject(t.Context(), fmt.Sprintf("$KV.toolbus_toolstate.%s.n.%d=20%s", tenant, i, c.op))
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get("Nats-Marker-Reason") != "" {
			return false
		}
	}
	_, err := call[reply](t, nc, tenant, "set", fmt.Sprintf(`{%s,"key":"k","value":1,"ifRevision":%d}`, missed, stale))
	wantCode(t, err, errcode.Conflict, "")
	if current := *errcode.From(err).Details.Revision; current != 0 {
		t.Errorf("what expired is at revision %d", current)
	}
	for i, c := range cases {
		body := c.body
		if c.op != "list" {
			body = chats[i] + "," + body
		}
		if r := must[reply](t, nc, tenant, c.op, `{`+body+`}`); !c.ok(r) {
			t.Errorf("%s of what expired: %+v", c.op, r)
		}
		if all := must[message.ToolStateData](t, nc, tenant, "all", `{`+chats[i]+`}`); all.Data["k"] != nil || len(all.Data) > 1 {
			t.Errorf("%s brought back what expired: %s", c.op, all.Data)
		}
	}
	return true
}

// What expired leaves the stream though nobody reads it, whichever write gave it
// its life, in whichever spelling; and no reader is ever shown a document whose
// end was before the question. What is left for a minute is a marker without
// data.
func TestExpiredIsRemovedUnread(t *testing.T) {
	t.Run("1 server", func(t *testing.T) {
		t.Parallel()
		ns := natstest.Start(t)
		expiredIsRemovedUnread(t, ns.Connect(), func(c *state.Config) { c.Bus = ns.Config() })
	})
	t.Run("3 servers", func(t *testing.T) {
		t.Parallel()
		c := natstest.StartCluster(t, 3)
		expiredIsRemovedUnread(t, c.Connect(), func(cfg *state.Config) { cfg.Bus, cfg.Replicas = c.Config(), 3 })
	})
}

func expiredIsRemovedUnread(t *testing.T, nc *nats.Conn, mod func(*state.Config)) {
	for range 2 {
		startWith(t, mod)
	}
	writes := map[string]string{
		"set": `"key":"k","value":1`, "append": `"key":"l","values":[1]`, "increment": `"key":"n","by":1`, "update": `"set":{"k":1}`,
	}
	n := uint64(0)
	var last time.Time
	for op, body := range writes {
		for _, ttl := range []string{"1s", "1300ms", "+1 second", "+2 seconds"} {
			w := must[message.ToolStateWritten](t, nc, "acme", op, fmt.Sprintf(`{"chatId":"%s %s","namespace":"n",%s,"ttl":"%s"}`, op, ttl, body, ttl))
			at, err := time.Parse(time.RFC3339, w.ExpiresAt)
			if err != nil {
				t.Fatal(err)
			}
			if last = at; time.Until(at) > 2*time.Second {
				t.Errorf("%s with ttl %s lives until %s", op, ttl, w.ExpiresAt)
			}
			n++
		}
	}
	// One more that readers look at. The stream's own information is no read.
	must[message.ToolStateWritten](t, nc, "seen", "set", `{"chatId":"c","namespace":"n","key":"k","value":1,"ttl":"1s"}`)
	var readers sync.WaitGroup
	for _, op := range []string{"get", "all", "list"} {
		readers.Go(func() {
			for time.Now().Before(last.Add(500 * time.Millisecond)) {
				asked := time.Now()
				out, err := call[struct {
					ExpiresAt string
					Documents []struct{ ExpiresAt string }
				}](t, nc, "seen", op, `{"chatId":"c","namespace":"n","key":"k"}`)
				if err != nil {
					t.Error(err)
					return
				}
				shown := out.ExpiresAt
				for _, d := range out.Documents {
					shown = d.ExpiresAt
				}
				if at, err := time.Parse(time.RFC3339, shown); shown != "" && (err != nil || asked.After(at)) {
					t.Errorf("%s at %s shows what expired at %s", op, asked.Format(time.RFC3339Nano), shown)
					return
				}
			}
		})
	}
	readers.Wait()
	st := stream(t, nc, "KV_toolbus_toolstate")
	eventually(t, "the server removes what expired", func() bool {
		got, err := st.Info(t.Context(), jetstream.WithSubjectFilter("$KV.toolbus_toolstate.acme.>"))
		if err != nil || uint64(len(got.State.Subjects)) != n {
			t.Fatalf("%d keys, want %d with their markers (%v)", len(got.State.Subjects), n, err)
		}
		for s := range got.State.Subjects {
			m, err := st.GetLastMsgForSubject(t.Context(), s)
			if err != nil || m.Header.Get("Nats-Marker-Reason") != "MaxAge" {
				return false
			}
			if len(m.Data) > 0 || m.Header.Get("Nats-TTL") != "1m0s" {
				t.Fatalf("marker of %s: %d bytes, lives %q", s, len(m.Data), m.Header.Get("Nats-TTL"))
			}
		}
		return true
	})
}

// A bucket that somebody made with a history would uncover older values when the
// last one expires. It is put right at start.
func TestHistoryIsOneWhateverWasBefore(t *testing.T) {
	ns := natstest.Start(t)
	nc := ns.Connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{"toolbus_toolstate", "toolbus_store"} {
		cfg := jet.BucketStream(bucket, 1)
		cfg.MaxMsgsPerSubject = 5
		if _, err := jet.Ensure(t.Context(), js, cfg); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if _, err := js.Publish(t.Context(), "$KV."+bucket+".acme.n.old", fmt.Append(nil, `{"expires_at":"2000-01-01T00:00:0`, i, `Z","data":{"k":1}}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	start(t, ns)
	for _, bucket := range []string{"toolbus_toolstate", "toolbus_store"} {
		i := info(t, nc, "KV_"+bucket)
		if i.Config.MaxMsgsPerSubject != 1 || i.State.Msgs != 1 {
			t.Errorf("%s: history %d, %d messages of one key", bucket, i.Config.MaxMsgsPerSubject, i.State.Msgs)
		}
	}
	// Nothing comes back under a document that expires.
	const ref = `"chatId":"old","namespace":"n"`
	for range 3 {
		must[message.ToolStateWritten](t, nc, "acme", "set", `{`+ref+`,"key":"k","value":1,"ttl":"1h"}`)
	}
	must[message.ToolStateWritten](t, nc, "acme", "set", `{`+ref+`,"key":"k","value":2,"ttl":"1s"}`)
	st := stream(t, nc, "KV_toolbus_toolstate")
	eventually(t, "the server removes it", func() bool {
		m, err := st.GetLastMsgForSubject(t.Context(), "$KV.toolbus_toolstate.acme.n.old")
		return err == nil && m.Header.Get("Nats-Marker-Reason") == "MaxAge"
	})
	if all := must[message.ToolStateData](t, nc, "acme", "all", `{`+ref+`}`); all.Found {
		t.Errorf("an older value is back: %s", all.Data)
	}
}

func info(t testing.TB, nc *nats.Conn, name string) *jetstream.StreamInfo {
	t.Helper()
	i, err := stream(t, nc, name).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return i
}
