package up

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(dir string) Config {
	return Config{Listen: "127.0.0.1:0", Data: dir, Sync: SyncAlways}
}

func start(t *testing.T, cfg Config) (*Up, error) {
	t.Helper()
	u, err := New(cfg, telemetry.Discard(), telemetry.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(u); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return u, u.Start(ctx)
}

func stop(u *Up) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return u.Stop(ctx)
}

func TestUpKeepsItsDataAcrossAStop(t *testing.T) {
	dir := t.TempDir()
	ref := message.ToolStateRef{ChatID: "c", Namespace: "n"}
	set := message.ToolStateSet{ToolStateRef: ref, Key: "k", Value: []byte(`"v"`)}
	for round := range 2 {
		u, err := start(t, config(dir))
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		nc, err := nats.Connect(u.URL())
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			if err := bus.Request(t.Context(), nc, subject.ToolState("acme", "set"), set, nil); err != nil {
				t.Error(err)
			}
		} else {
			var got message.ToolStateValue
			if err := bus.Request(t.Context(), nc, subject.ToolState("acme", "get"), message.ToolStateGet{ToolStateRef: ref, Key: "k"}, &got); err != nil || string(got.Value) != `"v"` {
				t.Errorf("got %+v, %v", got, err)
			}
		}
		nc.Close()
		if err := stop(u); err != nil {
			t.Error(err)
		}
		if err := u.Ready(t.Context()); !errors.Is(err, errcode.Unavailable) {
			t.Errorf("ready after the stop: %v", err)
		}
	}
}

func TestUpRefusesADataFolderInUse(t *testing.T) {
	dir := t.TempDir()
	if _, err := start(t, config(dir)); err != nil {
		t.Fatal(err)
	}
	_, err := start(t, config(dir))
	if !errors.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("got %v", err)
	}
}

func TestUpRefusesAPortInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cfg := config(t.TempDir())
	cfg.Listen = ln.Addr().String()
	if _, err := start(t, cfg); !errors.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), cfg.Listen) || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("got %v", err)
	}
}

func TestUpRefusesAnAddressThatIsNotOurs(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.Listen = "192.0.2.1:0" // for documentation; no machine has it
	if _, err := start(t, cfg); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("got %v", err)
	}
}

// The server says that it cannot go on through its log only; that must end the
// start, not hang it.
func TestUpReportsWhatTheServerDiesOf(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/jetstream", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, config(dir)); !errors.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), "JetStream") {
		t.Errorf("got %v", err)
	}
}

func TestUpRefusesADataFolderThatCannotBe(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, config(file+"/data")); !errors.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}

func TestStopIsSafeBeforeStartAndTwice(t *testing.T) {
	u, err := New(config(t.TempDir()), telemetry.Discard(), telemetry.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stop(u); err != nil {
			t.Error(err)
		}
	}
	if u.URL() != "" {
		t.Errorf("URL %q before Start", u.URL())
	}
}

func TestUpWarnsWhenOthersCanConnect(t *testing.T) {
	for listen, want := range map[string]bool{"127.0.0.1:0": false, "0.0.0.0:0": true} {
		t.Run(listen, func(t *testing.T) {
			var out syncBuffer
			log, _, err := telemetry.NewLogger(&out, telemetry.Config{})
			if err != nil {
				t.Fatal(err)
			}
			cfg := config(t.TempDir())
			cfg.Listen = listen
			u, err := New(cfg, log, telemetry.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			err = u.Start(t.Context())
			if err := errors.Join(err, stop(u)); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(u.URL(), "nats://127.0.0.1:") {
				t.Errorf("URL %q", u.URL())
			}
			if got := strings.Contains(out.String(), "password"); got != want {
				t.Errorf("warned: %v\n%s", got, out.String())
			}
			if !strings.Contains(out.String(), "sync=always") {
				t.Errorf("the log does not say when data reach the disk:\n%s", out.String())
			}
		})
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// A disk with less free than the streams reserve is no reason not to start.
func TestStoreLimitLeavesRoomForReservations(t *testing.T) {
	dir := t.TempDir()
	const reserved = 1 << 60
	if got := storeLimit(dir, reserved); got < reserved {
		t.Errorf("limit %d, %d are reserved", got, int64(reserved))
	}
	data := filepath.Join(dir, server.JetStreamStoreDir, "a")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "1.blk"), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := stored(dir); got != 5000 {
		t.Errorf("stored %d", got)
	}
	if err := probe(dir); err != nil {
		t.Error(err)
	}
	if err := probe(filepath.Join(dir, "missing")); err == nil {
		t.Error("a folder that is not there counts as writable")
	}
}

// Whatever made the server give JetStream up, it comes back with its data once
// the disk can be written.
func TestJetStreamComesBack(t *testing.T) {
	u, err := start(t, config(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(u.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ref := message.ToolStateRef{ChatID: "c", Namespace: "n"}
	set := message.ToolStateSet{ToolStateRef: ref, Key: "k", Value: []byte(`"v"`), OpID: "1"}
	if err := bus.Retry(ctx, nc, subject.ToolState("acme", "set"), set, nil); err != nil {
		t.Fatal(err)
	}
	before := u.nats.server().JetStreamConfig()
	blocked := filepath.Join(u.cfg.Data, "probe")
	if err := errors.Join(os.Mkdir(blocked, 0o700), u.nats.server().ShutdownJetStream()); err != nil {
		t.Fatal(err)
	}
	u.nats.server().Shutdown() // as a restart that failed half-way leaves it
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	set.Key, set.OpID = "k2", "2"
	if err := bus.Retry(ctx, nc, subject.ToolState("acme", "set"), set, nil); err != nil {
		t.Fatal(err)
	}
	var got message.ToolStateData
	if err := bus.Retry(ctx, nc, subject.ToolState("acme", "all"), message.ToolStateAll{ToolStateRef: ref}, &got); err != nil || len(got.Data) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	if after := u.nats.server().JetStreamConfig(); after.StoreDir != before.StoreDir || after.SyncAlways != before.SyncAlways || after.MaxMemory != before.MaxMemory || after.Strict != before.Strict {
		t.Errorf("runs with %+v, before with %+v", after, before)
	}
}

// A stream that could not write takes writes again once it can, and has lost
// nothing.
func TestWritesComeBackAfterAFailedOne(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.Sync = "1m"
	u, err := start(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(u.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fc := files.New(nc, "acme")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := fc.Write(ctx, "a", []byte("first")); err != nil {
		t.Fatal(err)
	}
	// No new block can be made, and nothing else be written either.
	blocked := filepath.Join(cfg.Data, "probe")
	msgs := filepath.Join(cfg.Data, server.JetStreamStoreDir, "$G", "streams", "OBJ_"+subject.FilesBucket("acme"), "msgs")
	if err := errors.Join(os.Mkdir(blocked, 0o700), os.Rename(msgs, msgs+".away"), os.WriteFile(msgs, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	short, done := context.WithTimeout(ctx, 2*time.Second)
	defer done()
	if _, err := fc.Write(short, "b", make([]byte, 40<<20)); err == nil {
		t.Fatal("written, though no block can be made")
	}
	for u.nats.writeFault() == "" {
		if ctx.Err() != nil {
			t.Fatal("the failed write is not noticed")
		}
		time.Sleep(10 * time.Millisecond) // poll
	}
	if err := errors.Join(os.Remove(msgs), os.Rename(msgs+".away", msgs), os.Remove(blocked)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := fc.Write(ctx, "c", []byte("again")); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if got, _, ok, err := fc.Read(ctx, "a"); err != nil || !ok || string(got) != "first" {
		t.Errorf("got %q, %v, %v", got, ok, err)
	}
}
