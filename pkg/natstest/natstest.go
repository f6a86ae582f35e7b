// Package natstest starts real NATS servers with JetStream for tests: one inside
// the test's process, or several in processes of their own, which can be killed;
// and cuts connections.
package natstest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/pkg/bus"
)

// Server is a NATS server that can be stopped and started again on the same
// port with the same data.
type Server struct {
	t    testing.TB
	opts server.Options
	srv  *server.Server
	url  string
}

// Start starts a server on a free loopback port, with JetStream in a temporary
// folder. It stops when the test ends. Tune the options with mod.
func Start(t testing.TB, mod ...func(*server.Options)) *Server {
	t.Helper()
	s := &Server{t: t, opts: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: t.TempDir(),
		NoLog: true, NoSigs: true,
	}}
	for _, m := range mod {
		m(&s.opts)
	}
	s.Up()
	t.Cleanup(s.Down)
	return s
}

// Up starts the server after Down.
func (s *Server) Up() {
	s.t.Helper()
	opts := s.opts
	srv, err := server.NewServer(&opts)
	if err != nil {
		s.t.Fatalf("nats-server: %v", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		s.t.Fatal("nats-server did not get ready")
	}
	s.srv = srv
	s.opts.Port = opts.Port
	s.url = srv.ClientURL()
}

// Down stops the server; its data stay.
func (s *Server) Down() {
	if s.srv != nil {
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
		s.srv = nil
	}
}

// URL is where clients connect; the same before, during and after Down.
func (s *Server) URL() string { return s.url }

// Config is a bus configuration for this server.
func (s *Server) Config() bus.Config { return bus.Config{Server: s.URL(), Wait: 5 * time.Second} }

// Connect opens a connection that closes when the test ends.
func (s *Server) Connect(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	return connect(s.t, s.Config(), opts...)
}

// Connect opens a connection to a URL, a Proxy's for example, that closes when
// the test ends.
func Connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, bus.Config{Server: url, Wait: startWithin}, opts...)
}

func connect(t testing.TB, cfg bus.Config, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := bus.Connect(context.Background(), cfg, t.Name(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
