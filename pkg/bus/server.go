package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// Handler serves one request. What it returns is sent as JSON (Raw as it is);
// an error becomes an error reply. A nil value without an error sends an empty
// object; NoReply sends nothing.
type Handler func(ctx context.Context, req *Incoming) (any, error)

// Raw is a reply that is not JSON, or not from a struct.
type Raw struct {
	Header nats.Header
	Data   []byte
}

// NoReply is returned by a handler that has replied itself, or leaves it to
// somebody else.
var NoReply = &struct{ noReply bool }{true}

// Endpoint is one subject a Server answers.
type Endpoint struct {
	Name    string // [A-Za-z0-9_-]+, shown by nats micro
	Subject string // may have wildcards
	Queue   string // queue group; "" for the server's name
	Handler Handler
}

// ServerConfig names a Server.
type ServerConfig struct {
	Name        string // as nats micro ls shows it
	Version     string // semantic version
	Description string
	Metadata    map[string]string
	MaxInFlight int // requests at once; more are answered overloaded. 0: 4096
}

// Server answers requests on a connection of its own: the NATS micro protocol
// takes over the connection's handlers, so one Server per connection.
type Server struct {
	nc       *nats.Conn
	svc      micro.Service
	log      telemetry.Logger
	max      int64
	inFlight atomic.Int64
	wg       sync.WaitGroup
	ownSubs  int
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	stopOnce sync.Once
	stopErr  error
	base     context.Context
	cancel   context.CancelCauseFunc
}

// NewServer registers a service on nc. Stop it before closing nc.
func NewServer(nc *nats.Conn, cfg ServerConfig, log telemetry.Logger, reg prometheus.Registerer) (*Server, error) {
	s := &Server{nc: nc, log: log, max: int64(cfg.MaxInFlight)}
	if s.max == 0 {
		s.max = 4096
	}
	s.base, s.cancel = context.WithCancelCause(context.Background())
	s.requests = telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolbus_requests_total", Help: "Requests answered, by endpoint and outcome (ok or an error code).",
	}, []string{"service", "endpoint", "outcome"})).MustCurryWith(prometheus.Labels{"service": cfg.Name})
	s.seconds = telemetry.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "toolbus_request_seconds", Help: "Time from taking a request to its reply, by endpoint.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
	}, []string{"service", "endpoint"})).MustCurryWith(prometheus.Labels{"service": cfg.Name}).(*prometheus.HistogramVec)
	before := nc.NumSubscriptions()
	var err error
	s.svc, err = micro.AddService(nc, micro.Config{
		Name: cfg.Name, Version: cfg.Version, Description: cfg.Description, Metadata: cfg.Metadata,
		ErrorHandler: func(_ micro.Service, e *micro.NATSError) {
			log.Error("subscription error", "subject", e.Subject, "err", e.Description)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("register service %s: %w", cfg.Name, err)
	}
	s.ownSubs = nc.NumSubscriptions() - before
	return s, nil
}

// Handle adds an endpoint.
func (s *Server) Handle(e Endpoint) error {
	if e.Queue == "" {
		e.Queue = s.svc.Info().Name
	}
	err := s.svc.AddEndpoint(e.Name, micro.HandlerFunc(func(r micro.Request) {
		// The callback is the subscription's only goroutine: hand the work on.
		in := &Incoming{Subject: r.Subject(), Header: nats.Header(r.Headers()), Data: r.Data(), Reply: r.Reply()}
		if s.inFlight.Add(1) > s.max {
			s.inFlight.Add(-1)
			s.requests.WithLabelValues(e.Name, string(errcode.Overloaded)).Inc()
			err := errcode.New(errcode.Overloaded, "too many requests at once")
			err.Details = &errcode.Details{RetryAfter: "100ms"}
			s.reply(in, nil, err)
			return
		}
		s.wg.Add(1)
		go s.serve(e, in)
	}), micro.WithEndpointSubject(e.Subject), micro.WithEndpointQueueGroup(e.Queue),
		micro.WithEndpointPendingLimits(-1, 256<<20))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, err)
	}
	s.ownSubs++
	return nil
}

func (s *Server) serve(e Endpoint, in *Incoming) {
	start := time.Now()
	defer s.wg.Done()
	defer s.inFlight.Add(-1)
	ctx, cancel := in.context(s.base)
	defer cancel()
	v, err := s.run(ctx, e, in)
	outcome := "ok"
	if err != nil {
		outcome = string(errcode.Of(err))
		if errcode.Of(err) == errcode.Internal {
			s.log.Error("request failed", "endpoint", e.Name, "subject", in.Subject, "err", err)
		}
	}
	if v != any(NoReply) || err != nil {
		s.reply(in, v, err)
	}
	s.requests.WithLabelValues(e.Name, outcome).Inc()
	s.seconds.WithLabelValues(e.Name).Observe(time.Since(start).Seconds())
}

// run keeps a panicking handler from taking the process down.
func (s *Server) run(ctx context.Context, e Endpoint, in *Incoming) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("handler panicked", "endpoint", e.Name, "panic", p, "stack", string(debug.Stack()))
			err = errcode.New(errcode.Internal, "the service failed on this request")
		}
	}()
	return e.Handler(ctx, in)
}

func (s *Server) reply(in *Incoming, v any, err error) {
	if in.Reply == "" {
		return
	}
	m, err := ReplyMsg(in.Reply, v, err)
	if err == nil && int64(len(m.Data)) > MaxBody(s.nc) {
		actual, limit := int64(len(m.Data)), MaxBody(s.nc)
		m, err = ReplyMsg(in.Reply, nil, errcode.OverLimit(errcode.TooLarge, limit, actual,
			"the reply is %d bytes, at most %d fit a message", actual, limit))
	}
	if err == nil {
		err = s.nc.PublishMsg(m)
	}
	if err != nil {
		s.log.Warn("reply not sent", "subject", in.Subject, "err", err)
	}
}

// ReplyMsg makes the reply for a value or an error, in the NATS micro form.
func ReplyMsg(reply string, v any, err error) (*nats.Msg, error) {
	m := nats.NewMsg(reply)
	if err != nil {
		e := errcode.From(err)
		m.Header.Set(message.HeaderErrorCode, strconv.Itoa(e.Code.Status()))
		m.Header.Set(message.HeaderError, headerText(e.Error()))
		m.Data, err = Marshal(errcode.Body{Error: e})
		return m, err
	}
	switch x := v.(type) {
	case nil:
		m.Data = []byte("{}")
	case Raw:
		m.Header, m.Data = x.Header, x.Data
	default:
		m.Data, err = Marshal(v)
	}
	return m, err
}

// headerText keeps an error's text on one short header line.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) > 512 {
		s = strings.ToValidUTF8(s[:512], "") + "…"
	}
	return s
}

// Stop stops taking requests, waits until those taken are answered, or until
// ctx ends; then the rest are cancelled. Safe to call twice.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

func (s *Server) stop(ctx context.Context) error {
	rest := s.nc.NumSubscriptions() - s.ownSubs
	err := s.svc.Stop()
	// Draining subscriptions still hand out what they hold; each leaves the
	// connection's count when it has none left.
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !s.nc.IsClosed() && s.nc.NumSubscriptions() > rest && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		s.cancel(errcode.New(errcode.Unavailable, "the service is stopping"))
		select {
		case <-done:
		case <-time.After(time.Second):
			err = errors.Join(err, fmt.Errorf("%d requests still running", s.inFlight.Load()))
		}
	}
	s.cancel(nil)
	if !s.nc.IsClosed() {
		flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if ferr := s.nc.FlushWithContext(flushCtx); ferr != nil && !errors.Is(ferr, nats.ErrConnectionClosed) {
			err = errors.Join(err, ferr)
		}
	}
	return err
}

// InFlight is the number of requests being served.
func (s *Server) InFlight() int64 { return s.inFlight.Load() }

// Incoming is a request as it arrived.
type Incoming struct {
	Subject string
	Header  nats.Header
	Data    []byte
	Reply   string
}

// Decode decodes the body, a JSON object, into v. A malformed one is
// invalid_request and names the field where it can.
func (in *Incoming) Decode(v any) error { return DecodeBody(in.Data, v) }

// DecodeBody decodes a request's body; an empty one is an empty object.
func DecodeBody(data []byte, v any) error {
	if len(data) == 0 {
		data = []byte("{}")
	}
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	var t *json.UnmarshalTypeError
	var syn *json.SyntaxError
	switch {
	case errors.As(err, &t) && t.Field != "":
		return errcode.Field(t.Field, "must be %s, not %s", t.Type, t.Value)
	case errors.As(err, &t):
		return errcode.New(errcode.InvalidRequest, "the body must be a JSON object, not %s", t.Value)
	case errors.As(err, &syn):
		return errcode.Wrap(errcode.InvalidRequest, err, "the body is not valid JSON: %v (at byte %d)", err, syn.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errcode.New(errcode.InvalidRequest, "the body is not valid JSON: it ends too early")
	}
	return errcode.Wrap(errcode.InvalidRequest, err, "the body is not valid: %v", err)
}

func (in *Incoming) context(base context.Context) (context.Context, context.CancelFunc) {
	ctx := base
	if in.Header != nil {
		ctx = WithTrace(ctx, in.Header.Get(message.HeaderTrace))
	}
	return context.WithCancel(ctx)
}
