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
	srv      *server.Server
	url      string
	cfg      Config
	log      telemetry.Logger
	reserved int64 // bytes that streams reserve
	memory   int64 // bytes that memory streams may take

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
	interval, err := cfg.syncInterval()
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
	opts := &server.Options{
		ServerName: "toolbus",
		Host:       host, Port: port,
		JetStream: true, StoreDir: cfg.Data, JetStreamMaxStore: storeLimit(cfg.Data, reserved),
		SyncAlways: interval == 0, SyncInterval: interval,
		NoSigs: true,
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "NATS server: %v", err)
	}
	adapter := &serverLog{log: log.With("service", "nats-server"), fatal: make(chan string, 1)}
	srv.SetLoggerV2(adapter, false, false, false)
	s := &natsServer{srv: srv, cfg: cfg, log: log, reserved: reserved, unguard: func() {}, guarded: make(chan struct{})}
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
		close(s.guarded)
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return nil, errors.Join(err, s.stop(stop))
	}
	s.url = clientURL(host, srv.Addr())
	if js := srv.JetStreamConfig(); js != nil {
		s.memory = js.MaxMemory
	}
	guardCtx, cancel := context.WithCancel(context.Background())
	s.unguard = cancel
	go s.guard(guardCtx, guardEvery)
	return s, nil
}

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
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.unguard()
		<-s.guarded
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
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
