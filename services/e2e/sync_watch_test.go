package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolbus/toolbus/services/e2e/harness"
)

// mirrorLine is a line of sync --watch -o json.
type mirrorLine struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Written int    `json:"written"`
}

// follower is a running sync --watch.
type follower struct {
	*harness.Process
	t    *testing.T
	home string // the tenant's folder
	read int    // lines
}

func followMirror(t *testing.T, url, dir string) *follower {
	t.Helper()
	p := harness.Start(t, toolbus(t), "sync", "--watch", "--dir", dir, "-t", "acme", "-o", "json", "--server", url)
	return &follower{p, t, filepath.Join(dir, "config/tenants/acme"), 0}
}

// next waits for n more lines.
func (f *follower) next(n int) []mirrorLine {
	f.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		lines := strings.SplitAfter(f.Stdout(), "\n")
		lines = lines[:len(lines)-1] // whole ones
		if len(lines) >= f.read+n {
			var out []mirrorLine
			for _, text := range lines[f.read : f.read+n] {
				var l mirrorLine
				if err := json.Unmarshal([]byte(text), &l); err != nil {
					f.t.Fatalf("%q: %v", text, err)
				}
				out = append(out, l)
			}
			f.read += n
			return out
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%d more lines did not come; so far\n%s", n, f.Stdout())
		}
		<-time.After(10 * time.Millisecond)
	}
}

// want waits for one line per entry, "kind name", in any order.
func (f *follower) want(entries ...string) {
	f.t.Helper()
	var got []string
	for _, l := range f.next(len(entries)) {
		got = append(got, l.Kind+" "+l.Name)
	}
	slices.Sort(got)
	slices.Sort(entries)
	if !slices.Equal(got, entries) {
		f.t.Errorf("got %q, want %q", got, entries)
	}
}

func (f *follower) holds(name, content string) {
	f.t.Helper()
	if b, err := os.ReadFile(filepath.Join(f.home, name)); err != nil || string(b) != content {
		f.t.Errorf("%s: %q, %v; want %q", name, b, err, content)
	}
}

// Changes are followed one by one, also those that were made while the whole
// Toolbus was away.
func TestSyncWatch(t *testing.T) {
	data, addr, dir := t.TempDir(), freeAddr(t), t.TempDir()
	p := harness.Up(t, toolbus(t), data, "--listen", addr)
	cli := harness.CLI{Bin: toolbus(t), URL: p.URL}
	put := func(path, content string, args ...string) {
		t.Helper()
		if r := cli.Pipe(t, strings.NewReader(content), append([]string{"files", "put", path, "-t", "acme"}, args...)...); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	pad := []string{"-t", "acme", "-n", "n", "-c", "chat/1"}
	put("a", "1")
	put("stays", "untouched")
	f := followMirror(t, p.URL, dir)
	if l := f.next(1)[0]; l.Kind != "synced" || l.Written != 2 {
		t.Errorf("%+v", l)
	}
	f.holds("files/a", "1")
	stays, err := os.Stat(filepath.Join(f.home, "files/stays"))
	if err != nil {
		t.Fatal(err)
	}

	put("logs/2026-05.log", "one\n")
	f.want("written files/logs/2026-05.log")
	put("logs/2026-05.log", "two\n", "--mode", "append")
	f.want("written files/logs/2026-05.log")
	f.holds("files/logs/2026-05.log", "one\ntwo\n")
	cli.OK(t, append([]string{"state", "set", "k", "1"}, pad...)...)
	f.want("written tmp/state/n_chat=2F1.json")
	cli.OK(t, append([]string{"state", "clear"}, pad...)...)
	f.want("removed tmp/state/n_chat=2F1.json")
	cli.OK(t, "files", "rm", "a", "-t", "acme")
	f.want("removed files/a")

	p.Stop(syscall.SIGKILL)
	p = harness.Up(t, toolbus(t), data, "--listen", addr)
	put("after", "a kill")
	f.want("written files/after")
	f.holds("files/after", "a kill")
	p.Stop(syscall.SIGTERM)
	p = harness.Up(t, toolbus(t), data, "--listen", addr)
	cli.OK(t, "files", "rm", "logs/2026-05.log", "-t", "acme")
	cli.OK(t, append([]string{"state", "set", "k", "2"}, pad...)...)
	f.want("removed files/logs/2026-05.log", "written tmp/state/n_chat=2F1.json")
	if again, err := os.Stat(filepath.Join(f.home, "files/stays")); err != nil || !os.SameFile(stays, again) {
		t.Errorf("what did not change was written again: %v", err)
	}
	if code := f.Stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d: %s", code, f.Stderr())
	}
	// What stopped meanwhile goes on where it was.
	put("after", "the watch")
	f = followMirror(t, p.URL, dir)
	if l := f.next(1)[0]; l.Kind != "synced" || l.Written != 1 {
		t.Errorf("%+v", l)
	}
	if code := f.Stop(syscall.SIGINT); code != 0 || f.Stderr() != "" {
		t.Errorf("exit %d: %s", code, f.Stderr())
	}
}

// In plain words; and a watch that ends by itself says why.
func TestSyncWatchEnds(t *testing.T) {
	p, cli := up(t)
	dir := t.TempDir()
	w := harness.Start(t, toolbus(t), "sync", "-w", "--dir", dir, "-t", "acme", "--server", p.URL)
	if line := w.FirstLine(); line != "synced   "+filepath.Join(dir, "config/tenants/acme")+": 0 written, 0 removed, 0 unchanged" {
		t.Errorf("%q", line)
	}
	if r := cli.Run(t, "sync", "--watch", "--dir", t.TempDir(), "-t", "acme", "--timeout", "500ms"); r.Code != 1 || !strings.Contains(r.Stderr, "timeout: ") {
		t.Errorf("%+v", r)
	}
	if r := cli.Run(t, "sync", "--watch", "--dir", file(t, "f", ""), "-t", "acme"); r.Code != 1 || !strings.Contains(r.Stderr, "invalid_request: dir: ") {
		t.Errorf("a file for a folder: %+v", r)
	}
	if r := cli.Run(t, "sync", "--watch", "--dir", t.TempDir()); r.Code != 2 || !strings.Contains(r.Stderr, "tenant: is required") {
		t.Errorf("%+v", r)
	}
	if r := cli.Pipe(t, strings.NewReader("x"), "files", "put", "a\u200b/b", "-t", "acme"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if code := w.Stop(syscall.SIGINT); code != 0 || w.Stderr() != "" {
		t.Errorf("exit %d: %s", code, w.Stderr())
	}
}
