package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// filesFleet is replicas of the files service, in processes that can be killed.
type filesFleet struct {
	t    *testing.T
	bin  string
	args []string
	nc   *nats.Conn // to ask who is there

	replicas []*harness.Process
}

// startFiles starts n replicas against a server and waits until all of them serve.
func startFiles(t *testing.T, nc *nats.Conn, url string, n int, args ...string) *filesFleet {
	t.Helper()
	f := &filesFleet{
		t: t, bin: builder.Build(t, "./files/cmd/files"), nc: nc, replicas: make([]*harness.Process, n),
		args: append([]string{"--server", url, "--http", "", "--log-level", "warn"}, args...),
	}
	for i := range f.replicas {
		f.start(i)
	}
	f.await(n)
	return f
}

func (f *filesFleet) start(i int) {
	f.t.Helper()
	f.replicas[i] = harness.Start(f.t, f.bin, f.args...)
}

// kill ends a replica as a crash would.
func (f *filesFleet) kill(i int) { f.replicas[i].Kill() }

// await waits until so many replicas answer.
func (f *filesFleet) await(n int) {
	f.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		sub, err := f.nc.SubscribeSync(f.nc.NewInbox())
		if err != nil {
			f.t.Fatal(err)
		}
		if err := f.nc.PublishRequest("$SRV.PING.files", sub.Subject, nil); err != nil {
			f.t.Fatal(err)
		}
		there := 0
		for there < n {
			m, err := sub.NextMsg(200 * time.Millisecond)
			if err != nil || len(m.Data) == 0 {
				break
			}
			there++
		}
		_ = sub.Unsubscribe()
		if there >= n {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%d of %d replicas of the files service answer", there, n)
		}
	}
}

// natsObject reads a file as any NATS client would, digest and all.
func natsObject(t *testing.T, nc *nats.Conn, tenant, path string) string {
	t.Helper()
	got, err := getObject(t.Context(), nc, tenant, path)
	if err != nil {
		t.Fatalf("nats.go's object store, %s: %v", path, err)
	}
	return got
}

func getObject(ctx context.Context, nc *nats.Conn, tenant, path string) (string, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	store, err := js.ObjectStore(ctx, subject.FilesBucket(tenant))
	if err != nil {
		return "", err
	}
	return store.GetString(ctx, path)
}

// awaitNatsObject checks that any NATS client reads content. On a cluster nats.go
// asks one member for the metadata and lets another, or the same, send the chunks:
// one that was just started again may be behind in either, after the leader has
// called it current. So it may take some tries there. Chunks that no metadata
// names would stay.
func awaitNatsObject(t *testing.T, nc *nats.Conn, tenant, path, content string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		got, err := getObject(t.Context(), nc, tenant, path)
		switch {
		case err == nil && got == content:
			return
		case time.Now().After(deadline):
			t.Fatalf("nats.go's object store, %s: %v, read %q, want %q", path, err, got, content)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

// checkLines checks that content is made of exactly these lines, in any order.
func checkLines(t *testing.T, what, content string, want map[string]bool) {
	t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(content) {
		switch {
		case !want[line]:
			t.Errorf("%s: torn or foreign line %q", what, line)
		case seen[line]:
			t.Errorf("%s: %q stands there twice", what, line)
		}
		seen[line] = true
	}
	if len(seen) != len(want) {
		t.Errorf("%s: %d lines, want %d", what, len(seen), len(want))
	}
}

func lineOf(round, appender int) string {
	return fmt.Sprintf("round %d appender %d %s\n", round, appender, strings.Repeat("x", appender))
}
