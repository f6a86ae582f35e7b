package bus

import (
	"bytes"
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
	"github.com/toolbus/toolbus/pkg/internal/crew"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// Handler serves one request. What it returns is sent as JSON (Raw as it is);
// an error becomes an error reply. A nil value without an error sends an empty
// object; NoReply sends nothing. ctx has the request's trace and ends when Stop
// gives up waiting; a handler that leaves something running gives it a context
// of its own.
type Handler func(ctx context.Context, req *Incoming) (any, error)

// Raw is a reply that is not JSON, or not from a struct.
type Raw struct {
	Header nats.Header
	Data   []byte
}

// NoReply is returned by a handler that has replied itself, or leaves it to
// somebody else.
var NoReply = &struct{ noReply bool }{true}

// Later is returned by a handler that answers by itself, before or after it
// returns: with Incoming.Answer, without which Stop waits in vain.
var Later = &struct{ later bool }{true}

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
	gate     *gate
	crew     *crew.Crew // serves the requests
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	stopOnce sync.Once
	stopErr  error
	base     context.Context
	cancel   context.CancelCauseFunc
}

// maxIdle is how many goroutines wait for requests.
const maxIdle = 256

// NewServer registers a service on nc. Stop it before closing nc.
func NewServer(nc *nats.Conn, cfg ServerConfig, log telemetry.Logger, reg prometheus.Registerer) (*Server, error) {
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = 4096
	}
	s := &Server{nc: nc, log: log, gate: newGate(int64(cfg.MaxInFlight)), crew: crew.New(maxIdle)}
	s.base, s.cancel = context.WithCancelCause(context.Background())
	s.requests = telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolbus_requests_total", Help: "Requests answered, by endpoint and outcome (ok or an error code).",
	}, []string{"service", "endpoint", "outcome"})).MustCurryWith(prometheus.Labels{"service": cfg.Name})
	s.seconds = telemetry.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "toolbus_request_seconds", Help: "Time from taking a request to its reply, by endpoint.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
	}, []string{"service", "endpoint"})).MustCurryWith(prometheus.Labels{"service": cfg.Name}).(*prometheus.HistogramVec)
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
	logOutages(nc, log)
	return s, nil
}

// logOutages says when the connection is lost and when it is back.
func logOutages(nc *nats.Conn, log telemetry.Logger) {
	nc.SetDisconnectErrHandler(func(nc *nats.Conn, err error) {
		if !nc.IsClosed() {
			log.Warn("connection to NATS lost", "err", err)
		}
	})
	also := nc.ReconnectHandler()
	nc.SetReconnectHandler(func(nc *nats.Conn) {
		log.Info("connected to NATS again")
		if also != nil {
			also(nc)
		}
	})
}

// Handle adds an endpoint. It does not see requests without a reply subject, or
// whose reply subject is one of ours or of NATS: nothing is done for them, and
// nothing is published there.
func (s *Server) Handle(e Endpoint) error {
	if e.Queue == "" {
		e.Queue = s.svc.Info().Name
	}
	served := &served{Endpoint: e, ok: s.requests.WithLabelValues(e.Name, "ok"), seconds: s.seconds.WithLabelValues(e.Name)}
	err := s.svc.AddEndpoint(e.Name, micro.HandlerFunc(func(r micro.Request) {
		// The callback is the subscription's only goroutine: hand the work on.
		in := &Incoming{Subject: r.Subject(), Header: nats.Header(r.Headers()), Data: r.Data(), Reply: r.Reply(), s: s, endpoint: served}
		if !answerable(in.Reply) {
			s.requests.WithLabelValues(e.Name, string(errcode.InvalidRequest)).Inc()
			s.log.Debug("not served: the reply subject is no inbox", "endpoint", e.Name, "subject", in.Subject, "reply", in.Reply)
			return
		}
		switch s.gate.enter() {
		case admitted:
			s.crew.Go(in.serve)
		case full:
			err := errcode.New(errcode.Overloaded, "too many requests at once")
			err.Details = &errcode.Details{RetryAfter: "100ms"}
			s.refuse(e, in, err)
		case closed:
			s.refuse(e, in, errcode.New(errcode.Unavailable, "the service is stopping"))
		}
	}), micro.WithEndpointSubject(e.Subject), micro.WithEndpointQueueGroup(e.Queue),
		micro.WithEndpointPendingLimits(-1, 256<<20))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, err)
	}
	return nil
}

func (s *Server) refuse(e Endpoint, in *Incoming, err *errcode.Error) {
	s.requests.WithLabelValues(e.Name, string(err.Code)).Inc()
	s.send(in, s.replyError(in.Reply, err))
}

// served is an endpoint, with the metrics that nearly every request counts in.
type served struct {
	Endpoint
	ok      prometheus.Counter
	seconds prometheus.Observer
}

// serve has the handler make the answer. It keeps a panic, in the handler or in what
// it returned, from taking the process down.
func (in *Incoming) serve() {
	in.begun = time.Now()
	var v any
	var err error
	returned := false
	defer func() {
		if p := recover(); p != nil {
			in.s.log.Error("handler panicked", "endpoint", in.endpoint.Name, "panic", p, "stack", string(debug.Stack()))
		}
		if !returned { // runtime.Goexit too
			v, err = nil, errcode.New(errcode.Internal, "the service failed on this request")
		}
		if err != nil || v != any(Later) {
			in.Answer(v, err)
		}
	}()
	v, err = in.endpoint.Handler(in.context(in.s.base), in)
	returned = true
}

// Answer sends the answer of a request whose handler returned, or returns, Later: v
// and err are what a handler returns. Only the first answer counts; Answer tells
// whether this was it.
func (in *Incoming) Answer(v any, err error) bool {
	if !in.answered.CompareAndSwap(false, true) {
		return false
	}
	s := in.s
	defer s.gate.leave()
	m, err := s.reply(in, v, err)
	outcome := in.endpoint.ok
	if err != nil {
		code := errcode.Of(err)
		outcome = s.requests.WithLabelValues(in.endpoint.Name, string(code))
		if code == errcode.Internal {
			s.log.Error("request failed", "endpoint", in.endpoint.Name, "subject", in.Subject, "err", err)
		}
	}
	s.send(in, m)
	outcome.Inc()
	in.endpoint.seconds.Observe(time.Since(in.begun).Seconds())
	return true
}

// reply makes the message of an answer, nil for none; the error is the one that it
// carries.
func (s *Server) reply(in *Incoming, v any, failed error) (m *nats.Msg, err error) {
	err = failed
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("the answer has no JSON form", "endpoint", in.endpoint.Name, "panic", p, "stack", string(debug.Stack()))
			err = errcode.New(errcode.Internal, "the service failed on this request")
			m = s.replyError(in.Reply, err)
		}
	}()
	if err == nil && v == any(NoReply) {
		return nil, nil
	}
	if err == nil {
		if m, err = ReplyMsg(in.Reply, v, nil); err != nil {
			err = errcode.Wrap(errcode.Internal, err, "the reply has no JSON form")
		} else if actual, limit := int64(len(m.Data)), MaxBody(s.nc); actual > limit {
			err = errcode.OverLimit(errcode.TooLarge, limit, actual, "the reply is %d bytes, at most %d fit a message", actual, limit)
		} else {
			return m, nil
		}
	}
	return s.replyError(in.Reply, err), err
}

// replyError is ReplyMsg for an error; one whose details do not fit a message
// loses them, never its code.
func (s *Server) replyError(reply string, err error) *nats.Msg {
	m, merr := ReplyMsg(reply, nil, err)
	if merr == nil && int64(len(m.Data)) <= MaxBody(s.nc) {
		return m
	}
	e := errcode.From(err)
	short := errcode.New(e.Code, "%s", headerText(e.Message))
	short.Retryable = e.Retryable
	m, merr = ReplyMsg(reply, nil, short)
	if merr != nil {
		s.log.Error("error without a JSON form", "err", merr)
		return nil
	}
	return m
}

// send publishes a reply, if there is one.
func (s *Server) send(in *Incoming, m *nats.Msg) {
	if m == nil {
		return
	}
	if err := s.nc.PublishMsg(m); err != nil {
		s.log.Warn("reply not sent", "subject", in.Subject, "err", err)
	}
}

// ReplyMsg makes the reply for a value or an error, in the NATS micro form.
func ReplyMsg(reply string, v any, err error) (*nats.Msg, error) {
	m := &nats.Msg{Subject: reply}
	if err != nil {
		e := errcode.From(err)
		m.Header = nats.Header{}
		m.Header.Set(message.HeaderErrorCode, strconv.Itoa(e.Code.Status()))
		m.Header.Set(message.HeaderError, headerText(e.Error()))
		m.Data, err = message.Marshal(errcode.Body{Error: e})
		return m, err
	}
	switch x := v.(type) {
	case nil:
		m.Data = []byte("{}")
	case Raw:
		m.Header, m.Data = x.Header, x.Data
	default:
		m.Data, err = message.Marshal(v)
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
// ctx ends; then the rest are cancelled and refused. Safe to call twice, and on
// a closed connection.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

// stopGrace is how long cancelled requests have to end, and a last flush may
// take, beyond the context given to Stop.
const stopGrace = time.Second

func (s *Server) stop(ctx context.Context) error {
	defer s.crew.Close()
	err := s.svc.Stop() // asks the server to send no more
	s.handedOut(ctx)
	idle := s.gate.close()
	select {
	case <-idle:
	case <-ctx.Done():
		s.cancel(errcode.New(errcode.Unavailable, "the service is stopping"))
		select {
		case <-idle:
		case <-time.After(stopGrace):
			err = errors.Join(err, fmt.Errorf("%d requests still running", s.gate.count()))
		}
	}
	s.cancel(nil)
	if ferr := s.flush(context.WithoutCancel(ctx), stopGrace); ferr != nil && !errors.Is(ferr, nats.ErrConnectionClosed) {
		err = errors.Join(err, fmt.Errorf("flush the last replies: %w", ferr))
	}
	return err
}

// handedOut waits until every request that NATS has sent to this connection
// has reached its callback, or until ctx ends.
func (s *Server) handedOut(ctx context.Context) {
	// The reply to a ping comes after all that was on its way.
	_ = s.flush(ctx, 5*time.Second)
	done := make(chan struct{})
	if s.nc.Barrier(func() { close(done) }) != nil {
		return // closed: nothing is delivered any more
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// flush waits until the server has taken what was published. Away from NATS
// there is nothing to wait for.
func (s *Server) flush(ctx context.Context, limit time.Duration) error {
	if !s.nc.IsConnected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.nc.FlushWithContext(ctx)
}

// Context ends when Stop gives up waiting for the requests under way, with why as its
// cause, and in the end.
func (s *Server) Context() context.Context { return s.base }

// InFlight is the number of requests being served.
func (s *Server) InFlight() int64 { return s.gate.count() }

// Incoming is a request as it arrived.
type Incoming struct {
	Subject string
	Header  nats.Header
	Data    []byte
	Reply   string

	s        *Server
	endpoint *served
	begun    time.Time
	answered atomic.Bool
}

// Age is how long ago a request that may have been received before was first
// sent; 0 for one that was not sent before.
func (in *Incoming) Age() time.Duration {
	ms, err := strconv.ParseInt(in.Header.Get(message.HeaderRetry), 10, 64)
	if err != nil || ms < 0 {
		return 0
	}
	return time.Duration(min(ms, int64(24*time.Hour/time.Millisecond))) * time.Millisecond
}

// Decode decodes the body, a JSON object, into v. A malformed one is
// invalid_request and names the field where it can.
func (in *Incoming) Decode(v any) error { return DecodeBody(in.Data, v) }

// plainReader reads a body itself, when it has a form that it knows and that
// DecodeBody takes; otherwise it returns false and is decoded as JSON.
type plainReader interface{ ReadPlain(body []byte) bool }

// DecodeBody decodes a request's body; an empty one is an empty object. What a
// decoder would repair, or could not read back from where it was stored, is
// refused (see CheckText).
func DecodeBody(data []byte, v any) error {
	if p, ok := v.(plainReader); ok && p.ReadPlain(data) {
		return nil
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	switch field, fault := CheckText(data, maxDepth); {
	case fault == "":
	case field == "" || len(field) > maxField:
		return errcode.New(errcode.InvalidRequest, "the body %s", fault)
	default:
		return errcode.Field(field, "%s", fault)
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return errcode.New(errcode.InvalidRequest, "the body must be a JSON object, not null")
	}
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	var t *json.UnmarshalTypeError
	var syn *json.SyntaxError
	switch {
	case errors.As(err, &t) && t.Field != "":
		return errcode.Field(t.Field, "must be %s, not %s", t.Type, headerText(t.Value))
	case errors.As(err, &t):
		return errcode.New(errcode.InvalidRequest, "the body must be a JSON object, not %s", headerText(t.Value))
	case errors.As(err, &syn):
		return errcode.Wrap(errcode.InvalidRequest, err, "the body is not valid JSON: %v (at byte %d)", err, syn.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errcode.New(errcode.InvalidRequest, "the body is not valid JSON: it ends too early")
	}
	return errcode.Wrap(errcode.InvalidRequest, err, "the body is not valid: %s", headerText(err.Error()))
}

func (in *Incoming) context(base context.Context) context.Context {
	if in.Header == nil {
		return base
	}
	return WithTrace(base, in.Header.Get(message.HeaderTrace))
}
