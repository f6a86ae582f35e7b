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

// Build builds the command in a package of the module that the tests are in
// (./toolbus, for example) and returns its path.
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
	var err error
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "toolbus-e2e-"); err != nil {
			return "", err
		}
	}
	out := filepath.Join(b.dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", out, pkg)
	if cmd.Dir, err = moduleRoot(); err != nil {
		return "", err
	}
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build %s: %w", pkg, err), errors.New(string(msg)))
	}
	return out, nil
}

// moduleRoot is the folder of go.mod, above that of the tests.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, serr := os.Stat(filepath.Join(dir, "go.mod")); serr == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			err = errors.New("no go.mod above the tests")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// Remove removes what was built.
func (b *Builder) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return os.RemoveAll(b.dir)
}
