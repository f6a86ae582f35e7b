// Package telemetry is a process's logs, metrics and health: go-kit/log with a
// module name on every line, a Prometheus registry, and an HTTP server with
// /metrics, /healthz and /readyz.
package telemetry

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is what a process writes where.
type Config struct {
	LogLevel  string // debug, info, warn, error
	LogFormat string // logfmt, json
	LogDir    string // also write <dir>/<date>/<Module>.log; "" for stderr only
	HTTP      string // listen address of /metrics, /healthz, /readyz; "" for none
}

// RegisterFlags registers the configuration's flags. httpAddr is the default
// of --http.
func (c *Config) RegisterFlags(f *flag.FlagSet, httpAddr string) {
	f.StringVar(&c.LogLevel, "log-level", "info", "least `level` to log: debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", "logfmt", "`format` of log lines: logfmt or json")
	f.StringVar(&c.LogDir, "log-dir", "", "also write one log file per day and module under this `folder`")
	f.StringVar(&c.HTTP, "http", httpAddr, "listen `address` for /metrics, /healthz and /readyz; empty for none")
}

// NewRegistry is a registry with the Go and process collectors.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Register registers c, or returns the equal collector that is registered
// already: several services of one process share their metrics' families.
func Register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	if err := reg.Register(c); err != nil {
		var dup prometheus.AlreadyRegisteredError
		if errors.As(err, &dup) {
			if old, ok := dup.ExistingCollector.(C); ok {
				return old
			}
		}
		panic(fmt.Sprintf("metrics: %v", err)) // two different metrics of one name: a programming error
	}
	return c
}

// HTTPServer serves /metrics, /healthz (the process lives) and /readyz (every
// check passes and the process is not stopping).
type HTTPServer struct {
	srv      *http.Server
	ln       net.Listener
	stopping atomic.Bool
	done     chan struct{}
}

// Check reports why a part is not ready, or nil.
type Check func(ctx context.Context) error

// StartHTTP listens on addr. The server answers until Stop.
func StartHTTP(addr string, gatherer prometheus.Gatherer, ready Check) (*HTTPServer, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for /metrics: %w (--http names another address, or none)", err)
	}
	h := &HTTPServer{ln: ln, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		err := ready(ctx)
		if h.stopping.Load() {
			err = errors.New("stopping")
		}
		if err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	h.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { defer close(h.done); _ = h.srv.Serve(ln) }()
	return h, nil
}

// Addr is where the server listens.
func (h *HTTPServer) Addr() string { return h.ln.Addr().String() }

// NotReady makes /readyz fail from now on, so that load balancers look away
// before the process stops.
func (h *HTTPServer) NotReady() { h.stopping.Store(true) }

// Stop ends the server: answers under way are finished, or cut when ctx ends.
func (h *HTTPServer) Stop(ctx context.Context) error {
	err := h.srv.Shutdown(ctx)
	if err != nil {
		_ = h.srv.Close()
	}
	<-h.done
	return err
}
