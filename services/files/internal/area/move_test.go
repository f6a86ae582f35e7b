package area

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// Content, digest and the ability to grow go along; nothing is copied.
func TestMove(t *testing.T) {
	s := natstest.Start(t)
	a, other := replica(t, s), replica(t, s)
	apply(t, a, record.KindAppend, "f", "one\n")
	apply(t, a, record.KindAppend, "f", "two\n")
	old := apply(t, a, record.KindOverwrite, "g", "other\n")
	at := apply(t, a, record.KindAppend, "f", "three\n")
	move := func(a *Area, m Move) (Outcome, error) { return a.Move(t.Context(), tenant, m) }

	wrong := at.Revision - 1
	for name, c := range map[string]struct {
		m    Move
		code error
	}{
		"over a file":         {Move{Path: "f", To: "g"}, errcode.Conflict},
		"at another revision": {Move{Path: "f", To: "h", IfRevision: &wrong}, errcode.Conflict},
		"a missing file":      {Move{Path: "none", To: "h"}, errcode.NotFound},
	} {
		c.m.OpID = bus.NewOpID()
		if _, err := move(a, c.m); !errors.Is(err, c.code) {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	m := Move{Path: "f", To: "g", Overwrite: true, IfRevision: &at.Revision, OpID: "op"}
	out, err := move(a, m)
	if err != nil || out.Size != 14 || out.Revision <= old.Revision {
		t.Fatalf("moved: %+v, %v", out, err)
	}
	if again, err := move(other, m); again != out || err != nil {
		t.Errorf("a retry: %+v, %v, want %+v", again, err, out)
	}
	if got := read(t, other, "f"); got != none {
		t.Errorf("at the old path: %q", got)
	}
	info, err := a.Stat(t.Context(), tenant, "g")
	if err != nil || info.Revision != out.Revision {
		t.Errorf("stat: %+v, %v", info, err)
	}
	apply(t, other, record.KindAppend, "g", "four\n")
	apply(t, other, record.KindAppend, "f", "new\n")
	if again, err := move(a, m); again != out || err != nil {
		t.Errorf("a late retry: %+v, %v, want %+v", again, err, out)
	}
	for path, want := range map[string]string{"f": "new\n", "g": "one\ntwo\nthree\nfour\n"} {
		if got := read(t, a, path); got != want || object(t, a, path) != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if _, err := a.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindAppend, Content: []byte("x"), OpID: "op"}); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("the move's opId for an append: %v", err)
	}
	settle(t, a)
	settle(t, other)
	if n := a.count(t, a.bucket(tenant).chunks()); n != 5 {
		t.Errorf("%d chunks are stored, the files have 5", n)
	}
}

// Between its two names a file is seen, listed and counted once, and a sweep ends
// the move.
func TestMoveHalfWay(t *testing.T) {
	for writes, where := range map[int]string{1: "f", 2: "g"} {
		t.Run(fmt.Sprint("after write ", writes), func(t *testing.T) {
			s := natstest.Start(t)
			a := replica(t, s)
			c := &crashCase{t: t, s: s, tenant: tenant, live: a}
			c.write("f", "12345678")
			c.moveUntil("f", "g", writes)
			list := func() (paths []string) {
				t.Helper()
				l, err := a.List(t.Context(), tenant, message.FileList{})
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range l.Files {
					paths = append(paths, f.Path)
				}
				return paths
			}
			if got := list(); !slices.Equal(got, []string{where}) {
				t.Errorf("listed are %q, want %q", got, where)
			}
			for range 2 {
				bytes, files, err := a.used(t.Context(), a.bucket(tenant), "")
				if err != nil || bytes != 8 || files != 1 {
					t.Errorf("%d bytes in %d files are counted: %v", bytes, files, err)
				}
				if err := a.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := list(); !slices.Equal(got, []string{"g"}) {
				t.Errorf("after a sweep: %q", got)
			}
			if rec, err := a.load(t.Context(), a.bucket(tenant), "f"); err != nil || rec.Exists() || rec.Move != nil {
				t.Errorf("after a sweep there is still %+v, %v", rec, err)
			}
		})
	}
}

// Files that several replicas move to and fro, and append to, over each other's
// moves, lose no line, and are never in two places.
func TestMovesAndAppends(t *testing.T) {
	s := natstest.Start(t)
	replicas := []*Area{replica(t, s), replica(t, s), replica(t, s)}
	paths := []string{"a", "b", "c"}
	apply(t, replicas[0], record.KindOverwrite, "a", "")
	const lines = 20
	var wg sync.WaitGroup
	for i, a := range replicas {
		wg.Go(func() {
			for n := range lines {
				line := fmt.Sprintf("%d %d\n", i, n)
				if _, err := a.Apply(t.Context(), tenant, Change{Path: paths[n%3], Kind: record.KindAppend, Content: []byte(line), OpID: bus.NewOpID()}); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
		wg.Go(func() {
			for n := range lines {
				m := Move{Path: paths[(n+i)%3], To: paths[(n+i+1)%3], OpID: bus.NewOpID()}
				_, err := a.Move(t.Context(), tenant, m)
				if err != nil && !errors.Is(err, errcode.Conflict) && !errors.Is(err, errcode.NotFound) {
					t.Errorf("move: %v", err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, p := range paths {
		content := read(t, replicas[0], p)
		if content == none {
			continue
		}
		if got := object(t, replicas[0], p); got != content {
			t.Errorf("%s: nats.go reads %q, we %q", p, got, content)
		}
		for line := range strings.Lines(content) {
			seen[line]++
		}
	}
	if len(seen) != lines*len(replicas) {
		t.Errorf("%d of %d lines are there", len(seen), lines*len(replicas))
	}
	for line, n := range seen {
		if n != 1 {
			t.Errorf("line %q is there %d times", line, n)
		}
	}
	for _, a := range replicas {
		settle(t, a)
	}
}
