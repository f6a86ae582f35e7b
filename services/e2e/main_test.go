package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
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

// freeAddr is an address whose port no outgoing connection gets by chance: it is
// free for a while after each kill.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := "127.0.0.1:" + strconv.Itoa(20000+rand.IntN(10000))
		if ln, err := net.Listen("tcp", addr); err == nil {
			_ = ln.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}
