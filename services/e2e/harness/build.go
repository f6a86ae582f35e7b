package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Builder builds each command at most once, into a folder of its own.
type Builder struct {
	mu    sync.Mutex
	dir   string
	built map[string]result
}

type result struct {
	path string
	err  error
}

// Build builds the command in a package (./toolbus, for example; the tests run
// in services/e2e, so paths are from services) and returns its path.
func (b *Builder) Build(t testing.TB, pkg string) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.built[pkg]
	if !ok {
		r.path, r.err = b.build(pkg)
		if b.built == nil {
			b.built = map[string]result{}
		}
		b.built[pkg] = r
	}
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.path
}

func (b *Builder) build(pkg string) (string, error) {
	if b.dir == "" {
		dir, err := os.MkdirTemp("", "toolbus-e2e-")
		if err != nil {
			return "", err
		}
		b.dir = dir
	}
	out := filepath.Join(b.dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Dir = ".."
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build %s: %w", pkg, err), errors.New(string(msg)))
	}
	return out, nil
}

// Remove removes what was built.
func (b *Builder) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return os.RemoveAll(b.dir)
}
