package files_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	client "github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files"
)

// next waits for a hint.
func next(t *testing.T, w *client.Watcher) string {
	t.Helper()
	select {
	case h, open := <-w.Hints():
		if !open {
			t.Fatal("the watch has ended")
		}
		return h.Path
	case <-time.After(10 * time.Second):
		t.Fatal("no hint came")
	}
	return ""
}

// tenantsOf starts a server with a user per tenant that has its own subjects only,
// and the service.
func tenantsOf(t *testing.T, tenants ...string) map[string]*client.Client {
	t.Helper()
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "service", Password: "pw"}}
		for _, name := range tenants {
			o.Users = append(o.Users, &server.User{Username: name, Password: "pw", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{"toolbus.v1.files." + name + ".>"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_" + name + ".>", subject.ChangesFile(name, "*")}},
			}})
		}
	})
	as := func(user string) string { return strings.Replace(s.URL(), "://", "://"+user+":pw@", 1) }
	start(t, s, func(c *files.Config) { c.Bus.Server = as("service") })
	out := map[string]*client.Client{}
	for _, name := range tenants {
		nc, err := bus.Connect(t.Context(), bus.Config{Server: as(name), InboxPrefix: "_INBOX_" + name}, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		out[name] = client.New(nc, name)
		out[name+" as another"] = client.New(nc, "other")
	}
	return out
}

// A watch needs the permission to hear of its own tenant's changes and no other.
func TestWatch(t *testing.T) {
	clients := tenantsOf(t, "acme", "globex")
	w, err := clients["acme"].Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	c := clients["acme"]
	for _, path := range []string{"a", "Grüße/*.>/🙂", strings.Repeat("x", 1024)} {
		for _, change := range []func() error{
			func() error { _, err := c.Write(t.Context(), path, []byte("1")); return err },
			func() error { _, err := c.Append(t.Context(), path, []byte("2")); return err },
			func() error {
				_, err := clients["globex"].Write(t.Context(), "theirs", nil)
				if err != nil {
					return err
				}
				_, err = c.Put(t.Context(), path, strings.NewReader(strings.Repeat("3", 300_000)))
				return err
			},
			func() error { _, err := c.Delete(t.Context(), path); return err },
		} {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if got := next(t, w); got != path {
				t.Fatalf("heard of %q, want %q", got, path)
			}
		}
	}
	if _, err := clients["acme as another"].Watch(t.Context()); errcode.Of(err) != errcode.NotAllowed {
		t.Errorf("another tenant's changes: %v", err)
	}
	w.Stop()
	if _, open := <-w.Hints(); open {
		t.Error("a hint after Stop")
	}
}

// After a lost connection any file may have changed.
func TestWatchSurvivesARestart(t *testing.T) {
	s := natstest.Start(t)
	svc := start(t, s)
	c := client.New(s.Connect(), "acme")
	w, err := c.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	stop(t, svc)
	s.Down()
	s.Up()
	if got := next(t, w); got != "" {
		t.Errorf("heard of %q", got)
	}
	start(t, s)
	if _, err := c.Write(t.Context(), "a", nil); err != nil {
		t.Fatal(err)
	}
	for got := next(t, w); got != "a"; got = next(t, w) {
		if got != "" {
			t.Fatalf("heard of %q", got)
		}
	}
}
