package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// natsServer is the embedded server.
type natsServer struct {
	url      string
	cfg      Config
	log      telemetry.Logger
	reserved int64 // bytes that streams reserve
	host     string
	port     int // also after a restart

	mu  sync.Mutex
	srv *server.Server // another one after a restart

	unguard context.CancelFunc
	guarded chan struct{} // closed when the guard has ended
}

// startNATS starts the server and returns when clients can connect. reserved is
// how many bytes the services' streams reserve on the disk.
func startNATS(ctx context.Context, cfg Config, reserved int64, log telemetry.Logger) (*natsServer, error) {
	host, port, err := cfg.hostPort()
	if err != nil {
		return nil, err
	}
	// The server's own message comes late and through its log; a listener
	// tried first tells at once what is wrong.
	ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, errcode.Wrap(errcode.Unavailable, err, "listen on %s: %v (--listen names another address)", cfg.Listen, err)
	}
	ln.Close()
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s := &natsServer{cfg: cfg, log: log, reserved: reserved, host: host, port: port, guarded: make(chan struct{})}
	if err := s.launch(ctx); err != nil {
		return nil, err
	}
	addr := s.server().Addr()
	s.url = clientURL(host, addr)
	if t, ok := addr.(*net.TCPAddr); ok {
		s.port = t.Port
	}
	guardCtx, cancel := context.WithCancel(context.Background())
	s.unguard = cancel
	go s.guard(guardCtx, guardEvery)
	return s, nil
}

// launch starts a server on what is on the disk.
func (s *natsServer) launch(ctx context.Context) error {
	interval, err := s.cfg.syncInterval()
	if err != nil {
		return err
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "toolbus",
		Host:       s.host, Port: s.port,
		JetStream: true, StoreDir: s.cfg.Data, JetStreamMaxStore: storeLimit(s.cfg.Data, s.reserved),
		SyncAlways: interval == 0, SyncInterval: interval,
		NoSigs: true,
	})
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "NATS server: %v", err)
	}
	adapter := &serverLog{log: s.log.With("service", "nats-server"), fatal: make(chan string, 1)}
	srv.SetLoggerV2(adapter, false, false, false)
	go srv.Start()
	for !srv.ReadyForConnections(50 * time.Millisecond) {
		select {
		case <-ctx.Done():
			err = errcode.Wrap(errcode.Cancelled, ctx.Err(), "stopped while the NATS server was starting")
		case msg := <-adapter.fatal:
			err = errcode.New(errcode.Unavailable, "NATS server: %s", msg)
		default:
			continue
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return errors.Join(err, shutdown(stop, srv))
	}
	s.mu.Lock()
	s.srv = srv
	s.mu.Unlock()
	return nil
}

// server is the one that runs, or ran last.
func (s *natsServer) server() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv
}

// InProcessConn connects to the server that runs now, without the network
// between.
func (s *natsServer) InProcessConn() (net.Conn, error) { return s.server().InProcessConn() }

// clientURL is where this machine's clients connect.
func clientURL(host string, addr net.Addr) string {
	port := 0
	if t, ok := addr.(*net.TCPAddr); ok {
		port = t.Port
	}
	switch ip := net.ParseIP(host); {
	case ip == nil || !ip.IsUnspecified():
	case ip.To4() != nil:
		host = "127.0.0.1"
	default:
		host = "::1"
	}
	return "nats://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// stop writes everything to disk and ends the server, or gives up at ctx's end.
func (s *natsServer) stop(ctx context.Context) error {
	s.unguard()
	select {
	case <-s.guarded:
	case <-ctx.Done():
		return fmt.Errorf("the NATS server's guard did not stop in time: %w", ctx.Err())
	}
	return shutdown(ctx, s.server())
}

// shutdown ends a server, or gives up at ctx's end.
func shutdown(ctx context.Context, srv *server.Server) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Shutdown()
		srv.WaitForShutdown()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the NATS server did not stop in time: %w", ctx.Err())
	}
}

// serverLog passes the server's warnings and errors on. Its notices, mostly a
// banner, are for debugging. A fatal message does not end the process here: it
// goes to whoever waits for the start.
type serverLog struct {
	log   telemetry.Logger
	once  sync.Once
	fatal chan string
}

func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *serverLog) Warnf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l *serverLog) Errorf(format string, v ...any)  { l.log.Error(fmt.Sprintf(format, v...)) }
func (l *serverLog) Debugf(string, ...any)           {}
func (l *serverLog) Tracef(string, ...any)           {}
func (l *serverLog) Fatalf(format string, v ...any) {
	msg := fmt.Sprintf(format, v...)
	l.log.Error(msg)
	l.once.Do(func() { l.fatal <- msg })
}
