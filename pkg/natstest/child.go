package natstest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// childEnv tells a test binary that it is to be a server; its value says which.
const childEnv = "TOOLBUS_NATSTEST_SERVER"

// RunChild makes servers in processes of their own possible: such a server is the
// test binary started once more. Call it first in TestMain. In a child it runs
// the server and does not return; otherwise it does nothing.
func RunChild() {
	spec := os.Getenv(childEnv)
	if spec == "" {
		return
	}
	if err := serveChild(spec); err != nil {
		fmt.Fprintln(os.Stderr, "natstest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childSpec is what a child is told.
type childSpec struct {
	Name     string
	Port     int
	StoreDir string
	// Of a cluster's member; otherwise the server stands alone.
	ClusterPort int
	Routes      []string
}

const readyLine = "ready"

// serveChild serves until standard input ends, as it does with the parent.
func serveChild(encoded string) error {
	var spec childSpec
	if err := json.Unmarshal([]byte(encoded), &spec); err != nil {
		return err
	}
	opts := &server.Options{
		ServerName: spec.Name, Host: loopback, Port: spec.Port,
		JetStream: true, StoreDir: spec.StoreDir,
		NoSigs: true,
	}
	if spec.ClusterPort != 0 {
		// Clients must not learn of other addresses than those they were given:
		// they may be meant to come through a Proxy.
		opts.Cluster = server.ClusterOpts{Name: "natstest", Host: loopback, Port: spec.ClusterPort, NoAdvertise: true}
		for _, r := range spec.Routes {
			u, err := url.Parse(r)
			if err != nil {
				return err
			}
			opts.Routes = append(opts.Routes, u)
		}
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	if os.Getenv(logEnv) != "" {
		srv.ConfigureLogger()
	}
	go srv.Start()
	if !srv.ReadyForConnections(startWithin) {
		return errors.New("the server did not get ready")
	}
	fmt.Println(readyLine)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// logEnv, when set, makes the servers log to standard error, which a failed
// test shows.
const logEnv = "TOOLBUS_NATSTEST_LOG"

const (
	loopback    = "127.0.0.1"
	startWithin = 20 * time.Second
)

// Member is a NATS server in a process of its own, which can be killed and
// started again on the same port with the same data. One goroutine at a time may
// use it.
type Member struct {
	t    testing.TB
	spec childSpec

	cmd    *exec.Cmd
	stdin  io.Closer
	ended  chan struct{} // closed when the process has
	stderr tail
}

// Name is the server's, as a stream's information shows it.
func (m *Member) Name() string { return m.spec.Name }

// URL is where clients connect.
func (m *Member) URL() string { return fmt.Sprintf("nats://%s:%d", loopback, m.spec.Port) }

// Start starts the server after Kill and returns when clients can connect; the
// streams may need longer.
func (m *Member) Start() {
	m.t.Helper()
	if err := m.start(); err != nil {
		m.t.Fatalf("nats-server %s: %v", m.spec.Name, err)
	}
}

func (m *Member) start() error {
	spec, err := json.Marshal(m.spec)
	if err != nil {
		return err
	}
	bin, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(bin, "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = &m.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.cmd, m.stdin, m.ended = cmd, stdin, make(chan struct{})
	lines := make(chan string, 1)
	go func() {
		defer close(m.ended)
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- line
		_ = cmd.Wait() // how it ended is up to whoever ends it
	}()
	select {
	case line := <-lines:
		if line != readyLine+"\n" {
			m.Kill()
			return fmt.Errorf("it said %q instead of being ready (does TestMain call natstest.RunChild?): %s", line, m.stderr.String())
		}
		return nil
	case <-time.After(startWithin):
		m.Kill()
		return fmt.Errorf("not ready in time: %s", m.stderr.String())
	}
}

// Kill ends the server as a crash would (SIGKILL); its data stay. Killing one
// that has ended does nothing.
func (m *Member) Kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill() // it may have ended by itself
	<-m.ended
	_ = m.stdin.Close()
	m.cmd = nil
}

// Running tells whether the server was started and not killed since.
func (m *Member) Running() bool { return m.cmd != nil }

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 64 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	if over := len(w.b) - tailSize; over > 0 {
		w.b = append(w.b[:0], w.b[over:]...)
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}
