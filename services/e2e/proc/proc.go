// Package proc runs Toolbus's programs as real processes, for the demo and the
// end-to-end tests.
package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command is a program and how to run it.
type Command struct {
	Path  string // of the program
	Args  []string
	Env   []string  // nil for this process's own
	Dir   string    // "" for this process's own
	Stdin io.Reader // nil for none
	Log   io.Writer // gets a copy of standard error; may be nil
}

// Process is a running program.
type Process struct {
	cmd    *exec.Cmd
	stdout *output
	stderr *output
	done   chan struct{} // closed when it has ended
}

// Start starts a program.
func Start(c Command) (*Process, error) {
	p := &Process{cmd: exec.Command(c.Path, c.Args...), stdout: newOutput(nil), stderr: newOutput(c.Log), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdin = c.Env, c.Dir, c.Stdin
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit code is in ProcessState
	}()
	return p, nil
}

// FirstLine waits for the first line on standard output.
func (p *Process) FirstLine(ctx context.Context) (string, error) {
	select {
	case <-p.stdout.line:
	case <-p.done:
	case <-ctx.Done():
		return "", fmt.Errorf("nothing on stdout in time: %w; stderr: %s", ctx.Err(), p.Stderr())
	}
	line, _, found := strings.Cut(p.Stdout(), "\n")
	if !found {
		return "", fmt.Errorf("the process ended before it wrote a line: %q; stderr: %s", line, p.Stderr())
	}
	return line, nil
}

// Signal sends a signal; a process that has ended gets none.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(s) // it may end right now
	}
}

// Wait waits for the end and returns the exit code; -1 when a signal ended it.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("still running: %w; stderr: %s", ctx.Err(), p.Stderr())
	}
}

// stopWithin is how long Stop and Kill wait.
const stopWithin = 30 * time.Second

// Stop asks the program to end (SIGTERM). One that does not end in time is
// killed; that is an error, and so is a non-zero exit.
func (p *Process) Stop() error {
	p.Signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		p.Kill()
		return err
	}
	if code != 0 {
		return fmt.Errorf("exit code %d; stderr: %s", code, p.Stderr())
	}
	return nil
}

// Kill ends the program as a crash would (SIGKILL).
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Stdout is what it has written so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr is what it has written so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// ReadyURL waits for the ready line of toolbus up and returns where its NATS
// server listens.
func (p *Process) ReadyURL(ctx context.Context) (string, error) {
	line, err := p.FirstLine(ctx)
	if err != nil {
		return "", err
	}
	var ready struct {
		Ready bool   `json:"ready"`
		NATS  string `json:"nats"`
	}
	if err := json.Unmarshal([]byte(line), &ready); err != nil || !ready.Ready || ready.NATS == "" {
		return "", fmt.Errorf("not a ready line: %q", line)
	}
	return ready.NATS, nil
}

// Result is a command that has run.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a program to its end. A non-zero exit is a result, not an error.
func Run(ctx context.Context, c Command) (Result, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Env, c.Dir, c.Stdin, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return Result{}, fmt.Errorf("run %s %v: %w", c.Path, c.Args, err)
	}
	return Result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}, nil
}

// output collects what a process writes and tells when a line is there.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	tee  io.Writer
	once sync.Once
	line chan struct{}
}

func newOutput(tee io.Writer) *output { return &output{tee: tee, line: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if bytes.IndexByte(p, '\n') >= 0 {
		defer o.once.Do(func() { close(o.line) })
	}
	if o.tee != nil {
		_, _ = o.tee.Write(p)
	}
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
