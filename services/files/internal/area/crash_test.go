package area

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// none is the content of a file that is not there.
const none = "(none)"

// atOnce is how long a writer or reader may take that comes after a crash. It
// waits for nobody, so this is only what a busy machine needs.
const atOnce = 500 * time.Millisecond

// crashing is a write path: what stands before, what is done, and what that
// makes of a content.
type crashing struct {
	name   string
	before func(c *crashCase)
	do     func(c *crashCase, a *Area) error
	effect func(old string) string
	// least is the least number of writes of the path, so that a path that takes
	// another one unnoticed fails.
	least int
}

// crashCase is one path that is crashed after one of its writes.
type crashCase struct {
	t      *testing.T
	ctx    context.Context // of what is done; ends with a replica that crashes
	s      *natstest.Server
	tenant string
	live   *Area // a replica that does not crash
	upload *message.FileChunks
	base   string // what stands before
	first  uint64 // revision of the oldest version
	lost   string // what an append crashed with before may add to it
}

func (c *crashCase) change(a *Area, kind byte, content, op string) error {
	ch := Change{Path: "f", Kind: kind, Content: []byte(content), OpID: op}
	_, err := a.Apply(c.ctx, c.tenant, ch)
	return err
}

func (c *crashCase) must(kind byte, content string) {
	c.t.Helper()
	if err := c.change(c.live, kind, content, bus.NewOpID()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crashCase) read() string {
	c.t.Helper()
	var b strings.Builder
	for off := int64(0); ; {
		r, err := c.live.Read(c.t.Context(), c.tenant, message.FileRead{Path: "f", Encoding: message.EncodingUTF8, Offset: off})
		if err != nil {
			c.t.Fatal(err)
		}
		if !r.Exists {
			return none
		}
		b.WriteString(*r.Content)
		if off += r.Length; off >= r.Size {
			return b.String()
		}
	}
}

// object is what any NATS client reads.
func (c *crashCase) object() string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	os, err := c.live.js.ObjectStore(ctx, subject.FilesBucket(c.tenant))
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return none
	}
	if err != nil {
		c.t.Fatal(err)
	}
	got, err := os.GetString(ctx, "f")
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return none
	}
	if err != nil {
		c.t.Fatalf("nats.go's object store: %v", err)
	}
	return got
}

// store publishes an upload's chunks in an order.
func (c *crashCase) store(order ...int) {
	c.t.Helper()
	id, err := c.live.Open(c.t.Context(), c.tenant, "f", 0)
	if err != nil {
		c.t.Fatal(err)
	}
	var whole string
	for i := range order {
		whole += part(i)
	}
	for _, i := range order {
		if err := bus.PublishChunk(c.t.Context(), c.live.nc, subject.FilesChunk(c.tenant, id), i, []byte(part(i))); err != nil {
			c.t.Fatal(err)
		}
	}
	sum := sha256.Sum256([]byte(whole))
	c.upload = &message.FileChunks{UploadID: id, Chunks: len(order), Size: int64(len(whole)), SHA256: hex.EncodeToString(sum[:])}
}

func (c *crashCase) commitUpload(a *Area, kind byte) error {
	_, err := a.Apply(c.ctx, c.tenant, Change{Path: "f", Kind: kind, Upload: c.upload, OpID: "op"})
	return err
}

// chunkBytes is the chunk size of the servers in these tests.
const chunkBytes = 4 << 10

func part(i int) string { return strings.Repeat(string(rune('a'+i)), 100) + "\n" }

func uploaded() string { return part(0) + part(1) + part(2) }

var long = strings.Repeat("0123456789abcde\n", 5*chunkBytes/32) // three chunks

func appends(s string) func(string) string {
	return func(old string) string { return strings.TrimPrefix(old, none) + s }
}

func replaces(s string) func(string) string { return func(string) string { return s } }

func same(old string) string { return old }

func (c *crashCase) old() { c.must(record.KindOverwrite, "old\n") }

func change(kind byte, content string) func(*crashCase, *Area) error {
	return func(c *crashCase, a *Area) error { return c.change(a, kind, content, "op") }
}

// crashPaths are all write paths. A new one belongs here.
var crashPaths = []crashing{
	{"create", nil, change(record.KindCreate, "new\n"), replaces("new\n"), 3}, // the tenant's stream, chunk, metadata
	{"write", nil, change(record.KindOverwrite, long), replaces(long), 5},
	{"overwrite", (*crashCase).old, change(record.KindOverwrite, "new\n"), replaces("new\n"), 4},
	{"overwrite with much", (*crashCase).old, change(record.KindOverwrite, long), replaces(long), 6},
	{"overwrite with nothing", (*crashCase).old, change(record.KindOverwrite, ""), replaces(""), 3},
	{"first append", nil, change(record.KindAppend, "new\n"), appends("new\n"), 3},
	{"append", (*crashCase).old, change(record.KindAppend, "new\n"), appends("new\n"), 3},
	{"append after many", func(c *crashCase) { c.old(); c.busy() }, change(record.KindAppend, "new\n"), appends("new\n"), 4},
	{"append nothing", (*crashCase).old, change(record.KindAppend, ""), appends(""), 2},
	{"append much", (*crashCase).old, change(record.KindAppend, long), appends(long), 9},
	{"append to another client's object", func(c *crashCase) {
		os, err := c.live.js.CreateObjectStore(c.t.Context(), jetstream.ObjectStoreConfig{Bucket: subject.FilesBucket(c.tenant)})
		if err == nil {
			_, err = os.PutString(c.t.Context(), "f", "old\n")
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}, change(record.KindAppend, "new\n"), appends("new\n"), 6},
	{"grouped appends", (*crashCase).old, func(c *crashCase, a *Area) error {
		var group []*pending
		for i := range 3 {
			op := fmt.Sprint("op", i)
			ch := Change{Path: "f", Kind: record.KindAppend, Content: []byte(part(i)), OpID: op}
			group = append(group, &pending{Change: ch, key: record.KeyOf(op), done: make(chan struct{})})
		}
		a.commit(a.bucket(c.tenant), group)
		return errors.Join(group[0].err, group[1].err, group[2].err)
	}, appends(uploaded()), 3},
	{"delete", (*crashCase).old, change(record.KindDelete, ""), replaces(none), 3},
	{"open an upload", (*crashCase).old, func(c *crashCase, a *Area) error {
		_, err := a.Open(c.ctx, c.tenant, "f", 100)
		return err
	}, same, 2},
	{"upload", func(c *crashCase) { c.store(0, 1, 2) },
		func(c *crashCase, a *Area) error { return c.commitUpload(a, record.KindOverwrite) }, replaces(uploaded()), 2},
	{"upload in disorder", func(c *crashCase) { c.store(2, 0, 1) },
		func(c *crashCase, a *Area) error { return c.commitUpload(a, record.KindOverwrite) }, replaces(uploaded()), 6},
	{"upload over a file", func(c *crashCase) { c.old(); c.store(0, 1, 2) },
		func(c *crashCase, a *Area) error { return c.commitUpload(a, record.KindOverwrite) }, replaces(uploaded()), 4},
	{"upload to append", func(c *crashCase) { c.old(); c.store(0, 1, 2) },
		func(c *crashCase, a *Area) error { return c.commitUpload(a, record.KindAppend) }, appends(uploaded()), 7},
	{"upload in disorder to append", func(c *crashCase) { c.old(); c.store(1, 2, 0) },
		func(c *crashCase, a *Area) error { return c.commitUpload(a, record.KindAppend) }, appends(uploaded()), 10},
	{"finish an append", func(c *crashCase) { c.old(); c.unfinished("lost\n", 1) },
		change(record.KindAppend, "new\n"), appends("new\n"), 5},
	{"finish an append of much", func(c *crashCase) { c.old(); c.unfinished(long, 2) },
		change(record.KindAppend, "new\n"), appends("new\n"), 7},
	{"remove an append that missed", func(c *crashCase) {
		c.old()
		c.unfinished("missed\n", 1)
		c.refence()
	}, change(record.KindAppend, "new\n"), appends("new\n"), 4},
	{"remove what is no append", func(c *crashCase) { c.old(); c.stray() }, change(record.KindAppend, "new\n"), appends("new\n"), 6},
	{"overwrite an append under way", func(c *crashCase) { c.old(); c.unfinished("lost\n", 1) },
		change(record.KindOverwrite, "new\n"), replaces("new\n"), 4},
	{"compact", (*crashCase).lines, (*crashCase).compact, same, 6}, // claim, two chunks, metadata, and what is superseded
	{"compact with an append under way", func(c *crashCase) { c.lines(); c.unfinished("lost\n", 1) }, (*crashCase).compact, same, 6},
	{"upload with its hash", func(c *crashCase) { c.store(0, 1, 2); c.hashed() },
		func(c *crashCase, a *Area) error { return c.commitUpload(a, record.KindOverwrite) }, replaces(uploaded()), 2},
	{"move away", (*crashCase).old, func(c *crashCase, a *Area) error { return c.move(a, "f", "g") }, replaces(none), 4},
	{"move here", func(c *crashCase) { c.write("g", long) }, func(c *crashCase, a *Area) error { return c.move(a, "g", "f") }, replaces(long), 4},
	{"move over a file", func(c *crashCase) { c.old(); c.write("g", long) },
		func(c *crashCase, a *Area) error { return c.move(a, "g", "f") }, replaces(long), 6},
	{"write what was moved here", func(c *crashCase) { c.write("g", "old\n"); c.moveUntil("g", "f", 2) },
		change(record.KindAppend, "new\n"), appends("new\n"), 5},
	{"overwrite the oldest version", (*crashCase).history, change(record.KindOverwrite, "new\n"), replaces("new\n"), 4},
	{"append after versions", (*crashCase).history, change(record.KindAppend, "new\n"), appends("new\n"), 3},
	{"restore", (*crashCase).history, (*crashCase).restore, replaces("first\n"), 4},
	{"restore over an append under way", func(c *crashCase) { c.history(); c.unfinished("lost\n", 1) }, (*crashCase).restore, replaces("first\n"), 4},
	{"delete versions", (*crashCase).history, change(record.KindDelete, ""), replaces(none), 4},
	{"move versions away", (*crashCase).history, func(c *crashCase, a *Area) error { return c.move(a, "f", "g") }, replaces(none), 4},
	{"move over versions", func(c *crashCase) { c.history(); c.write("g", long) },
		func(c *crashCase, a *Area) error { return c.move(a, "g", "f") }, replaces(long), 5},
	{"compact what is kept", (*crashCase).keptLines, (*crashCase).compact, same, 5},
	{"refuse for good", (*crashCase).old, (*crashCase).refused, same, 2},
	{"refuse for good after many", func(c *crashCase) { c.old(); c.busy() }, (*crashCase).refused, same, 3},
	{"refuse for good with an append under way", func(c *crashCase) { c.old(); c.unfinished("lost\n", 1) }, (*crashCase).refused, same, 2},
	{"refuse for good over versions", (*crashCase).history, (*crashCase).refused, same, 2},
	{"delete nothing for good", func(c *crashCase) { c.old(); c.must(record.KindDelete, "") }, func(c *crashCase, a *Area) error {
		_, err := a.Apply(c.ctx, c.tenant, Change{Path: "f", Kind: record.KindDelete, OpID: "op", Retried: true})
		return err
	}, same, 2},
	{"restore what stands for good", func(c *crashCase) { c.keeps(3); c.old(); c.stands() }, (*crashCase).restoreAgain, same, 2},
	{"refuse a move for good", func(c *crashCase) { c.old(); c.write("g", long) }, func(c *crashCase, a *Area) error {
		_, err := a.Move(c.ctx, c.tenant, Move{Path: "f", To: "g", OpID: "op", Retried: true})
		return mustBe(err, errcode.Conflict)
	}, same, 2},
	{"sweep versions", func(c *crashCase) {
		c.history()
		c.must(record.KindAppend, "more\n")
		c.unfinished("lost\n", 1)
	}, func(c *crashCase, a *Area) error {
		return a.later(func() error { return a.sweep(a.base, a.bucket(c.tenant)) })
	}, same, 3},
	{"sweep", func(c *crashCase) {
		c.old()
		c.must(record.KindAppend, "more\n")
		c.unfinished("lost\n", 1)
		c.store(0, 1)
		if _, err := c.live.prepare(c.t.Context(), c.live.bucket(c.tenant), []byte("orphan")); err != nil {
			c.t.Fatal(err)
		}
	}, func(c *crashCase, a *Area) error {
		return a.later(func() error { return a.sweep(a.base, a.bucket(c.tenant)) })
	}, same, 4},
}

// keptBy is how many versions of files single tenants keep.
var keptBy sync.Map

type keeps struct{}

func (keeps) Of(_ context.Context, tenant string, l Limits) Limits {
	if n, ok := keptBy.Load(tenant); ok {
		l.Versions = n.(int)
	}
	return l
}

func (k keeps) Again(ctx context.Context, tenant string, l Limits) Limits {
	return k.Of(ctx, tenant, l)
}

func (c *crashCase) keeps(n int) { keptBy.Store(c.tenant, n) }

// history makes as many versions as are kept: two that share chunks, and one.
func (c *crashCase) history() {
	c.t.Helper()
	c.keeps(3)
	c.must(record.KindOverwrite, "first\n")
	c.stands()
	c.must(record.KindAppend, "second\n")
	c.must(record.KindOverwrite, "third\n")
}

func (c *crashCase) restore(a *Area) error {
	_, err := a.Apply(c.ctx, c.tenant, Change{Path: "f", Kind: record.KindRestore, Version: c.first, OpID: "op"})
	return err
}

// refused asks again for what is refused whatever stands.
func (c *crashCase) refused(a *Area) error {
	never := uint64(1 << 40)
	_, err := a.Apply(c.ctx, c.tenant, Change{Path: "f", Kind: record.KindAppend, Content: []byte("new\n"), IfRevision: &never, OpID: "op", Retried: true})
	return mustBe(err, errcode.Conflict)
}

// stands notes the revision that stands.
func (c *crashCase) stands() {
	c.t.Helper()
	info, err := c.live.Stat(c.t.Context(), c.tenant, "f")
	if err != nil {
		c.t.Fatal(err)
	}
	c.first = info.Revision
}

func (c *crashCase) restoreAgain(a *Area) error {
	_, err := a.Apply(c.ctx, c.tenant, Change{Path: "f", Kind: record.KindRestore, Version: c.first, OpID: "op", Retried: true})
	return err
}

// mustBe is nil for an error of a code.
func mustBe(err error, code errcode.Code) error {
	switch {
	case errors.Is(err, code):
		return nil
	case err == nil:
		return fmt.Errorf("done, want %s", code)
	}
	return err
}

// kept checks that every version of a file that is listed has its content.
func (c *crashCase) kept(path string) {
	c.t.Helper()
	l, err := c.live.Versions(c.t.Context(), c.tenant, path)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, v := range l.Versions {
		r, err := c.live.Read(c.t.Context(), c.tenant, message.FileRead{Path: path, Encoding: message.EncodingUTF8, Revision: &v.Revision})
		if err != nil {
			c.t.Errorf("%s at revision %d: %v", path, v.Revision, err)
			continue
		}
		if sum := sha256.Sum256([]byte(*r.Content)); r.Length == v.Size && hex.EncodeToString(sum[:]) != v.SHA256 {
			c.t.Errorf("%s at revision %d reads %.100q, not what has its SHA-256", path, v.Revision, *r.Content)
		}
	}
}

func (c *crashCase) write(path, content string) {
	c.t.Helper()
	_, err := c.live.Apply(c.t.Context(), c.tenant, Change{Path: path, Kind: record.KindOverwrite, Content: []byte(content), OpID: bus.NewOpID()})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *crashCase) move(a *Area, from, to string) error {
	_, err := a.Move(c.ctx, c.tenant, Move{Path: from, To: to, Overwrite: true, OpID: "op"})
	return err
}

// moveUntil leaves a move that crashed after n writes.
func (c *crashCase) moveUntil(from, to string, n int) {
	c.t.Helper()
	c.crash(crashing{do: func(c *crashCase, a *Area) error {
		_, err := a.Move(c.ctx, c.tenant, Move{Path: from, To: to, OpID: "lost"})
		return err
	}}, n)
}

// lines makes a file of as many chunks as are compacted.
func (c *crashCase) lines() {
	c.t.Helper()
	c.old()
	a, b := c.live, c.live.bucket(c.tenant)
	old, err := a.load(c.t.Context(), b, "f")
	if err != nil {
		c.t.Fatal(err)
	}
	p := newPrepared()
	for i := range testConfig().CompactChunks {
		if err := a.addChunk(c.t.Context(), b, p, fmt.Appendf(nil, "line %d of the file\n", i), ""); err != nil {
			c.t.Fatal(err)
		}
	}
	rec, err := p.record()
	if err != nil {
		c.t.Fatal(err)
	}
	rec.Path = "f"
	if _, err := a.store(c.t.Context(), b, rec, old.Revision); err != nil {
		c.t.Fatal(err)
	}
	a.jan.deleteMsg(c.t.Context(), b, old.Revision)
	a.jan.purgeChunks(c.t.Context(), b, old.ID)
}

// keptLines are lines of which the version before the last line is kept.
func (c *crashCase) keptLines() {
	c.t.Helper()
	c.lines()
	c.keeps(3)
	a, b := c.live, c.live.bucket(c.tenant)
	old, err := a.load(c.t.Context(), b, "f")
	if err != nil {
		c.t.Fatal(err)
	}
	p, err := grow(old)
	if err == nil {
		err = a.addChunk(c.t.Context(), b, p, []byte("last\n"), "")
	}
	if err != nil {
		c.t.Fatal(err)
	}
	rec, err := p.record()
	if err != nil {
		c.t.Fatal(err)
	}
	rec.Path, rec.Born = "f", old.Born
	rec.Keep(3, old)
	if err := a.follow(c.t.Context(), b, old, rec); err != nil {
		c.t.Fatal(err)
	}
}

// compact compacts alone: whoever finishes an append on the way starts another
// compaction in the background, and only one of the two gets the file.
func (c *crashCase) compact(a *Area) error {
	busy := func(is bool) {
		a.compactor.mu.Lock()
		defer a.compactor.mu.Unlock()
		a.compactor.busy = is
	}
	busy(true)
	defer busy(false)
	return a.compact(a.base, a.bucket(c.tenant), "f")
}

// hashed adds the running hash to the upload.
func (c *crashCase) hashed() {
	c.t.Helper()
	h := sha256.New()
	h.Write([]byte(uploaded()))
	state, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		c.t.Fatal(err)
	}
	c.upload.SHA256State = base64.StdEncoding.EncodeToString(state)
}

// unfinished leaves the first n chunks of an append behind the tail, as a writer
// does that crashes there. Whether that append happens is open.
func (c *crashCase) unfinished(content string, n int) {
	c.t.Helper()
	c.lost = content
	a, b := c.live, c.live.bucket(c.tenant)
	rec, err := a.load(c.t.Context(), b, "f")
	if err != nil {
		c.t.Fatal(err)
	}
	p, err := grow(rec)
	if err != nil {
		c.t.Fatal(err)
	}
	op := Change{Path: "f", Kind: record.KindAppend, Content: []byte(content), OpID: "lost"}
	w := &writer{a: a, b: b, group: []*pending{{Change: op, key: record.KeyOf(op.OpID), done: make(chan struct{})}}}
	g := record.Group{Base: rec.Revision, Count: 1}
	_, g.Ops = w.plan(rec)
	whole, err := w.stage(c.t.Context(), &g)
	if err != nil {
		c.t.Fatal(err)
	}
	for g.Index = range n {
		part := whole
		if whole == nil {
			part = []byte(content)[g.Index*a.ChunkSize():][:a.ChunkSize()]
		}
		if err := a.addChunk(c.t.Context(), b, p, part, g.Seal(rec.Key)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// busy makes the file remember as many operations as the metadata holds.
func (c *crashCase) busy() {
	c.t.Helper()
	b := c.live.bucket(c.tenant)
	rec, err := c.live.load(c.t.Context(), b, "f")
	if err != nil {
		c.t.Fatal(err)
	}
	first := rec.Revision
	for i := len(rec.Ops); i < record.MaxOps; i++ {
		op := record.Op{Key: record.KeyOf(fmt.Sprint(i)), Kind: record.KindAppend, At: time.Now().Unix(), Size: rec.Size, Revision: first}
		rec.Ops = append(rec.Ops, op)
	}
	if _, err := c.live.store(c.t.Context(), b, rec, first); err != nil {
		c.t.Fatal(err)
	}
	c.live.jan.deleteMsg(c.t.Context(), b, first)
}

// refence commits the version again, so that an append to it has missed.
func (c *crashCase) refence() {
	c.t.Helper()
	b := c.live.bucket(c.tenant)
	rec, err := c.live.load(c.t.Context(), b, "f")
	if err != nil {
		c.t.Fatal(err)
	}
	c.lost = ""
	if err := c.live.fence(c.t.Context(), b, rec, nil); !errors.Is(err, errAgain) {
		c.t.Fatal(err)
	}
}

// stray publishes a chunk behind the tail as a client can.
func (c *crashCase) stray() {
	c.t.Helper()
	rec, err := c.live.load(c.t.Context(), c.live.bucket(c.tenant), "f")
	if err != nil {
		c.t.Fatal(err)
	}
	if err := bus.PublishChunk(c.t.Context(), c.live.nc, subject.FilesChunk(c.tenant, rec.ID), 1, []byte("stray\n")); err != nil {
		c.t.Fatal(err)
	}
}

// What comes after the crash.
var crashNext = []struct {
	name   string
	kind   byte // 0: nothing but the retry
	effect func(string) string
}{
	{"nothing", 0, same},
	{"append", record.KindAppend, appends("next\n")},
	{"append much", record.KindAppend, appends(long + "next\n")},
	{"overwrite", record.KindOverwrite, replaces("next\n")},
	{"delete", record.KindDelete, replaces(none)},
}

// Every write path is crashed after every single write to the server's storage,
// the last included; the wire tells how many there are. Whatever comes next goes
// on at once, finds the old content or the new one, and a retry of what crashed
// happens once.
func TestCrashAfterEveryWrite(t *testing.T) {
	s := natstest.Start(t, func(o *server.Options) { o.MaxPayload = chunkBytes + 8<<10 })
	live := replica(t, s)
	cases := 0
	for _, path := range crashPaths {
		t.Run(path.name, func(t *testing.T) {
			start := func(n int) (c *crashCase, writes int) {
				t.Helper()
				cases++
				c = &crashCase{t: t, ctx: t.Context(), s: s, tenant: fmt.Sprint("t", cases), live: live}
				if path.before != nil {
					path.before(c)
					settle(t, live)
				}
				c.base = c.read()
				return c, c.crash(path, n)
			}
			c, writes := start(0)
			if writes < path.least {
				t.Fatalf("the path makes %d writes, known are %d", writes, path.least)
			}
			if got := c.read(); !slices.ContainsFunc(c.starts(), func(start string) bool { return got == path.effect(start) }) {
				t.Fatalf("without a crash: %.200q", got)
			}
			for n := range writes {
				for i, next := range crashNext {
					if !everyNext && i != (n+len(path.name))%len(crashNext) {
						continue
					}
					what := fmt.Sprintf("crashed after write %d of %d, then %s", n+1, writes, next.name)
					var slow error
					for range 3 { // a busy machine is slow now and then, a wait is always there
						c, _ := start(n + 1)
						if slow = c.after(what, path, next.kind, next.effect); slow == nil {
							break
						}
					}
					if slow != nil {
						t.Error(slow)
					}
				}
			}
		})
	}
	t.Logf("%d crashes", cases)
}

// crash runs the path on a replica that dies after n writes; 0 lets it live. It
// returns how many it made.
func (c *crashCase) crash(path crashing, n int) int {
	c.t.Helper()
	d := &cutter{}
	nc := c.s.Connect(d.option())
	a, err := New(nc, testConfig(), telemetry.Discard())
	if err != nil {
		c.t.Fatal(err)
	}
	if n == 0 {
		d.conn.arm(-1)
		if err := path.do(c, a); err != nil {
			c.t.Fatal(err)
		}
		a.Close(c.t.Context())
		return d.conn.count()
	}
	var lost context.CancelFunc
	c.ctx, lost = context.WithCancel(c.t.Context())
	d.conn.arm(n)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = path.do(c, a) }() // nobody hears what it says
	defer func() { nc.Close(); lost(); <-ended; c.ctx = c.t.Context() }()
	select {
	case <-d.conn.done:
	case <-time.After(20 * time.Second):
		c.t.Fatalf("write %d never came", n)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	a.Close(gone)
	return d.conn.count()
}

// after checks what a crash left, with a replica that lives. The error is that
// this replica was slow.
func (c *crashCase) after(what string, path crashing, kind byte, effect func(string) string) (slow error) {
	c.t.Helper()
	t := c.t
	begin := time.Now()
	prompt := func(who string) {
		if took := time.Since(begin); took > atOnce {
			slow = fmt.Errorf("%s: the next %s took %v", what, who, took)
		}
		begin = time.Now()
	}
	found := c.read()
	prompt("reader")
	ends := c.ends(found, path, same)
	if ends == nil {
		t.Fatalf("%s: read %.200q", what, found)
	}
	if kind != 0 {
		content := strings.TrimPrefix(effect(""), none)
		if err := c.change(c.live, kind, content, "next"); err != nil {
			t.Fatalf("%s: the next writer: %v", what, err)
		}
		prompt("writer")
		found = c.read()
		if ends = c.ends(found, path, effect); ends == nil {
			t.Fatalf("%s: after the next writer: %.200q", what, found)
		}
		if got := c.object(); got != found {
			t.Fatalf("%s: nats.go reads %.200q, we read %.200q", what, got, found)
		}
	}
	for try := range 2 {
		err := path.do(c, c.live)
		got := c.read()
		refused := path.name == "create" && errors.Is(err, errcode.Conflict) && found != none ||
			strings.HasPrefix(path.name, "restore") && errors.Is(err, errcode.NotFound) // what came between has pushed it out
		if err != nil && !refused || !slices.Contains(ends, got) && !refused {
			t.Fatalf("%s: retry %d: %v, read %.200q, want %.200q", what, try, err, got, ends)
		}
		ends = []string{got}
	}
	if got, want := c.object(), c.read(); got != want {
		t.Fatalf("%s: nats.go reads %.200q, we read %.200q", what, got, want)
	}
	c.clean(what)
	return slow
}

// starts are the contents that the path may have started from.
func (c *crashCase) starts() []string {
	if c.lost == "" {
		return []string{c.base}
	}
	return []string{c.base, appends(c.lost)(c.base)}
}

// ends are the contents that a file may have in the end which now has content
// found, when next has happened and the path is done once, by its crashed writer
// or by the retry. None: found cannot be.
func (c *crashCase) ends(found string, path crashing, next func(string) string) []string {
	var out []string
	for _, start := range c.starts() {
		if found == next(path.effect(start)) {
			out = append(out, found)
		}
		if found == next(start) {
			out = append(out, path.effect(found))
			if next("x") == "x" { // the retry may find the other start
				for _, start := range c.starts() {
					out = append(out, path.effect(start))
				}
			}
		}
	}
	return out
}

// clean checks that a later sweep leaves what the file is made of, and no more.
func (c *crashCase) clean(what string) {
	c.t.Helper()
	want := c.read()
	settle(c.t, c.live)
	b := c.live.bucket(c.tenant)
	if err := c.live.later(func() error { return c.live.sweep(c.t.Context(), b) }); err != nil {
		c.t.Fatalf("%s: sweep: %v", what, err)
	}
	settle(c.t, c.live)
	rec, err := c.live.load(c.t.Context(), b, "f")
	if err != nil {
		c.t.Fatal(err)
	}
	other, err := c.live.load(c.t.Context(), b, "g") // what moves leave
	if err != nil {
		c.t.Fatal(err)
	}
	left, err := b.reader.Info(c.t.Context(), ">")
	if err != nil {
		c.t.Fatal(err)
	}
	// What files name is there, all of it, and nothing else but one metadata
	// message of each.
	need := map[string]uint64{}
	for _, r := range []*record.Record{rec, other} {
		for _, v := range r.Versions() {
			need[b.chunk(v.ID)] = max(need[b.chunk(v.ID)], uint64(v.Chunks))
		}
	}
	for _, meta := range []string{b.meta("f"), b.meta("g")} {
		if left.Subjects[meta] == 1 {
			need[meta] = 1
		}
	}
	maps.DeleteFunc(need, func(_ string, n uint64) bool { return n == 0 })
	if (want == none) == rec.Exists() || !maps.Equal(need, left.Subjects) {
		c.t.Errorf("%s: needed are %v, stored are %v", what, need, left.Subjects)
	}
	c.kept("f")
	c.kept("g")
	if got := c.object(); got != want || c.read() != want {
		c.t.Errorf("%s: after a sweep: %.200q, want %.200q", what, got, want)
	}
}

// later runs f when all that is there now is old.
func (a *Area) later(f func() error) error {
	now := a.now
	defer func() { a.now = now }()
	a.now = func() time.Time { return now().Add(3 * time.Hour) }
	return f()
}
