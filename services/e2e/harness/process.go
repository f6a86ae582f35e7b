package harness

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolbus/toolbus/services/e2e/proc"
)

const (
	startWithin = 20 * time.Second
	stopWithin  = 30 * time.Second
)

// Process is a running command whose failures end the test.
type Process struct {
	*proc.Process
	URL string // where its NATS server is

	t testing.TB
}

// Up starts "toolbus up" on a free port and waits until it is ready.
func Up(t testing.TB, bin, data string, args ...string) *Process {
	t.Helper()
	p := Start(t, bin, append([]string{"up", "--listen", "127.0.0.1:0", "--data", data}, args...)...)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	var err error
	if p.URL, err = p.ReadyURL(ctx); err != nil {
		t.Fatal(err)
	}
	return p
}

// Start starts a command. It is killed when the test ends; what it wrote to
// stderr is shown when the test has failed.
func Start(t testing.TB, bin string, args ...string) *Process {
	t.Helper()
	p, err := proc.Start(proc.Command{Path: bin, Args: args, Env: environment(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("stderr of %s:\n%s", strings.Join(args, " "), p.Stderr())
		}
	})
	return &Process{Process: p, t: t}
}

// environment is a clean one: nothing of the developer's must leak in.
func environment(t testing.TB) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + os.TempDir()}
}

// FirstLine waits for the first line on stdout.
func (p *Process) FirstLine() string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), startWithin)
	defer cancel()
	line, err := p.Process.FirstLine(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	return line
}

// Wait waits for the end and returns the exit code; -1 when a signal ended it.
func (p *Process) Wait() int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), stopWithin)
	defer cancel()
	code, err := p.Process.Wait(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	return code
}

// Stop sends a signal and waits for the end.
func (p *Process) Stop(s syscall.Signal) int {
	p.t.Helper()
	p.Signal(s)
	return p.Wait()
}

// Result is a command that has run.
type Result = proc.Result

// CLI runs commands of the command line against one server.
type CLI struct {
	Bin string
	URL string
	Dir string // working folder; "" for the test's
}

// Run runs "toolbus args…" with nothing on stdin.
func (c CLI) Run(t testing.TB, args ...string) Result {
	t.Helper()
	return c.Pipe(t, nil, args...)
}

// Pipe is Run with stdin.
func (c CLI) Pipe(t testing.TB, stdin io.Reader, args ...string) Result {
	t.Helper()
	r, err := proc.Run(t.Context(), proc.Command{Path: c.Bin, Args: args, Env: append(environment(t), "NATS_URL="+c.URL), Dir: c.Dir, Stdin: stdin})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// OK is Run for a command that must succeed; it returns stdout.
func (c CLI) OK(t testing.TB, args ...string) string {
	t.Helper()
	r := c.Run(t, args...)
	if r.Code != 0 {
		t.Fatalf("toolbus %s: exit %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	return r.Stdout
}

// JSON is OK with -o json; it decodes the one document on stdout.
func (c CLI) JSON(t testing.TB, into any, args ...string) {
	t.Helper()
	out := c.OK(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("toolbus %s: not one JSON document: %v\n%s", strings.Join(args, " "), err, out)
	}
}
