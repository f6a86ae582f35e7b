package telemetry_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/pkg/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestHealthAndReadiness(t *testing.T) {
	reg := telemetry.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "toolbus_test_total", Help: "Test."})
	reg.MustRegister(c)
	c.Add(3)
	var down atomic.Bool
	h, err := telemetry.StartHTTP("127.0.0.1:0", reg, func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			return errors.New("a check needs a deadline")
		}
		if down.Load() {
			return errors.New("no connection to NATS")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + h.Addr()
	check := func(path string, code int, text string) {
		t.Helper()
		if c, s := get(t, base+path); c != code || !strings.Contains(s, text) {
			t.Errorf("%s: %d %q, want %d …%s…", path, c, s, code, text)
		}
	}
	check("/healthz", 200, "ok")
	check("/readyz", 200, "ready")
	check("/metrics", 200, "toolbus_test_total 3")
	check("/metrics", 200, "go_goroutines")
	check("/other", 404, "")
	down.Store(true)
	check("/readyz", 503, "no connection to NATS")
	check("/healthz", 200, "ok") // alive all the same: a restart would not help
	down.Store(false)
	check("/readyz", 200, "ready")
	h.NotReady()
	check("/readyz", 503, "stopping")
	check("/healthz", 200, "ok")
	for _, addr := range []string{"256.0.0.1:0", h.Addr()} { // bad, and in use
		if _, err := telemetry.StartHTTP(addr, reg, nil); err == nil || !strings.Contains(err.Error(), "--http") {
			t.Errorf("%s: got %v, want an error that names the flag", addr, err)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for range 2 {
		if err := h.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", h.Addr()); err == nil {
		_ = c.Close()
		t.Error("still listening")
	}
}

func TestStopCutsWhatDoesNotEnd(t *testing.T) {
	entered := make(chan struct{})
	release := make(chan struct{})
	h, err := telemetry.StartHTTP("127.0.0.1:0", prometheus.NewRegistry(), func(context.Context) error {
		close(entered)
		<-release
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + h.Addr() + "/readyz") //nolint:noctx // cut by the server
		if err == nil {
			_ = resp.Body.Close()
		}
		failed <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("the connection was not cut")
	}
	close(release)
}

func TestRegisterSharesFamilies(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	mk := func() *prometheus.CounterVec {
		return telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "toolbus_shared_total", Help: "Shared."}, []string{"service"}))
	}
	mk().WithLabelValues("a").Inc()
	mk().WithLabelValues("b").Add(2)
	want := `
# HELP toolbus_shared_total Shared.
# TYPE toolbus_shared_total counter
toolbus_shared_total{service="a"} 1
toolbus_shared_total{service="b"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "toolbus_shared_total"); err != nil {
		t.Error(err)
	}
	if c := telemetry.Register(nil, prometheus.NewCounter(prometheus.CounterOpts{Name: "x", Help: "x"})); c == nil {
		t.Error("without a registerer the collector must still count")
	}
	defer func() {
		if recover() == nil {
			t.Error("two different metrics of one name must panic")
		}
	}()
	telemetry.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "toolbus_shared_total", Help: "Other."}))
}
