package area

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

func TestMain(m *testing.M) {
	natstest.RunChild()
	// What nats.go leaves behind when a connection closes on which a whole object
	// was put, at times.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

const tenant = "acme"

func testConfig() Config {
	return Config{Replicas: 1, MaxFileSize: 1 << 30, Default: Limits{Bytes: 1 << 30}, Limits: keeps{}, OrphanAge: DefaultOrphanAge, UploadAge: DefaultUploadAge, CompactChunks: 256}
}

// replica is one process's file area.
func replica(t *testing.T, s *natstest.Server, mod ...func(*Config)) *Area {
	t.Helper()
	return replicaOn(t, s.Connect(), mod...)
}

func replicaOn(t *testing.T, nc *nats.Conn, mod ...func(*Config)) *Area {
	t.Helper()
	cfg := testConfig()
	for _, m := range mod {
		m(&cfg)
	}
	a, err := New(nc, cfg, telemetry.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		a.Close(ctx)
	})
	return a
}

func apply(t *testing.T, a *Area, kind byte, path, content string) Outcome {
	t.Helper()
	out, err := a.Apply(t.Context(), tenant, Change{Path: path, Kind: kind, Content: []byte(content), OpID: bus.NewOpID()})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, a *Area, path string) string {
	t.Helper()
	r, err := a.Read(t.Context(), tenant, message.FileRead{Path: path, Encoding: message.EncodingUTF8})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Exists {
		return "(none)"
	}
	return *r.Content
}

func object(t *testing.T, a *Area, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	os, err := a.js.ObjectStore(ctx, subject.FilesBucket(tenant))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.GetString(ctx, path)
	if err != nil {
		t.Fatalf("object %s: %v", path, err)
	}
	return got
}

func (a *Area) count(t *testing.T, filter string) uint64 {
	t.Helper()
	st, err := a.bucket(tenant).reader.Info(t.Context(), filter)
	if err != nil {
		t.Fatal(err)
	}
	var n uint64
	for _, c := range st.Subjects {
		n += c
	}
	return n
}

// settle waits until the janitor has worked off what is queued.
func settle(t *testing.T, a *Area) {
	t.Helper()
	done := make(chan struct{})
	a.jan.do(t.Context(), func(context.Context) error { close(done); return nil })
	<-done
}

// An append whose version somebody else replaced while it was slow does not
// commit what is gone, and its next attempt lands.
func TestSlowAppendIsFencedOff(t *testing.T) {
	s := natstest.Start(t)
	slow, a := replica(t, s), replica(t, s)
	apply(t, a, record.KindAppend, "f", "one\n")
	c := &crashCase{t: t, tenant: tenant, live: slow}
	b := slow.bucket(tenant)
	rec, err := slow.load(t.Context(), b, "f")
	if err != nil {
		t.Fatal(err)
	}
	c.unfinished("slow\n", 1)
	c.refence()
	apply(t, a, record.KindAppend, "f", "two\n") // removes what missed
	p, err := grow(rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.commitGroup(t.Context(), b, rec, p, record.Group{Ops: []record.Op{{}}}); !errors.Is(err, errAgain) {
		t.Fatalf("the slow append committed: %v", err)
	}
	if got := object(t, a, "f"); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	apply(t, slow, record.KindAppend, "f", "slow\n")
	if got := object(t, a, "f"); got != "one\ntwo\nslow\n" {
		t.Errorf("%q", got)
	}
}

// A writer of an overwrite that crashed after its chunks leaves nothing that
// anybody sees, and the sweep removes it, but not before it is old.
func TestSweep(t *testing.T) {
	s := natstest.Start(t)
	a := replica(t, s)
	apply(t, a, record.KindOverwrite, "f", "one")
	apply(t, a, record.KindAppend, "log", "one\n")
	apply(t, a, record.KindAppend, "log", "two\n")
	apply(t, a, record.KindOverwrite, "gone", "x")
	apply(t, a, record.KindDelete, "gone", "")
	settle(t, a)
	b := a.bucket(tenant)
	if _, err := a.prepare(t.Context(), b, []byte("lost")); err != nil {
		t.Fatal(err)
	}
	// An upload under way, one that was committed, and a superseded metadata message.
	upload := func(id, content string) {
		t.Helper()
		if _, err := a.putClaim(t.Context(), b, id, claim{Path: "u"}, 0); err != nil {
			t.Fatal(err)
		}
		if err := bus.PublishChunk(t.Context(), a.nc, subject.FilesChunk(tenant, id), 0, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	upload("running", "abc")
	upload("done", "abc")
	u := &message.FileChunks{UploadID: "done", Chunks: 1, Size: 3, SHA256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
	if _, err := a.Apply(t.Context(), tenant, Change{Path: "u", Kind: record.KindCreate, Upload: u, OpID: "u"}); err != nil {
		t.Fatal(err)
	}
	rec, err := a.load(t.Context(), b, "f")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.store(t.Context(), b, rec, rec.Revision); err != nil {
		t.Fatal(err)
	}
	intact := func() {
		t.Helper()
		for path, want := range map[string]string{"f": "one", "log": "one\ntwo\n", "u": "abc", "gone": "(none)"} {
			if got := read(t, a, path); got != want {
				t.Errorf("%s is %q, want %q", path, got, want)
			}
		}
	}
	before := a.count(t, b.chunks())
	if err := a.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	intact()
	if n := a.count(t, b.chunks()); n != before || n != 6 {
		t.Errorf("the sweep left %d chunks of %d: all are young", n, before)
	}
	if n := a.count(t, b.metas()); n != 4 {
		t.Errorf("%d metadata messages stand, want 3 files and a delete marker", n)
	}
	later := time.Now().Add(3 * time.Hour)
	a.now = func() time.Time { return later }
	if err := a.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	settle(t, a)
	intact()
	if n := a.count(t, b.chunks()); n != 4 {
		t.Errorf("%d chunks stand, want those of the files", n)
	}
	if n := a.count(t, b.metas()); n != 3 {
		t.Errorf("%d metadata messages stand, want 3", n)
	}
	if n := a.count(t, b.claims()); n != 0 {
		t.Errorf("%d claims stand", n)
	}
	for path, want := range map[string]string{"f": "one", "log": "one\ntwo\n", "u": "abc"} {
		if got := object(t, a, path); got != want {
			t.Errorf("object %s is %q, want %q", path, got, want)
		}
	}
	// An upload that waited too long cannot be committed any more.
	a.now = time.Now
	upload("late", "abc")
	a.now = func() time.Time { return later }
	u = &message.FileChunks{UploadID: "late", Chunks: 1, Size: 3, SHA256: u.SHA256}
	if _, err := a.Apply(t.Context(), tenant, Change{Path: "v", Kind: record.KindCreate, Upload: u, OpID: "v"}); !errors.Is(err, errcode.NotFound) {
		t.Errorf("an expired upload: %v", err)
	}
}

// Metadata that nobody can read stops neither the rest of the sweep nor the counting
// and listing of the other files; only what it may name stays.
func TestSweepPassesOverUnreadableMetadata(t *testing.T) {
	s := natstest.Start(t)
	a := replica(t, s)
	apply(t, a, record.KindOverwrite, "f", "one")
	apply(t, a, record.KindOverwrite, "gone", "x")
	apply(t, a, record.KindDelete, "gone", "")
	settle(t, a)
	b := a.bucket(tenant)
	if _, err := a.prepare(t.Context(), b, []byte("lost")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.putClaim(t.Context(), b, "left", claim{Path: "u"}, 0); err != nil {
		t.Fatal(err)
	}
	ack, err := a.js.Publish(t.Context(), b.meta("odd"), []byte("no JSON"))
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(3 * time.Hour)
	a.now = func() time.Time { return later }
	if err := a.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := a.count(t, b.metas()); n != 2 {
		t.Errorf("%d metadata messages stand, want the file's and the one that cannot be read", n)
	}
	if n := a.count(t, b.claims()); n != 0 {
		t.Errorf("%d claims stand", n)
	}
	if n := a.count(t, b.chunks()); n != 2 {
		t.Errorf("%d chunks stand, want the file's and the one that the unreadable metadata may name", n)
	}
	if l, err := a.List(t.Context(), tenant, message.FileList{}); err != nil || len(l.Files) != 1 || l.Files[0].Path != "f" {
		t.Errorf("the list is %+v, %v", l.Files, err)
	}
	if bytes, files, err := a.used(t.Context(), b, ""); err != nil || bytes != 3 || files != 1 {
		t.Errorf("%d bytes in %d files are used, %v", bytes, files, err)
	}
	if err := b.reader.Delete(t.Context(), ack.Sequence); err != nil {
		t.Fatal(err)
	}
	if err := a.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := a.count(t, b.chunks()); n != 1 {
		t.Errorf("%d chunks stand, want the file's", n)
	}
}

// Objects that another NATS client wrote are read, and copied by an append.
func TestForeignObject(t *testing.T) {
	s := natstest.Start(t)
	a := replica(t, s)
	os, err := a.js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: subject.FilesBucket(tenant)})
	if err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("0123456789", 30_000)
	if _, err := os.PutString(t.Context(), "f", content); err != nil {
		t.Fatal(err)
	}
	if got := read(t, a, "f"); got != content {
		t.Fatalf("read %d bytes", len(got))
	}
	a.bucket(tenant).ready = true // the stream keeps its own configuration
	apply(t, a, record.KindAppend, "f", "more")
	if got := object(t, a, "f"); got != content+"more" {
		t.Errorf("object of %d bytes", len(got))
	}
}

// A version that is replaced while it is read is reported, never mixed up.
func TestVanishedVersion(t *testing.T) {
	s := natstest.Start(t)
	a := replica(t, s)
	apply(t, a, record.KindOverwrite, "f", strings.Repeat("a", 3*maxChunk))
	b := a.bucket(tenant)
	rec, err := a.load(t.Context(), b, "f")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, a, record.KindOverwrite, "f", "new")
	settle(t, a)
	err = a.scan(t.Context(), b, rec, 10, 100, func([]byte) error { return nil })
	if !errors.Is(err, errVanished) {
		t.Errorf("got %v", err)
	}
	// Chunks lost although the metadata names them are a fault, said as such.
	rec, err = a.load(t.Context(), b, "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.reader.Purge(t.Context(), b.chunk(rec.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(t.Context(), tenant, message.FileRead{Path: "f"}); !errors.Is(err, errcode.Internal) {
		t.Errorf("got %v", err)
	}
	if _, err := a.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindAppend, Content: []byte("x"), OpID: "x"}); !errors.Is(err, errcode.Internal) {
		t.Errorf("got %v", err)
	}
}

// Ranges of a file of many chunks, over two replicas that learn where chunks are.
func TestRanges(t *testing.T) {
	s := natstest.Start(t)
	replicas := []*Area{replica(t, s), replica(t, s)}
	var want []byte
	for i := range 60 {
		part := fmt.Sprintf("<%d %s>", i, strings.Repeat("x", i*7%50))
		apply(t, replicas[i%2], record.KindAppend, "f", part)
		want = append(want, part...)
	}
	for i := 0; i < len(want); i += 13 {
		for _, n := range []int64{0, 1, 40, 400} {
			end := min(i+int(n), len(want))
			r, err := replicas[i%2].Read(t.Context(), tenant, message.FileRead{Path: "f", Offset: int64(i), Length: &n})
			if err != nil || *r.Content != string(want[i:end]) || r.Length != int64(end-i) {
				t.Fatalf("%d bytes from %d: %+v, %v", n, i, r, err)
			}
		}
	}
	if got := object(t, replicas[0], "f"); !bytes.Equal([]byte(got), want) {
		t.Errorf("%q", got)
	}
}

// What a client puts into the headers of its chunks does not lead a read astray.
func TestForgedHeaders(t *testing.T) {
	s := natstest.Start(t)
	a := replica(t, s)
	apply(t, a, record.KindOverwrite, "f", "victim")
	b := a.bucket(tenant)
	m := nats.NewMsg(subject.FilesChunk(tenant, "up"))
	m.Data = []byte("abc")
	for k, v := range map[string]string{
		"Nats-Sequence": "1", "Nats-Subject": "elsewhere", "Nats-Time-Stamp": "2001-01-01T00:00:00Z", "Nats-Num-Pending": "0", message.HeaderChunk: "0",
	} {
		m.Header.Set(k, v)
	}
	if _, err := a.nc.RequestMsgWithContext(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	var got []stream.Msg
	if err := b.reader.Walk(t.Context(), b.chunk("up"), 0, 0, func(m stream.Msg) error { got = append(got, m); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Seq == 1 || got[0].Subject != b.chunk("up") || time.Since(got[0].Time) > time.Hour {
		t.Errorf("walked %+v", got)
	}
}

// A retry is answered as the first time, the revision of one append among several
// in one commit included, whoever is asked: also the replica that made it.
func TestRetriedAppendsAreAnsweredAlike(t *testing.T) {
	s := natstest.Start(t)
	a, other := replica(t, s), replica(t, s)
	apply(t, a, record.KindOverwrite, "f", "begin ")
	const n = 40
	changes, outs := make([]Change, n), make([]Outcome, n)
	var wg sync.WaitGroup
	for i := range n {
		changes[i] = Change{Path: "f", Kind: record.KindAppend, Content: []byte("x "), OpID: bus.NewOpID()}
		wg.Go(func() {
			var err error
			if outs[i], err = a.Apply(t.Context(), tenant, changes[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	revisions := map[uint64]int{}
	for i, first := range outs {
		revisions[first.Revision]++
		for name, from := range map[string]*Area{"the same": a, "another": other} {
			if again, err := from.Apply(t.Context(), tenant, changes[i]); err != nil || again != first {
				t.Errorf("%s replica: %+v, %v; at first %+v", name, again, err, first)
			}
		}
	}
	if len(revisions) == n {
		t.Error("no two appends went together")
	}
}
