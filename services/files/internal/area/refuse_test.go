package area

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// refusing is a change that one state of the files allows and another forbids.
type refusing struct {
	name          string
	allow, forbid func(*refuseCase)
	do            func(c *refuseCase, a *Area, retried bool) (Outcome, error)
	code          errcode.Code // "" when there is nothing to do
	once          bool         // what is forbidden was never allowed before
	cfg           func(*Config)
}

// refuseCase has one replica that is slow and one that is not.
type refuseCase struct {
	t       *testing.T
	live    *Area
	last    uint64 // revision of what was written last
	version uint64 // to restore
}

func (c *refuseCase) apply(ch Change) Outcome {
	c.t.Helper()
	ch.OpID = bus.NewOpID()
	out, err := c.live.Apply(c.t.Context(), tenant, ch)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func write(path, content string) func(*refuseCase) {
	return func(c *refuseCase) {
		c.last = c.apply(Change{Path: path, Kind: record.KindOverwrite, Content: []byte(content)}).Revision
	}
}

func remove(path string) func(*refuseCase) {
	return func(c *refuseCase) { c.apply(Change{Path: path, Kind: record.KindDelete}) }
}

func ask(ch Change) func(*refuseCase, *Area, bool) (Outcome, error) {
	return func(c *refuseCase, a *Area, retried bool) (Outcome, error) {
		ch := ch
		ch.Path, ch.OpID, ch.Retried = "f", "op", retried
		return a.Apply(c.t.Context(), tenant, ch)
	}
}

func askMove(c *refuseCase, a *Area, retried bool) (Outcome, error) {
	return a.Move(c.t.Context(), tenant, Move{Path: "f", To: "g", OpID: "op", Retried: retried})
}

func pointer[T any](v T) *T { return &v }

func narrow(cfg *Config) { cfg.MaxFileSize, cfg.Default.Bytes = 1000, 2000 }

func chars(n int) string { return strings.Repeat("x", n) }

var refusals = []refusing{
	{"append if there is none", remove("f"), write("f", "other"), ask(Change{Kind: record.KindAppend, Content: []byte("new"), IfRevision: pointer(uint64(0))}), errcode.Conflict, false, nil},
	{"append much if there is none", remove("f"), write("f", "other"), ask(Change{Kind: record.KindAppend, Content: []byte(long), IfRevision: pointer(uint64(0))}), errcode.Conflict, false, nil},
	{"overwrite if there is none", remove("f"), write("f", "other"), ask(Change{Kind: record.KindOverwrite, Content: []byte("new"), IfRevision: pointer(uint64(0))}), errcode.Conflict, false, nil},
	{"create", remove("f"), write("f", "other"), ask(Change{Kind: record.KindCreate, Content: []byte("new")}), errcode.Conflict, false, nil},
	{"delete nothing", write("f", "other"), remove("f"), ask(Change{Kind: record.KindDelete}), "", false, nil},
	{"append to what is too large", write("f", "x"), write("f", chars(950)), ask(Change{Kind: record.KindAppend, Content: []byte(chars(100))}), errcode.TooLarge, false, narrow},
	{"append over the quota", func(c *refuseCase) { write("f", "x")(c); remove("g")(c); remove("h")(c) },
		func(c *refuseCase) { write("g", chars(950))(c); write("h", chars(1000))(c) },
		ask(Change{Kind: record.KindAppend, Content: []byte(chars(100))}), errcode.QuotaExceeded, false, narrow},
	{"overwrite over the quota", func(c *refuseCase) { write("f", "x")(c); remove("g")(c); remove("h")(c) },
		func(c *refuseCase) { write("g", chars(950))(c); write("h", chars(1000))(c) },
		ask(Change{Kind: record.KindOverwrite, Content: []byte(chars(100))}), errcode.QuotaExceeded, false, narrow},
	{"move over a file", func(c *refuseCase) { write("f", "here")(c); remove("g")(c) }, write("g", "other"), askMove, errcode.Conflict, false, nil},
	{"move nothing", func(c *refuseCase) { remove("g")(c); write("f", "other")(c) }, remove("f"), askMove, errcode.NotFound, false, nil},
	{"restore what stands", write("f", "other"), write("f", "stands"), func(c *refuseCase, a *Area, retried bool) (Outcome, error) {
		return a.Apply(c.t.Context(), tenant, Change{Path: "f", Kind: record.KindRestore, Version: c.version, OpID: "op", Retried: retried})
	}, "", true, nil},
}

// A first try is slow, a retry is refused by another replica, and then what
// forbade it goes away: the first try does not happen any more, wherever it was,
// and whoever asks again is told the same.
func TestRefusedRetryIsFinal(t *testing.T) {
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			t.Run("queued", func(t *testing.T) { r.play(t, -1) })
			if r.once {
				return
			}
			for n := 0; ; n++ {
				reached := true
				t.Run(fmt.Sprint("before write ", n+1), func(t *testing.T) { reached = r.play(t, n) })
				if !reached {
					if n == 0 {
						t.Error("the change writes nothing")
					}
					return
				}
			}
		})
	}
}

// play holds the first try back before its write n+1, or with -1 before it has
// looked at anything; false when it has no such write.
func (r refusing) play(t *testing.T, n int) bool {
	s := natstest.Start(t)
	keptBy.Store(tenant, 3)
	t.Cleanup(func() { keptBy.Delete(tenant) })
	mods := []func(*Config){func(*Config) {}}
	if r.cfg != nil {
		mods = append(mods, r.cfg)
	}
	d := &cutter{}
	slow := replicaOn(t, s.Connect(d.option()), mods...)
	c := &refuseCase{t: t, live: replica(t, s, mods...)}
	type answer struct {
		out Outcome
		err error
	}
	first := make(chan answer, 1)
	begin := func() {
		go func() {
			out, err := r.do(c, slow, false)
			first <- answer{out, err}
		}()
	}
	var release func()
	if r.once {
		write("f", "before")(c)
	} else {
		r.allow(c)
	}
	if n < 0 {
		busy, free := make(chan struct{}), make(chan struct{})
		go func() {
			_ = slow.inLane(t.Context(), tenant, "f", func(context.Context) error { close(busy); <-free; return nil })
		}()
		<-busy
		r.forbid(c)
		c.version = c.last
		begin()
		release = func() { close(free) }
	} else {
		if err := slow.ensure(t.Context(), slow.bucket(tenant)); err != nil {
			t.Fatal(err)
		}
		var held <-chan struct{}
		held, release = d.conn.hold(n)
		defer release()
		begin()
		select {
		case <-held:
		case got := <-first:
			if got.err != nil {
				t.Fatal(got.err)
			}
			return false
		}
		// The first try may have been followed to its end by whoever came next.
		r.forbid(c)
	}
	told, refused := r.do(c, c.live, true)
	if n >= 0 && refused == nil && told.Revision > 0 {
		release()
		if got := <-first; got.out != told || got.err != nil {
			t.Fatalf("the first try: %+v, %v, want %+v", got.out, got.err, told)
		}
		return true
	}
	if errcode.Of(refused) != r.code {
		t.Fatalf("the retry: %+v, %v", told, refused)
	}
	r.allow(c)
	before := c.state()
	release()
	got := <-first
	if got.out != told || !sameRefusal(got.err, refused) {
		t.Errorf("the first try: %+v, %v, want %+v, %v", got.out, got.err, told, refused)
	}
	for name, a := range map[string]*Area{"one": c.live, "the other": slow} {
		if out, err := r.do(c, a, true); out != told || !sameRefusal(err, refused) {
			t.Errorf("a later retry, %s: %+v, %v, want %+v, %v", name, out, err, told, refused)
		}
	}
	if after := c.state(); after != before {
		t.Errorf("refused, but now there is %s, before %s", after, before)
	}
	return true
}

// sameRefusal compares codes and what programs read.
func sameRefusal(x, y error) bool {
	var a, b *errcode.Error
	if !errors.As(x, &a) || !errors.As(y, &b) {
		return x == nil && y == nil
	}
	return a.Code == b.Code && fmt.Sprint(revision(a)) == fmt.Sprint(revision(b))
}

func revision(e *errcode.Error) int64 {
	if e.Details == nil || e.Details.Revision == nil {
		return -1
	}
	return int64(*e.Details.Revision)
}

// state is all that clients see of the files, by us and by nats.go.
func (c *refuseCase) state() string {
	c.t.Helper()
	var b strings.Builder
	for _, path := range []string{"f", "g"} {
		info, err := c.live.Stat(c.t.Context(), tenant, path)
		if err != nil {
			c.t.Fatal(err)
		}
		content, there := read(c.t, c.live, path), none
		if content != none {
			there = object(c.t, c.live, path)
		}
		if there != content {
			c.t.Errorf("%s: nats.go reads %.100q, we read %.100q", path, there, content)
		}
		fmt.Fprintf(&b, "%s at %d: %.100q; ", path, info.Revision, content)
	}
	return b.String()
}

// A refusal leaves the file's revision, time, versions and content as they were.
func TestRefusalChangesNothing(t *testing.T) {
	s := natstest.Start(t)
	a, other := replica(t, s), replica(t, s)
	keptBy.Store(tenant, 3)
	t.Cleanup(func() { keptBy.Delete(tenant) })
	apply(t, a, record.KindOverwrite, "f", "one\n")
	last := apply(t, a, record.KindAppend, "f", "two\n")
	stat := func() (message.FileInfo, message.FileVersionList) {
		t.Helper()
		info, err := other.Stat(t.Context(), tenant, "f")
		if err != nil {
			t.Fatal(err)
		}
		l, err := other.Versions(t.Context(), tenant, "f")
		if err != nil {
			t.Fatal(err)
		}
		return info, l
	}
	info, versions := stat()
	for range 2 {
		_, err := other.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindCreate, OpID: "op", Retried: true})
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.Conflict || revision(e) != int64(last.Revision) {
			t.Fatalf("%v", err)
		}
	}
	if _, err := a.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindAppend, OpID: "op", Retried: true}); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("its opId for an append: %v", err)
	}
	if i, v := stat(); fmt.Sprint(i, v) != fmt.Sprint(info, versions) {
		t.Errorf("%+v, %+v, before %+v, %+v", i, v, info, versions)
	}
	if _, err := a.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindAppend, Content: []byte("three\n"), IfRevision: &last.Revision, OpID: "next"}); err != nil {
		t.Errorf("at the revision that was told: %v", err)
	}
	if got := read(t, other, "f"); got != "one\ntwo\nthree\n" || object(t, a, "f") != got {
		t.Errorf("%q", got)
	}
}

// An append that a dead writer left half-way is finished before a refusal, which
// would make that impossible. It may be the one that is asked for.
func TestRefusalFinishesAppends(t *testing.T) {
	s := natstest.Start(t)
	a, other := replica(t, s), replica(t, s)
	old := apply(t, a, record.KindOverwrite, "f", "one\n")
	c := &crashCase{t: t, tenant: tenant, live: a}
	c.unfinished("lost\n", 1)
	ch := Change{Path: "f", Kind: record.KindCreate, OpID: "op", Retried: true}
	if _, err := other.Apply(t.Context(), tenant, ch); !errors.Is(err, errcode.Conflict) {
		t.Fatal(err)
	}
	if got := read(t, other, "f"); got != "one\nlost\n" || object(t, a, "f") != got {
		t.Errorf("%q", got)
	}
	c.unfinished("again\n", 1) // as lost
	ch = Change{Path: "f", Kind: record.KindAppend, Content: []byte("lost\n"), IfRevision: &old.Revision, OpID: "lost", Retried: true}
	if out, err := other.Apply(t.Context(), tenant, ch); err != nil || out.Size != 9 {
		t.Errorf("%+v, %v", out, err)
	}
}

// An append that is refused after its chunk was stored takes it away again, so
// that other clients can read the file.
func TestRefusedAppendLeavesNothing(t *testing.T) {
	s := natstest.Start(t)
	d := &cutter{}
	slow, a := replicaOn(t, s.Connect(d.option())), replica(t, s)
	apply(t, slow, record.KindOverwrite, "f", "one\n")
	settle(t, slow)
	old := apply(t, slow, record.KindAppend, "f", "two\n")
	settle(t, slow)
	held, release := d.conn.hold(1)
	defer release()
	ended := make(chan error, 1)
	go func() {
		_, err := slow.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindAppend, Content: []byte("slow\n"), IfRevision: &old.Revision, OpID: "op"})
		ended <- err
	}()
	<-held // with the chunk stored
	apply(t, a, record.KindAppend, "f", "")
	release()
	if err := <-ended; !errors.Is(err, errcode.Conflict) {
		t.Fatal(err)
	}
	if got := read(t, a, "f"); got != "one\ntwo\n" || object(t, a, "f") != got {
		t.Errorf("%q", got)
	}
}

// A refusal that cannot be stored is none: whoever asks may ask again.
func TestRefusalThatCannotBeStored(t *testing.T) {
	s := natstest.Start(t)
	d := &cutter{}
	a := replicaOn(t, s.Connect(d.option()))
	apply(t, a, record.KindOverwrite, "f", "one")
	d.conn.arm(0)
	_, err := a.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindCreate, OpID: "op", Retried: true})
	if err == nil || !errcode.From(err).Retryable {
		t.Errorf("%v", err)
	}
}
