package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// block is a fenced block of a Markdown file.
type block struct {
	info string // the words after the fence
	text string
	line int // of the fence
}

func fencedBlocks(markdown string) ([]block, error) {
	var blocks []block
	var open *block
	for i, line := range strings.Split(markdown, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{info: strings.TrimSpace(info), line: i + 1}
		case fence:
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	if open != nil {
		return nil, fmt.Errorf("the block at line %d is not closed", open.line)
	}
	return blocks, nil
}

func TestFencedBlocks(t *testing.T) {
	got, err := fencedBlocks("a\n```sh\nx\n\ny\n```\nb\n``` sh background\nz\n```\n```\n```")
	want := []block{{"sh", "x\n\ny\n", 2}, {"sh background", "z\n", 8}, {"", "", 11}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := fencedBlocks("```sh\nx"); err == nil {
		t.Error("an open block passes")
	}
}

// TestReadme types what the README says, in its order:
//
//   - "sh": into one shell, whose folder and variables last; each command must succeed;
//   - "sh background": into a terminal of its own, opened in the repository; goes on when it says that it is ready;
//   - "text": each line must stand in what the "sh" block before it printed.
//
// Only where the server listens, and where the home folder is, differ.
func TestReadme(t *testing.T) {
	root := repoRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := fencedBlocks(string(text))
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, root: root, env: readerEnv(t)}
	ran := map[string]int{}
	var output string
	for _, b := range blocks {
		ran[b.info]++
		switch b.info {
		case "sh":
			output = r.typeIn(b)
		case "sh background":
			r.open(b)
		case "text":
			for line := range strings.Lines(b.text) {
				if want := strings.TrimSpace(line); !strings.Contains(output, want) {
					t.Errorf("README.md:%d: %q is not in the output:\n%s", b.line, want, output)
				}
			}
		case "": // a drawing
		default:
			t.Errorf("README.md:%d: what is %q?", b.line, b.info)
		}
	}
	if ran["sh"] < 4 || ran["sh background"] < 2 || ran["text"] < 2 {
		t.Errorf("ran %v: blocks are missing", ran)
	}
}

// readerEnv is the environment of somebody with an empty home folder, the
// machine's Go caches, and a free port.
func readerEnv(t *testing.T) []string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOSUMDB", "GOFLAGS").Output()
	if err != nil {
		t.Fatal(err)
	}
	v := strings.Split(string(out), "\n")
	return append(os.Environ(), "HOME="+t.TempDir(), "XDG_DATA_HOME=", "GOWORK=",
		"TOOLBUS_LISTEN="+addr, "NATS_URL=nats://"+addr, "TOOLBUS_SERVER=",
		"GOCACHE="+v[0], "GOMODCACHE="+v[1], "GOPATH="+v[2], "GOPROXY="+v[3], "GOSUMDB="+v[4], "GOFLAGS="+v[5])
}

// patience is for a block that compiles everything, on a busy machine.
const patience = 5 * time.Minute

// reader is somebody who follows the README.
type reader struct {
	t     *testing.T
	root  string
	env   []string
	first *terminal
}

// typeIn runs a block in the first terminal and returns what it printed.
func (r *reader) typeIn(b block) string {
	r.t.Helper()
	if r.first == nil {
		r.first = openTerminal(r.t, r.root, r.env)
	}
	const done = "-- the block is done --"
	from := r.first.out.Len()
	r.first.enter("{\n" + b.text + "\n} </dev/null\necho '" + done + "'\n")
	if !r.first.out.waitFor(from, done, r.first.ended) {
		r.t.Fatalf("README.md:%d: the block failed:\n%s", b.line, r.first.out.from(from))
	}
	return r.first.out.from(from)
}

// open runs a block in a terminal of its own until the test ends.
func (r *reader) open(b block) {
	r.t.Helper()
	term := openTerminal(r.t, r.root, r.env)
	term.enter(b.text)
	if !term.out.waitFor(0, "ready", term.ended) {
		r.t.Fatalf("README.md:%d: not ready:\n%s", b.line, term.out.from(0))
	}
}

// terminal is a shell that stops at the first command that fails.
type terminal struct {
	t     *testing.T
	in    io.Writer
	out   *screen
	ended chan struct{}
}

func openTerminal(t *testing.T, dir string, env []string) *terminal {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail")
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that the clean-up reaches what it started
	cmd.WaitDelay = 20 * time.Second
	term := &terminal{t: t, out: newScreen(), ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = term.out, term.out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	term.in = in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(term.ended)
		_ = cmd.Wait() // an early end shows in what is missing from the screen
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-term.ended:
		case <-time.After(30 * time.Second):
			t.Errorf("does not stop:\n%s", term.out.from(0))
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-term.ended
		}
	})
	return term
}

func (term *terminal) enter(text string) {
	term.t.Helper()
	if _, err := io.WriteString(term.in, text); err != nil {
		term.t.Fatalf("%v:\n%s", err, term.out.from(0))
	}
}

// screen keeps what was printed.
type screen struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed at the next change
}

func newScreen() *screen { return &screen{changed: make(chan struct{})} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.buf.Write(p)
}

func (s *screen) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Len()
}

func (s *screen) from(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()[n:]
}

// waitFor reports whether text appears after the first n bytes, before the
// terminal ended and within patience.
func (s *screen) waitFor(n int, text string, ended <-chan struct{}) bool {
	late := time.After(patience)
	for over := false; ; {
		s.mu.Lock()
		seen, changed := strings.Contains(s.buf.String()[n:], text), s.changed
		s.mu.Unlock()
		if seen || over {
			return seen
		}
		select {
		case <-changed:
		case <-ended:
			over = true // look once more
		case <-late:
			return false
		}
	}
}
