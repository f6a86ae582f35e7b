package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

const (
	stateStream = "KV_toolbus_toolstate"
	storeStream = "KV_toolbus_store"
	replicas    = 3
)

// system is NATS servers and replicas of the state service, each in a process of
// its own. Everybody connects through proxies of their own.
type system struct {
	t       *testing.T
	nats    *natstest.Cluster
	service []*service
}

// service is a replica of the state service.
type service struct {
	process *harness.Process
	link    *link
}

// link is one party's way to the servers.
type link struct{ proxies []*natstest.Proxy }

// newSystem starts servers and three replicas, and waits until all answer.
func newSystem(t *testing.T, servers int) *system {
	t.Helper()
	s := &system{t: t, nats: natstest.StartCluster(t, servers)}
	bin := builder.Build(t, "./state/cmd/state")
	for i := range replicas {
		l := s.newLink()
		s.service = append(s.service, &service{process: s.startService(bin, l), link: l})
		if i == 0 {
			s.waitServices(1) // it makes the streams
		}
	}
	s.waitServices(replicas)
	s.waitCurrent()
	return s
}

func (s *system) newLink() *link {
	l := &link{}
	for _, m := range s.nats.Members {
		l.proxies = append(l.proxies, natstest.StartProxy(s.t, m.URL()))
	}
	return l
}

func (l *link) url() string {
	urls := make([]string, len(l.proxies))
	for i, p := range l.proxies {
		urls[i] = p.URL()
	}
	return strings.Join(urls, ",")
}

// cut closes the party's connections and returns how many there were.
func (l *link) cut() int {
	n := 0
	for _, p := range l.proxies {
		n += p.Cut()
	}
	return n
}

func (s *system) startService(bin string, l *link) *harness.Process {
	return harness.Start(s.t, bin, "--server", l.url(), "--replicas", fmt.Sprint(len(s.nats.Members)), "--http", "", "--connect-wait", "60s")
}

// killService kills a replica (SIGKILL).
func (s *system) killService(i int) { s.service[i].process.Kill() }

// restartService starts a replica that was killed, and waits until all answer.
func (s *system) restartService(i int) {
	s.service[i].process = s.startService(builder.Build(s.t, "./state/cmd/state"), s.service[i].link)
	s.waitServices(replicas)
}

// waitServices waits until n replicas answer.
func (s *system) waitServices(n int) {
	s.t.Helper()
	nc := s.nats.Connect()
	defer nc.Close()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		s.t.Fatal(err)
	}
	deadline := time.Now().Add(60 * time.Second)
	for time.Now().Before(deadline) {
		if err := nc.PublishRequest("$SRV.PING.state", inbox, nil); err != nil {
			s.t.Fatal(err)
		}
		seen := map[string]bool{}
		for len(seen) < n {
			m, err := sub.NextMsg(200 * time.Millisecond)
			if err != nil {
				break
			}
			var pong struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(m.Data, &pong) == nil && pong.ID != "" {
				seen[pong.ID] = true
			}
		}
		if len(seen) == n {
			return
		}
	}
	s.t.Fatalf("not all %d replicas of the state service answer", n)
}

// connect opens a caller's connection through a link of its own.
func (s *system) connect(opts ...nats.Option) (*nats.Conn, *link) {
	s.t.Helper()
	l := s.newLink()
	// Cut connections are no news here.
	opts = append(opts, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	return natstest.Connect(s.t, l.url(), opts...), l
}

// eventually polls until ok.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for !ok() {
		if ctx.Err() != nil {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // poll
	}
}
