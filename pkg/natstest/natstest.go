// Package natstest starts a real NATS server with JetStream inside a test.
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
	nc, err := bus.Connect(context.Background(), s.Config(), s.t.Name(), opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}
