//go:build linux

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// mostMemory is what a transfer may take beyond the idle process, in bytes.
const mostMemory = 64 << 20

// A large file goes up and comes down through the CLI, by stdin and stdout and
// by paths, unchanged, and neither the service nor the client holds it in memory.
func TestLargeFilesTakeConstantMemory(t *testing.T) {
	s := natstest.Start(t)
	service := harness.Start(t, builder.Build(t, "./files/cmd/files"), "--server", s.URL(), "--http", "")
	nc := s.Connect()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ready, done := context.WithTimeout(ctx, 20*time.Second)
	defer done()
	if err := bus.Retry(ready, nc, subject.Files("acme", "stat"), message.FileStat{Path: "big"}, nil); err != nil {
		t.Fatal(err)
	}
	idleService := memory(t, service.Pid(), "VmRSS")
	cli := func(in io.Reader, out io.Writer, args ...string) (peak int64) {
		t.Helper()
		cmd := exec.CommandContext(ctx, toolbus(t), append(args, "-t", "acme", "-s", s.URL(), "--timeout", "10m")...)
		var stderr strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		// The kernel's own peak of a process that has ended begins with that of the
		// one which started it.
		look := time.NewTicker(5 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatalf("toolbus %v: %v\n%s", args, err, &stderr)
				}
				return peak
			case <-look.C:
				peak = max(peak, memory(t, cmd.Process.Pid, "VmHWM"))
			}
		}
	}
	idleClient := cli(nil, io.Discard, "files", "ls")
	if idleClient == 0 {
		t.Fatal("the client's memory was never seen")
	}
	check := func(what string, peak int64, got hash.Hash, want string) {
		t.Helper()
		service := memory(t, service.Pid(), "VmHWM")
		if service == 0 || peak == 0 {
			t.Fatalf("%s: memory was not seen", what)
		}
		t.Logf("%s: client %d MiB over idle, service %d MiB", what, (peak-idleClient)>>20, (service-idleService)>>20)
		if over := peak - idleClient; over > mostMemory {
			t.Errorf("%s: the client took %d bytes over idle", what, over)
		}
		if over := service - idleService; over > mostMemory {
			t.Errorf("%s: the service took %d bytes over idle", what, over)
		}
		if got != nil && hex.EncodeToString(got.Sum(nil)) != want {
			t.Errorf("%s: other content", what)
		}
	}

	sum := sha256.New()
	source := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), largeSize), sum)
	peak := cli(source, io.Discard, "files", "put", "big", "-")
	want := hex.EncodeToString(sum.Sum(nil))
	check("put from stdin", peak, nil, "")

	local := filepath.Join(t.TempDir(), "big")
	peak = cli(nil, io.Discard, "files", "get", "big", local)
	got := sha256.New()
	f, err := os.Open(local)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := io.Copy(got, f); err != nil || n != largeSize {
		t.Fatalf("%d bytes, %v", n, err)
	}
	check("get to a path", peak, got, want)

	peak = cli(nil, io.Discard, "files", "put", "big", local)
	check("put from a path", peak, nil, "")
	got = sha256.New()
	peak = cli(nil, got, "files", "get", "big")
	check("get to stdout", peak, got, want)

	var stat message.FileInfo
	if err := bus.Request(ctx, nc, subject.Files("acme", "stat"), message.FileStat{Path: "big"}, &stat); err != nil || stat.Size != largeSize || stat.SHA256 != want {
		t.Errorf("%+v, %v", stat, err)
	}
}

// memory reads a field of a process's status, in bytes; 0 of a process that
// has ended.
func memory(t *testing.T, pid int, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(l, field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	return 0
}
