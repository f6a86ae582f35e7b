package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

var builder harness.Builder

func TestMain(m *testing.M) {
	natstest.RunChild()
	code := m.Run()
	if err := builder.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func toolbus(t testing.TB) string {
	t.Helper()
	return builder.Build(t, "./toolbus")
}

// up starts a whole Toolbus with fresh data.
func up(t testing.TB) (*harness.Process, harness.CLI) {
	t.Helper()
	p := harness.Up(t, toolbus(t), t.TempDir())
	return p, harness.CLI{Bin: toolbus(t), URL: p.URL}
}

// file writes a file for a command to read.
func file(t testing.TB, name, content string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}
