package bus_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// lines is a log that many goroutines may write and read.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestAnOutageOfNATSIsLogged(t *testing.T) {
	ns := natstest.Start(t)
	var out lines
	log, closer, err := telemetry.NewLogger(&out, telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	reconnected := make(chan struct{}, 1)
	nc, err := bus.Connect(t.Context(), ns.Config(), "test", nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	srv, err := bus.NewServer(nc, bus.ServerConfig{Name: "test", Version: "0.1.0"}, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	ns.Down()
	ns.Up()
	select {
	case <-reconnected: // the handler that was there is still called
	case <-time.After(15 * time.Second):
		t.Fatal("not connected again")
	}
	if err := stopWithin(t, srv, 5*time.Second); err != nil {
		t.Error(err)
	}
	nc.Close()
	lost, again := strings.Index(out.String(), "connection to NATS lost"), strings.Index(out.String(), "connected to NATS again")
	if lost < 0 || again < lost || strings.Count(out.String(), "lost") != 1 {
		t.Errorf("got\n%s", out.String())
	}
}
