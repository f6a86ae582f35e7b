package files_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	client "github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files"
)

func TestMain(m *testing.M) {
	natstest.RunChild()
	// What nats.go leaves behind when a connection closes on which a whole object
	// was put, at times.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

func start(t *testing.T, s *natstest.Server, mod ...func(*files.Config)) *files.Service {
	t.Helper()
	cfg := files.DefaultConfig()
	cfg.Bus = s.Config()
	for _, m := range mod {
		m(&cfg)
	}
	svc, err := files.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, svc) })
	return svc
}

func stop(t *testing.T, svc *files.Service) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := svc.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func request[R any](t *testing.T, nc *nats.Conn, tenant, op string, q any) (R, error) {
	t.Helper()
	var r R
	err := bus.Request(t.Context(), nc, subject.Files(tenant, op), q, &r)
	return r, err
}

func must[R any](t *testing.T, nc *nats.Conn, tenant, op string, q any) R {
	t.Helper()
	r, err := request[R](t, nc, tenant, op, q)
	if err != nil {
		t.Fatalf("%s %+v: %v", op, q, err)
	}
	return r
}

func wantCode(t *testing.T, err error, code errcode.Code) *errcode.Error {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
	return errcode.From(err)
}

// object reads a file as any NATS client would; it checks the digest.
func object(t *testing.T, nc *nats.Conn, tenant, path string) []byte {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	os, err := js.ObjectStore(ctx, subject.FilesBucket(tenant))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.GetBytes(ctx, path)
	if err != nil {
		t.Fatalf("object %s: %v", path, err)
	}
	return b
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func TestOps(t *testing.T) {
	s := natstest.Start(t)
	svc := start(t, s)
	if err := svc.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	nc := s.Connect()
	const tn = "acme"

	// A tenant without files: everything is empty, and nothing is made.
	if r := must[message.FileContent](t, nc, tn, "read", message.FileRead{Path: "a.txt"}); r.Exists || r.Content != nil || r.Path != "a.txt" {
		t.Errorf("read of nothing: %+v", r)
	}
	if r := must[message.FileInfo](t, nc, tn, "stat", message.FileStat{Path: "a.txt"}); r.Exists {
		t.Errorf("stat of nothing: %+v", r)
	}
	if r := must[message.FileListing](t, nc, tn, "list", message.FileList{}); len(r.Files) != 0 || r.Files == nil {
		t.Errorf("list of nothing: %+v", r)
	}
	if r := must[message.FileDeleted](t, nc, tn, "delete", message.FileDelete{Path: "a.txt"}); r.Deleted {
		t.Error("deleted nothing")
	}
	js, _ := jetstream.New(nc)
	if _, err := js.Stream(t.Context(), "OBJ_toolbus_files_acme"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatalf("reading made the tenant's stream: %v", err)
	}

	w := must[message.FileWritten](t, nc, tn, "write", message.FileWrite{Path: "a.txt", Content: "Grüße\n"})
	if w.BytesWritten != 8 || w.Size != 8 || w.Mode != "overwrite" || w.Revision == 0 || w.Path != "a.txt" {
		t.Errorf("written %+v", w)
	}
	r := must[message.FileContent](t, nc, tn, "read", message.FileRead{Path: "a.txt"})
	if !r.Exists || *r.Content != "Grüße\n" || r.Size != 8 || r.Revision != w.Revision || r.Length != 8 {
		t.Errorf("read %+v", r)
	}
	if m, err := time.Parse(time.RFC3339, r.Modified); err != nil || time.Since(m).Abs() > time.Minute {
		t.Errorf("modified %q: %v", r.Modified, err)
	}
	w2 := must[message.FileWritten](t, nc, tn, "write", message.FileWrite{Path: "a.txt", Content: "AAEC", Encoding: "base64", Mode: "append"})
	if w2.BytesWritten != 3 || w2.Size != 11 || w2.Revision <= w.Revision {
		t.Errorf("appended %+v", w2)
	}
	if got := object(t, nc, tn, "a.txt"); string(got) != "Grüße\n\x00\x01\x02" {
		t.Errorf("object %q", got)
	}
	two := int64(2)
	for _, c := range []struct {
		q    message.FileRead
		want string
	}{
		{message.FileRead{Path: "a.txt", Offset: 8, Encoding: "base64"}, "AAEC"},
		{message.FileRead{Path: "a.txt", Offset: 9, Length: &two, Encoding: "base64"}, "AQI="},
		{message.FileRead{Path: "a.txt", Offset: 11}, ""},
		{message.FileRead{Path: "a.txt", Length: &two}, "Gr"},
	} {
		if r := must[message.FileContent](t, nc, tn, "read", c.q); *r.Content != c.want {
			t.Errorf("%+v: got %q, want %q", c.q, *r.Content, c.want)
		}
	}
	// The version before the append is still there; one that was replaced is not.
	if r := must[message.FileContent](t, nc, tn, "read", message.FileRead{Path: "a.txt", Revision: &w.Revision}); *r.Content != "Grüße\n" || r.Size != 8 || r.Revision != w.Revision {
		t.Errorf("pinned read %+v", r)
	}
	must[message.FileWritten](t, nc, tn, "write", message.FileWrite{Path: "a.txt", Content: "new"})
	_, err := request[message.FileContent](t, nc, tn, "read", message.FileRead{Path: "a.txt", Revision: &w.Revision})
	wantCode(t, err, errcode.Conflict)

	must[message.FileWritten](t, nc, tn, "write", message.FileWrite{Path: "b/c.txt", Content: ""})
	must[message.FileWritten](t, nc, tn, "write", message.FileWrite{Path: "b/b.txt", Content: "x", Mode: "append"})
	l := must[message.FileListing](t, nc, tn, "list", message.FileList{Limit: 2})
	if len(l.Files) != 2 || l.Files[0].Path != "a.txt" || l.Files[1].Path != "b/b.txt" || l.Cursor == "" {
		t.Fatalf("list %+v", l)
	}
	l = must[message.FileListing](t, nc, tn, "list", message.FileList{Limit: 2, Cursor: l.Cursor})
	if len(l.Files) != 1 || l.Files[0].Path != "b/c.txt" || l.Cursor != "" || l.Files[0].Size != 0 || !l.Files[0].Exists {
		t.Fatalf("list %+v", l)
	}
	if l = must[message.FileListing](t, nc, tn, "list", message.FileList{Prefix: "b/"}); len(l.Files) != 2 {
		t.Fatalf("list %+v", l)
	}
	if got := object(t, nc, tn, "b/c.txt"); len(got) != 0 {
		t.Errorf("empty file: %q", got)
	}
	if r := must[message.FileContent](t, nc, tn, "read", message.FileRead{Path: "b/c.txt"}); !r.Exists || *r.Content != "" {
		t.Errorf("empty file: %+v", r)
	}
	st := must[message.FileInfo](t, nc, tn, "stat", message.FileStat{Path: "a.txt"})
	if st.SHA256 != "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437" || st.Size != 3 {
		t.Errorf("stat %+v", st)
	}
	if d := must[message.FileDeleted](t, nc, tn, "delete", message.FileDelete{Path: "a.txt"}); !d.Deleted {
		t.Error("not deleted")
	}
	if r := must[message.FileContent](t, nc, tn, "read", message.FileRead{Path: "a.txt"}); r.Exists {
		t.Errorf("read after delete %+v", r)
	}
	if l = must[message.FileListing](t, nc, tn, "list", message.FileList{}); len(l.Files) != 2 {
		t.Errorf("list after delete %+v", l)
	}
	// Another tenant sees nothing of it.
	if l = must[message.FileListing](t, nc, "other", "list", message.FileList{}); len(l.Files) != 0 {
		t.Errorf("foreign list %+v", l)
	}
	if r := must[message.FileContent](t, nc, "other", "read", message.FileRead{Path: "b/b.txt"}); r.Exists {
		t.Errorf("foreign read %+v", r)
	}
}

func TestRefused(t *testing.T) {
	s := natstest.Start(t)
	start(t, s, func(c *files.Config) { c.MaxFileSize = 100 })
	nc := s.Connect()
	rev := uint64(0)
	neg := int64(-1)
	must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "bin", Content: "/w==", Encoding: "base64"})
	for _, c := range []struct {
		op    string
		q     any
		code  errcode.Code
		field string
	}{
		{"write", message.FileWrite{Path: "../x", Content: "x"}, errcode.InvalidRequest, "path"},
		{"write", message.FileWrite{Path: "/x"}, errcode.InvalidRequest, "path"},
		{"write", message.FileWrite{}, errcode.InvalidRequest, "path"},
		{"write", message.FileWrite{Path: "x", Mode: "upsert"}, errcode.InvalidRequest, "mode"},
		{"write", message.FileWrite{Path: "x", Encoding: "hex"}, errcode.InvalidRequest, "encoding"},
		{"write", message.FileWrite{Path: "x", Content: "*", Encoding: "base64"}, errcode.InvalidRequest, "content"},
		{"write", message.FileWrite{Path: "x", OpID: "a\nb"}, errcode.InvalidRequest, "opId"},
		{"write", message.FileWrite{Path: "x", Upload: &message.FileChunks{UploadID: "a.b"}}, errcode.InvalidRequest, "upload.uploadId"},
		{"write", message.FileWrite{Path: "x", Upload: &message.FileChunks{UploadID: "ab", Chunks: 9, Size: 8}}, errcode.InvalidRequest, "upload.chunks"},
		{"write", message.FileWrite{Path: "x", Upload: &message.FileChunks{UploadID: "ab", Chunks: 1, Size: 8}}, errcode.NotFound, ""},
		{"write", message.FileWrite{Path: "x", Content: strings.Repeat("x", 101)}, errcode.TooLarge, ""},
		{"write", message.FileWrite{Path: "bin", Mode: "create"}, errcode.Conflict, ""},
		{"write", message.FileWrite{Path: "bin", IfRevision: &rev}, errcode.Conflict, ""},
		{"write", []byte("{\"path\":\"x\",\"content\":\"\xff\"}"), errcode.InvalidRequest, ""},
		{"write", []byte(`{"path":1}`), errcode.InvalidRequest, "path"},
		{"write", []byte(`{"path":"\ud800"}`), errcode.InvalidRequest, "path"},
		{"read", message.FileRead{Path: "a//b"}, errcode.InvalidRequest, "path"},
		{"read", message.FileRead{Path: "bin"}, errcode.InvalidRequest, "encoding"},
		{"read", message.FileRead{Path: "bin", Encoding: "x"}, errcode.InvalidRequest, "encoding"},
		{"read", message.FileRead{Path: "bin", Offset: -1}, errcode.InvalidRequest, "offset"},
		{"read", message.FileRead{Path: "bin", Offset: 2}, errcode.InvalidRequest, "offset"},
		{"read", message.FileRead{Path: "bin", Length: &neg}, errcode.InvalidRequest, "length"},
		{"stat", message.FileStat{Path: "C:/x"}, errcode.InvalidRequest, "path"},
		{"delete", message.FileDelete{Path: `a\b`}, errcode.InvalidRequest, "path"},
		{"list", message.FileList{Prefix: "/"}, errcode.InvalidRequest, "prefix"},
		{"list", message.FileList{Cursor: "?"}, errcode.InvalidRequest, "cursor"},
		{"list", message.FileList{Limit: -1}, errcode.InvalidRequest, "limit"},
		{"upload", message.FileUpload{Path: "x", Size: 101}, errcode.TooLarge, ""},
		{"upload", message.FileUpload{Path: ".."}, errcode.InvalidRequest, "path"},
	} {
		_, err := request[map[string]any](t, nc, "acme", c.op, c.q)
		if !errors.Is(err, c.code) {
			t.Errorf("%s %+v: got %v, want %s", c.op, c.q, err, c.code)
			continue
		}
		if e := errcode.From(err); c.field != "" && (e.Details == nil || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != c.field) {
			t.Errorf("%s %+v: %v (%+v) does not name %s", c.op, c.q, err, e.Details, c.field)
		}
	}
	if _, err := request[map[string]any](t, nc, "_all", "list", message.FileList{}); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("reserved tenant: %v", err)
	}
	if r := must[message.FileContent](t, nc, "acme", "read", message.FileRead{Path: "bin", Encoding: "base64"}); *r.Content != "/w==" {
		t.Errorf("what stood was changed: %+v", r)
	}
}

func TestConditions(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	none, wrong := uint64(0), uint64(12345)
	w := must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Content: "1", IfRevision: &none})
	_, err := request[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Content: "2", Mode: "append", IfRevision: &wrong})
	if e := wantCode(t, err, errcode.Conflict); e.Details == nil || *e.Details.Revision != w.Revision {
		t.Errorf("the conflict does not say the current revision: %+v", e.Details)
	}
	w = must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Content: "2", Mode: "append", IfRevision: &w.Revision})
	_, err = request[message.FileDeleted](t, nc, "acme", "delete", message.FileDelete{Path: "f", IfRevision: &wrong})
	wantCode(t, err, errcode.Conflict)
	if d := must[message.FileDeleted](t, nc, "acme", "delete", message.FileDelete{Path: "f", IfRevision: &w.Revision}); !d.Deleted {
		t.Error("not deleted")
	}
	must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Content: "3", Mode: "create"})
	if got := object(t, nc, "acme", "f"); string(got) != "3" {
		t.Errorf("%q", got)
	}

	// Of many that create the same file one wins.
	c := client.New(nc, "acme")
	var wins, losses int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			_, err := c.Create(t.Context(), "once", []byte{byte('0' + i)})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				wins++
			case errors.Is(err, errcode.Conflict):
				losses++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if wins != 1 || losses != 9 {
		t.Errorf("%d created, %d refused", wins, losses)
	}
}

func TestOpID(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	start(t, s)
	nc := s.Connect()
	q := message.FileWrite{Path: "log", Content: "line\n", Mode: "append", OpID: "op-1"}
	first := must[message.FileWritten](t, nc, "acme", "write", q)
	must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "log", Content: "other\n", Mode: "append", OpID: "op-2"})
	for range 5 {
		if again := must[message.FileWritten](t, nc, "acme", "write", q); again != first {
			t.Fatalf("retry got %+v, first %+v", again, first)
		}
	}
	// At the same time, on both replicas.
	q.OpID = "op-3"
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { _, _ = request[message.FileWritten](t, nc, "acme", "write", q) })
	}
	wg.Wait()
	if got := object(t, nc, "acme", "log"); string(got) != "line\nother\nline\n" {
		t.Errorf("%q", got)
	}
	del := message.FileDelete{Path: "log", OpID: "op-4"}
	for range 2 {
		if d := must[message.FileDeleted](t, nc, "acme", "delete", del); !d.Deleted {
			t.Error("a retried delete must answer as the first")
		}
	}
	// A retry of what came before the delete does not bring the file back.
	if again := must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "log", Content: "line\n", Mode: "append", OpID: "op-1"}); again != first {
		t.Errorf("retry got %+v, first %+v", again, first)
	}
	_, err := request[message.FileDeleted](t, nc, "acme", "delete", message.FileDelete{Path: "log", OpID: "op-1"})
	wantCode(t, err, errcode.InvalidRequest)
}

func TestObjectStoreAgrees(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	c := client.New(nc, "acme")
	var want []byte
	for i := range 10 {
		part := random([]int{0, 1, 100, 300_000, 1_050_000}[(i+mathrand.IntN(2))%5])
		var err error
		if mathrand.IntN(3) == 0 {
			want = part
			_, err = c.Write(t.Context(), "f", part)
		} else {
			want = append(want, part...)
			_, err = c.Append(t.Context(), "f", part)
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if got := object(t, nc, "acme", "f"); !bytes.Equal(got, want) {
			t.Fatalf("step %d: the object has %d bytes, want %d", i, len(got), len(want))
		}
		got, info, ok, err := c.Read(t.Context(), "f")
		if err != nil || !ok || !bytes.Equal(got, want) || info.Size != int64(len(want)) {
			t.Fatalf("step %d: read %d bytes, %+v, %v, want %d", i, len(got), info, err, len(want))
		}
	}
	js, _ := jetstream.New(nc)
	os, err := js.ObjectStore(t.Context(), "toolbus_files_acme")
	if err != nil {
		t.Fatal(err)
	}
	l, err := os.List(t.Context())
	if err != nil || len(l) != 1 || l[0].Name != "f" || l[0].Size != uint64(len(want)) {
		t.Errorf("list %+v, %v", l, err)
	}
}

// 50 appenders over three replicas: 50 lines, each whole.
func TestConcurrentAppends(t *testing.T) {
	s := natstest.Start(t)
	for range 3 {
		start(t, s)
	}
	nc := s.Connect()
	const appenders, each = 50, 4
	var wg sync.WaitGroup
	for i := range appenders {
		c := client.New(nc, "acme")
		wg.Go(func() {
			for k := range each {
				if _, err := c.Append(t.Context(), "log", fmt.Appendf(nil, "%d/%d %s\n", i, k, strings.Repeat("x", i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := string(object(t, nc, "acme", "log"))
	lines := map[string]bool{}
	for l := range strings.Lines(got) {
		lines[l] = true
	}
	if len(lines) != appenders*each {
		t.Errorf("%d different lines", len(lines))
	}
	for i := range appenders {
		for k := range each {
			if !lines[fmt.Sprintf("%d/%d %s\n", i, k, strings.Repeat("x", i))] {
				t.Errorf("line %d/%d is missing", i, k)
			}
		}
	}
}

// Readers see whole versions while the file is replaced and grows.
func TestReadersAndWriters(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	start(t, s)
	nc := s.Connect()
	c := client.New(nc, "acme")
	version := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, 600_000+i) }
	if _, err := c.Write(t.Context(), "f", version(0)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			got, _, ok, err := c.Read(t.Context(), "f")
			if errors.Is(err, errcode.Conflict) {
				continue
			}
			if err != nil || !ok {
				t.Errorf("read: %v, %v", ok, err)
				return
			}
			if bytes.Count(got, got[:1]) != len(got) {
				t.Error("a mixture of versions")
				return
			}
		}
	})
	for i := range 4 {
		if _, err := c.Write(t.Context(), "f", version(i)); err != nil {
			t.Error(err)
		}
		if _, err := c.Append(t.Context(), "f", version(i)[:1000]); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	if got := object(t, nc, "acme", "f"); len(got) != len(version(3))+1000 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestLarge(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	c := client.New(nc, "acme")
	want := random(10<<20 + 17)
	begin := time.Now()
	if _, err := c.Write(t.Context(), "big.bin", want); err != nil {
		t.Fatal(err)
	}
	t.Logf("10 MiB written in %v", time.Since(begin))
	begin = time.Now()
	got, _, ok, err := c.Read(t.Context(), "big.bin")
	if err != nil || !ok || !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes, %v, %v", len(got), ok, err)
	}
	t.Logf("10 MiB read in %v", time.Since(begin))
	// Text that JSON blows up, read as text: never over a message, cut between characters.
	text := strings.Repeat("\x01\x1f€\"", 100_000)
	if _, err := c.Write(t.Context(), "t", []byte(text)); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for int64(b.Len()) < int64(len(text)) {
		r := must[message.FileContent](t, nc, "acme", "read", message.FileRead{Path: "t", Offset: int64(b.Len())})
		if r.Length == 0 {
			t.Fatal("no progress")
		}
		b.WriteString(*r.Content)
	}
	if b.String() != text {
		t.Error("the text differs")
	}
}

// Everything survives a restart of NATS and the service.
func TestRestart(t *testing.T) {
	s := natstest.Start(t)
	svc := start(t, s)
	nc := s.Connect()
	c := client.New(nc, "acme")
	want := random(1_100_000)
	if _, err := c.Put(t.Context(), "f", bytes.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	more := random(1_100_000)
	if _, err := c.Append(t.Context(), "f", more); err != nil {
		t.Fatal(err)
	}
	want = append(want, more...)
	stop(t, svc)
	nc.Close()
	s.Down()
	s.Up()
	start(t, s)
	nc = s.Connect()
	c = client.New(nc, "acme")
	var out bytes.Buffer
	info, ok, err := c.Get(t.Context(), "f", &out)
	if err != nil || !ok || !bytes.Equal(out.Bytes(), want) || info.Size != int64(len(want)) {
		t.Errorf("after a restart: %d bytes, %v, %v", out.Len(), ok, err)
	}
	if _, err := c.Append(t.Context(), "f", []byte("end")); err != nil {
		t.Fatal(err)
	}
	if got := object(t, nc, "acme", "f"); !bytes.Equal(got, append(want, "end"...)) {
		t.Errorf("after an append: %d bytes", len(got))
	}
	if _, ok, err := c.Get(t.Context(), "none", &out); ok || err != nil {
		t.Errorf("got what is not there: %v", err)
	}
}

func TestUpload(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	open := func() message.FileUploadOpened {
		return must[message.FileUploadOpened](t, nc, "acme", "upload", message.FileUpload{Path: "f"})
	}
	publish := func(id string, index int, data string) {
		t.Helper()
		if err := bus.PublishChunk(t.Context(), nc, subject.FilesChunk("acme", id), index, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	const sumABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of "abc"
	abc := func(id string) *message.FileChunks {
		return &message.FileChunks{UploadID: id, Chunks: 3, Size: 3, SHA256: sumABC}
	}
	for name, order := range map[string][]int{
		"in order": {0, 1, 2}, "out of order": {2, 0, 1}, "twice": {0, 1, 1, 2}, "a stray one": {0, 1, 2, 7},
	} {
		for _, mode := range []string{"overwrite", "append"} {
			u := open()
			for _, i := range order {
				publish(u.UploadID, i, "abcdefgh"[i:i+1])
			}
			path := "u/" + strings.ReplaceAll(name, " ", "-")
			w := must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: path, Mode: mode, Upload: abc(u.UploadID)})
			want := "abc"
			if mode == "append" {
				want = "abcabc"
			}
			if got := string(object(t, nc, "acme", path)); got != want || w.Size != int64(len(want)) || w.BytesWritten != 3 {
				t.Errorf("%s, %s: %q, %+v", name, mode, got, w)
			}
		}
	}
	u := open()
	publish(u.UploadID, 0, "a")
	publish(u.UploadID, 2, "c")
	for what, c := range map[string]*message.FileChunks{
		"upload.chunks": abc(u.UploadID),
		"upload.sha256": {UploadID: u.UploadID, Chunks: 1, Size: 1, SHA256: sumABC},
		"upload.size":   {UploadID: u.UploadID, Chunks: 1, Size: 2, SHA256: sumABC},
	} {
		_, err := request[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Upload: c})
		if e := wantCode(t, err, errcode.InvalidRequest); e.Details.Fields[0].Field != what {
			t.Errorf("%v does not name %s", err, what)
		}
	}
	publish(u.UploadID, 1, "b")
	w := message.FileWrite{Path: "f", Upload: abc(u.UploadID), OpID: "commit"}
	first := must[message.FileWritten](t, nc, "acme", "write", w)
	if again := must[message.FileWritten](t, nc, "acme", "write", w); again != first {
		t.Errorf("retry got %+v, first %+v", again, first)
	}
	u = open()
	for i := range 3 {
		publish(u.UploadID, i, "abc"[i:i+1])
	}
	must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "one", Upload: abc(u.UploadID)})
	_, err := request[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "two", Upload: abc(u.UploadID)})
	wantCode(t, err, errcode.Conflict)
	if string(object(t, nc, "acme", "one")) != "abc" {
		t.Error("a second commit harmed the first file")
	}
	if l := must[message.FileListing](t, nc, "acme", "list", message.FileList{}); len(l.Files) != 6 {
		t.Errorf("list %+v", l)
	}
}

// Over the quota, on overwrite and on append: the old content reads back.
func TestQuota(t *testing.T) {
	for _, reserve := range []bool{false, true} {
		s := natstest.Start(t)
		start(t, s, func(c *files.Config) { c.QuotaBytes, c.MaxFileSize, c.ReserveQuota = 1<<20, 4<<20, reserve })
		nc := s.Connect()
		c := client.New(nc, "acme")
		old := random(900_000)
		for range 5 { // what is superseded does not count
			if _, err := c.Write(t.Context(), "f", old); err != nil {
				t.Fatal(err)
			}
		}
		check := func(what string, err error) {
			t.Helper()
			if e := wantCode(t, err, errcode.QuotaExceeded); e.Details == nil || *e.Details.Limit != 1<<20 || *e.Details.Actual <= 1<<20 {
				t.Errorf("%s: details %+v", what, e.Details)
			}
			if got := object(t, nc, "acme", "f"); !bytes.Equal(got, old) {
				t.Errorf("%s: the old content is gone", what)
			}
		}
		_, err := c.Write(t.Context(), "f", random(1_100_000))
		check("overwrite", err)
		_, err = c.Append(t.Context(), "f", random(200_000))
		check("append", err)
		_, err = c.Append(t.Context(), "f", random(2_000_000))
		check("append of an upload", err)
		_, err = c.Write(t.Context(), "g", random(200_000))
		check("another file", err)
		if _, err := c.Write(t.Context(), "h", random(100_000)); err != nil {
			t.Errorf("within the quota: %v", err)
		}
		if _, err := c.Write(t.Context(), "f", random(100)); err != nil {
			t.Errorf("smaller: %v", err)
		}
		if _, err := c.Write(t.Context(), "g", random(200_000)); err != nil {
			t.Errorf("after making room: %v", err)
		}
	}
}

func TestBlobs(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	start(t, s)
	nc, other := s.Connect(), s.Connect()
	body := random(10 << 20)
	m := nats.NewMsg("x")
	m.Data = bytes.Clone(body)
	out := bus.Spill{Family: subject.FamilyAgent, Tenant: "acme", Agent: "bot"}
	if err := out.Out(t.Context(), nc, m); err != nil {
		t.Fatal(err)
	}
	if len(m.Data) != 0 || m.Header.Get(message.HeaderBlob) == "" {
		t.Fatal("not spilled")
	}
	in := bus.Spill{Family: subject.FamilyWorker, Tenant: "acme", Agent: "bot"}
	begin := time.Now()
	got, err := in.In(t.Context(), other, m.Header, m.Data)
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	t.Logf("10 MiB fetched in %v", time.Since(begin))
	for _, foreign := range []bus.Spill{
		{Family: subject.FamilyWorker, Tenant: "evil", Agent: "bot"}, {Family: subject.FamilyAgent, Tenant: "acme", Agent: "bot2"},
	} {
		_, err := foreign.In(t.Context(), other, m.Header, m.Data)
		wantCode(t, err, errcode.NotFound)
	}
	for chunk, code := range map[int]errcode.Code{-1: errcode.InvalidRequest, 4096: errcode.InvalidRequest, 4000: errcode.NotFound} {
		err := bus.Request(t.Context(), nc, subject.Fetch("agent", "acme", "bot", "b1"), message.FetchRequest{Chunk: chunk}, nil)
		wantCode(t, err, code)
	}
}

func TestStopTwiceAndBeforeStart(t *testing.T) {
	s := natstest.Start(t)
	cfg := files.DefaultConfig()
	cfg.Bus = s.Config()
	svc, err := files.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	stop(t, svc)
	if svc.Ready(t.Context()) == nil {
		t.Error("ready before start")
	}
	if err := svc.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop(t, svc)
	stop(t, svc)
	cfg.Replicas = 0
	if _, err := files.New(cfg, telemetry.Discard(), nil); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("a bad configuration was taken: %v", err)
	}
}
