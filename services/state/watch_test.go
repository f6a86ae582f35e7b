package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/state"
)

func watch(t *testing.T, c *toolstate.Client, scope toolstate.Scope, opts ...toolstate.WatchOption) *toolstate.Watcher {
	t.Helper()
	w, err := c.Watch(t.Context(), scope, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func next(t *testing.T, w *toolstate.Watcher) toolstate.Change {
	t.Helper()
	select {
	case ch, open := <-w.Changes():
		if !open {
			t.Fatalf("the watch ended: %v", w.Err())
		}
		return ch
	case <-time.After(15 * time.Second):
		t.Fatal("no change came")
	}
	panic("unreachable")
}

// told is a change in short.
func told(ch toolstate.Change) string {
	s := string(ch.Kind) + " " + ch.Namespace + "/" + ch.ChatID
	if ch.Kind == toolstate.Written {
		b, err := message.Marshal(ch.Data)
		if err != nil {
			return err.Error()
		}
		s += " " + string(b)
	}
	return s
}

// says reads as many changes as are wanted, in any order but for those of one
// document.
func says(t *testing.T, w *toolstate.Watcher, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, told(next(t, w)))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func set(t testing.TB, c *toolstate.Client, namespace, chat string, value any) {
	t.Helper()
	if err := c.Scratch(chat, namespace).Set(t.Context(), "k", value); err != nil {
		t.Fatal(err)
	}
}

func wipe(t testing.TB, c *toolstate.Client, namespace, chat string) {
	t.Helper()
	if err := c.Scratch(chat, namespace).Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Whoever sees that the changes have ended knows why, at once.
func TestWatchTellsWhyItEnded(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	for range 1000 {
		nc := ns.Connect()
		w := watch(t, toolstate.New(nc, "acme"), toolstate.Scope{})
		ended := make(chan error)
		go func() {
			for {
				select {
				case _, open := <-w.Changes():
					if !open {
						ended <- w.Err()
						return
					}
				default: // the very moment counts, so this one does not sleep
				}
			}
		}()
		nc.Close()
		if err := <-ended; !errors.Is(err, errcode.Unavailable) {
			t.Fatalf("the changes ended, Err: %v", err)
		}
	}
}

func TestWatchScopes(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	c := toolstate.New(nc, "acme")
	set(t, c, "a", "1", "before")
	watches := map[string]*toolstate.Watcher{}
	for name, scope := range map[string]toolstate.Scope{
		"tenant": {}, "chat": {ChatID: "1"}, "namespace": {Namespace: "b"}, "document": {ChatID: "1", Namespace: "b"},
	} {
		watches[name] = watch(t, c, scope)
	}
	current := watch(t, c, toolstate.Scope{}, toolstate.Current())
	says(t, current, `written a/1 {"k":"before"}`)
	for _, namespace := range []string{"a", "b"} {
		for _, chat := range []string{"1", "2"} {
			set(t, c, namespace, chat, 1)
		}
	}
	set(t, toolstate.New(nc, "other"), "b", "1", "theirs")
	wipe(t, c, "b", "1")
	wipe(t, c, "b", "1") // there is nothing
	if _, err := c.Scratch("2", "b").Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	set(t, c, "b", "1", "last")
	for name, want := range map[string][]string{
		"tenant":    {"written a/1", "written a/2", "written b/1", "written b/2", "cleared b/1", "cleared b/2", "written b/1"},
		"chat":      {"written a/1", "written b/1", "cleared b/1", "written b/1"},
		"namespace": {"written b/1", "written b/2", "cleared b/1", "cleared b/2", "written b/1"},
		"document":  {"written b/1", "cleared b/1", "written b/1"},
		"current":   {"written a/1", "written a/2", "written b/1", "written b/2", "cleared b/1", "cleared b/2", "written b/1"},
	} {
		w := watches[name]
		if name == "current" {
			w = current
		}
		for i, s := range want {
			if ch := next(t, w); string(ch.Kind)+" "+ch.Namespace+"/"+ch.ChatID != s {
				t.Errorf("%s, change %d: %s, want %s", name, i, told(ch), s)
			} else if all := ch.Kind == toolstate.Written; all != (ch.Revision != 0 && ch.ExpiresAt != "" && ch.Data != nil) {
				t.Errorf("%s: %+v", name, ch)
			}
		}
		w.Stop()
		w.Stop() // twice does no harm
		if ch, open := <-w.Changes(); open || w.Err() != nil {
			t.Errorf("%s, after Stop: %+v, %v", name, ch, w.Err())
		}
	}
}

// The revision of a change is one for a compare-and-set.
func TestWatchTellsRevisions(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	c := toolstate.New(ns.Connect(), "acme")
	w := watch(t, c, toolstate.Scope{})
	set(t, c, "n", "c", 1)
	ch := next(t, w)
	_, err := c.Set(t.Context(), message.ToolStateSet{ToolStateRef: message.ToolStateRef{ChatID: "c", Namespace: "n"}, Key: "k", Value: json.RawMessage("2"), IfRevision: &ch.Revision})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchRefuses(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	for field, c := range map[string]struct {
		tenant string
		scope  toolstate.Scope
	}{
		"tenant":    {"_sys", toolstate.Scope{}},
		"namespace": {"acme", toolstate.Scope{Namespace: "*"}},
		"chatId":    {"acme", toolstate.Scope{ChatID: "a\n"}},
	} {
		_, err := toolstate.New(nc, c.tenant).Watch(t.Context(), c.scope)
		wantCode(t, err, errcode.InvalidRequest, field)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := toolstate.New(nc, "acme").Watch(ctx, toolstate.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if ch, open := <-w.Changes(); open || w.Err() != nil {
		t.Errorf("after ctx ended: %+v, %v", ch, w.Err())
	}
	w = watch(t, toolstate.New(nc, "acme"), toolstate.Scope{})
	nc.Close()
	if ch, open := <-w.Changes(); open || !errors.Is(w.Err(), errcode.Unavailable) {
		t.Errorf("after the connection was closed: %+v, %v", ch, w.Err())
	}
}

// A watcher needs the tenant's own subjects and no JetStream.
func TestWatchPermissions(t *testing.T) {
	ns := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "x"},
			{Username: "acme", Password: "x", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{"toolbus.v1.toolstate.acme.list", "toolbus.v1.toolstate.acme.all"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"toolbus.v1.changes.toolstate.acme.>", "_INBOX.>"}},
			}},
		}
	})
	as := func(user string) bus.Config {
		cfg := ns.Config()
		cfg.Server = strings.Replace(cfg.Server, "nats://", "nats://"+user+":x@", 1)
		return cfg
	}
	start(t, ns, func(c *state.Config) { c.Bus = as("all") })
	connect := func(user string) *nats.Conn {
		nc, err := bus.Connect(t.Context(), as(user), t.Name(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	c := toolstate.New(connect("all"), "acme")
	set(t, c, "n", "1", 1)
	nc := connect("acme")
	w := watch(t, toolstate.New(nc, "acme"), toolstate.Scope{}, toolstate.Current())
	says(t, w, `written n/1 {"k":1}`)
	set(t, c, "n", "2", 2)
	says(t, w, `written n/2 {"k":2}`)
	if _, err := toolstate.New(nc, "other").Watch(t.Context(), toolstate.Scope{}); !errors.Is(err, errcode.NotAllowed) {
		t.Errorf("another tenant's changes: %v", err)
	}
}

// road is a connection's way to the server, which can be cut.
type road struct {
	t    *testing.T
	to   string
	addr string

	mu   sync.Mutex
	ln   net.Listener
	ends []net.Conn
	wg   sync.WaitGroup
}

func newRoad(t *testing.T, ns *natstest.Server) *road {
	t.Helper()
	r := &road{t: t, to: strings.TrimPrefix(ns.URL(), "nats://"), addr: "127.0.0.1:0"}
	r.open()
	t.Cleanup(r.cut)
	return r
}

func (r *road) open() {
	r.t.Helper()
	ln, err := net.Listen("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.ln, r.addr = ln, ln.Addr().String()
	r.mu.Unlock()
	r.wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", r.to)
			if err != nil {
				_ = near.Close()
				continue
			}
			r.mu.Lock()
			r.ends = append(r.ends, near, far)
			r.mu.Unlock()
			r.wg.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
			r.wg.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
		}
	})
}

// cut ends what is on the road and lets nobody on it until it is opened.
func (r *road) cut() {
	r.mu.Lock()
	_ = r.ln.Close()
	for _, c := range r.ends {
		_ = c.Close()
	}
	r.ends = nil
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *road) connect() *nats.Conn {
	r.t.Helper()
	nc, err := bus.Connect(r.t.Context(), bus.Config{Server: "nats://" + r.addr}, r.t.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	return nc
}

// What happens while the watcher is away is told when it is back: the last
// state of each document, once, and how the others went.
func TestWatchResumesAfterACut(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	r := newRoad(t, ns)
	c := toolstate.New(ns.Connect(), "acme")
	for _, chat := range []string{"same", "changed", "cleared", "expired", "cleared and back", "expired and back"} {
		set(t, c, "n", chat, "before")
	}
	away := toolstate.New(r.connect(), "acme")
	known := watch(t, away, toolstate.Scope{Namespace: "n"})
	current := watch(t, away, toolstate.Scope{}, toolstate.Current())
	for range 6 {
		next(t, current)
	}
	short := func(chat string) {
		t.Helper()
		if err := c.Scratch(chat, "n").Set(t.Context(), "k", "short", tool.TTL(time.Second)); err != nil {
			t.Fatal(err)
		}
		for _, w := range []*toolstate.Watcher{known, current} {
			says(t, w, `written n/`+chat+` {"k":"short"}`)
		}
	}
	short("expired")
	short("expired and back")

	r.cut()
	for i := range 3 {
		set(t, c, "n", "changed", i)
	}
	wipe(t, c, "n", "cleared")
	wipe(t, c, "n", "cleared and back")
	set(t, c, "n", "cleared and back", "after")
	set(t, c, "n", "new", 1)
	set(t, c, "n", "came and went", 1)
	wipe(t, c, "n", "came and went")
	for _, chat := range []string{"expired", "expired and back"} {
		eventually(t, chat+" expires", func() bool {
			all, err := c.All(t.Context(), message.ToolStateRef{ChatID: chat, Namespace: "n"})
			return err == nil && !all.Found
		})
	}
	set(t, c, "n", "expired and back", "after")
	r.open()
	for _, w := range []*toolstate.Watcher{known, current} {
		says(t, w, `written n/changed {"k":2}`, `cleared n/cleared`, `written n/cleared and back {"k":"after"}`,
			`written n/new {"k":1}`, `expired n/expired`, `written n/expired and back {"k":"after"}`)
	}
	// Nothing comes twice, and the watch goes on.
	set(t, c, "n", "same", "now")
	for _, w := range []*toolstate.Watcher{known, current} {
		says(t, w, `written n/same {"k":"now"}`)
	}
}

// What the server does not tell after its own restart is found out, too.
func TestWatchResumesAfterAServerRestart(t *testing.T) {
	ns := natstest.Start(t)
	s := start(t, ns)
	c := toolstate.New(ns.Connect(), "acme")
	set(t, c, "n", "stays", 1)
	w := watch(t, c, toolstate.Scope{}, toolstate.Current())
	says(t, w, `written n/stays {"k":1}`)
	if err := c.Scratch("short", "n").Set(t.Context(), "k", 1, tool.TTL(time.Second)); err != nil {
		t.Fatal(err)
	}
	expires := next(t, w).ExpiresAt
	ns.Down()
	eventually(t, "its time is over", func() bool {
		at, err := time.Parse(time.RFC3339, expires)
		return err == nil && time.Now().After(at)
	})
	ns.Up()
	says(t, w, "expired n/short")
	set(t, c, "n", "stays", 2)
	says(t, w, `written n/stays {"k":2}`)

	stop(t, s) // no service: what comes as an event is told all the same
	ns.Down()
	ns.Up()
	start(t, ns)
	set(t, c, "n", "stays", 3)
	says(t, w, `written n/stays {"k":3}`)
}

// A reader that does not keep up misses states, never the last one, and gets
// none out of order.
func TestWatchWithASlowReader(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	c := toolstate.New(nc, "acme")
	w := watch(t, c, toolstate.Scope{})
	const docs, writes = 8, 400 // three times what waits
	var wg sync.WaitGroup
	for d := range docs {
		wg.Go(func() {
			for i := range writes {
				set(t, c, "n", fmt.Sprint(d), i)
			}
			if d%2 == 0 {
				wipe(t, c, "n", fmt.Sprint(d))
			}
		})
	}
	wg.Wait()
	last, count, final := map[string]uint64{}, 0, map[string]bool{}
	for len(final) < docs {
		ch := next(t, w)
		count++
		switch {
		case final[ch.ChatID]:
			t.Fatalf("after the last: %s", told(ch))
		case ch.Kind == toolstate.Cleared:
			final[ch.ChatID] = true
		case ch.Revision <= last[ch.ChatID]:
			t.Fatalf("%s: revision %d after %d", ch.ChatID, ch.Revision, last[ch.ChatID])
		case string(ch.Data["k"]) == fmt.Sprint(writes-1) && ch.ChatID[0]%2 == 1:
			final[ch.ChatID] = true
		}
		last[ch.ChatID] = ch.Revision
	}
	if count >= docs*writes {
		t.Errorf("%d changes: none was left out, so this tests nothing", count)
	}
}
