package natstest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/pkg/bus"
)

// Cluster is NATS servers in processes of their own that form a JetStream
// cluster; one alone is a plain server. They end with the test.
type Cluster struct {
	t       testing.TB
	Members []*Member
}

// StartCluster starts n servers and waits until JetStream answers. TestMain must
// call RunChild.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		t.Fatal("natstest: a server's process runs tests: TestMain must call natstest.RunChild first")
	}
	c := &Cluster{t: t}
	dir := t.TempDir()
	ports := freePorts(t, 2*n)
	var routes []string
	for i := range n {
		routes = append(routes, fmt.Sprintf("nats://%s:%d", loopback, ports[n+i]))
	}
	for i := range n {
		spec := childSpec{Name: fmt.Sprintf("n%d", i+1), Port: ports[i], StoreDir: filepath.Join(dir, fmt.Sprint(i+1))}
		if n > 1 {
			spec.ClusterPort, spec.Routes = ports[n+i], routes
		}
		m := &Member{t: t, spec: spec}
		c.Members = append(c.Members, m)
		t.Cleanup(func() {
			m.Kill()
			if log := m.stderr.String(); log != "" && t.Failed() {
				t.Logf("nats-server %s:\n%s", m.Name(), log)
			}
		})
	}
	for _, m := range c.Members {
		m.Start()
	}
	js := c.jetStream()
	c.poll("JetStream answers", func(ctx context.Context) bool {
		_, err := js.AccountInfo(ctx)
		return err == nil
	})
	return c
}

// freePorts finds n free ports. Somebody else may take one before it is used;
// then the server does not start.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", loopback+":0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }() // at the end only, so that all differ
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// URL is where clients connect: all members.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.Members))
	for i, m := range c.Members {
		urls[i] = m.URL()
	}
	return strings.Join(urls, ",")
}

// Config is a bus configuration for the cluster.
func (c *Cluster) Config() bus.Config { return bus.Config{Server: c.URL(), Wait: startWithin} }

// Connect opens a connection that closes when the test ends.
func (c *Cluster) Connect(opts ...nats.Option) *nats.Conn {
	c.t.Helper()
	return connect(c.t, c.Config(), opts...)
}

func (c *Cluster) jetStream() jetstream.JetStream {
	c.t.Helper()
	js, err := jetstream.New(c.Connect())
	if err != nil {
		c.t.Fatal(err)
	}
	return js
}

// settleWithin is how long the cluster may take to elect and to catch up: an
// election alone takes 4 to 9 seconds.
const settleWithin = 60 * time.Second

// poll asks until ok, giving each try a second.
func (c *Cluster) poll(what string, ok func(context.Context) bool) {
	c.t.Helper()
	deadline := time.Now().Add(settleWithin)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		done := ok(ctx)
		cancel()
		if done {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("natstest: never: %s", what)
		}
		time.Sleep(20 * time.Millisecond) // poll
	}
}

// Leader waits until a stream has a leader that runs, and returns it.
func (c *Cluster) Leader(stream string) *Member {
	c.t.Helper()
	nc := c.Connect()
	defer nc.Close()
	return c.leader(nc, stream)
}

func (c *Cluster) leader(nc *nats.Conn, stream string) *Member {
	c.t.Helper()
	var found *Member
	c.poll("stream "+stream+" has a leader", func(ctx context.Context) bool {
		info, err := streamInfo(ctx, nc, stream)
		if err != nil || info.Cluster == nil {
			if err == nil && len(c.Members) == 1 {
				found = c.Members[0]
			}
			return found != nil
		}
		for _, m := range c.Members {
			if m.Name() == info.Cluster.Leader && m.Running() {
				found = m
			}
		}
		return found != nil
	})
	return found
}

// WaitCurrent waits until every member that a stream is on runs and has caught up.
func (c *Cluster) WaitCurrent(stream string) {
	c.t.Helper()
	nc := c.Connect()
	defer nc.Close()
	c.poll("stream "+stream+" is on all members", func(ctx context.Context) bool {
		info, err := streamInfo(ctx, nc, stream)
		if err != nil {
			return false
		}
		if info.Cluster == nil {
			return len(c.Members) == 1
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Offline {
				return false
			}
		}
		return info.Cluster.Leader != ""
	})
}

// StepDown makes a stream's leader hand over to another member, and waits until
// there is a leader again.
func (c *Cluster) StepDown(stream string) {
	c.t.Helper()
	nc := c.Connect()
	defer nc.Close()
	c.poll("the leader of "+stream+" steps down", func(ctx context.Context) bool {
		reply, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil)
		if err != nil {
			return false
		}
		var resp struct {
			Success bool `json:"success"`
		}
		return json.Unmarshal(reply.Data, &resp) == nil && resp.Success
	})
	c.leader(nc, stream)
}

func streamInfo(ctx context.Context, nc *nats.Conn, stream string) (*jetstream.StreamInfo, error) {
	reply, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return nil, err
	}
	var resp struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.StreamInfo
	}
	if err := json.Unmarshal(reply.Data, &resp); err != nil {
		return nil, err
	}
	if resp.Error != nil {
		return nil, resp.Error
	}
	return &resp.StreamInfo, nil
}
