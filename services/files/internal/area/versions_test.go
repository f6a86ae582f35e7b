package area

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

func keeping(n int) func(*Config) {
	return func(c *Config) { c.Limits, c.Default.Versions = nil, n }
}

// contents are the versions of a file that are kept, newest first.
func contents(t *testing.T, a *Area, path string) (out []string) {
	t.Helper()
	l, err := a.Versions(t.Context(), tenant, path)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range l.Versions {
		r, err := a.Read(t.Context(), tenant, message.FileRead{Path: path, Encoding: message.EncodingUTF8, Revision: &v.Revision})
		if err != nil || r.Revision != v.Revision || r.Size != v.Size || r.SHA256 != v.SHA256 || r.Modified != v.Modified {
			t.Fatalf("%s at %+v: %+v, %v", path, v, r, err)
		}
		out = append(out, *r.Content)
	}
	return out
}

func restore(a *Area, t *testing.T, path string, revision uint64, op string) (Outcome, error) {
	return a.Apply(t.Context(), tenant, Change{Path: path, Kind: record.KindRestore, Version: revision, OpID: op})
}

func TestVersions(t *testing.T) {
	s := natstest.Start(t)
	a, other := replica(t, s, keeping(4)), replica(t, s, keeping(4))
	first := apply(t, a, record.KindAppend, "f", "one\n")
	apply(t, other, record.KindAppend, "f", "two\n")
	apply(t, a, record.KindOverwrite, "f", "other\n")
	apply(t, a, record.KindAppend, "f", "more\n")
	if got, want := contents(t, other, "f"), []string{"other\nmore\n", "other\n", "one\ntwo\n", "one\n"}; !slices.Equal(got, want) {
		t.Fatalf("kept are %q, want %q", got, want)
	}
	back, err := restore(other, t, "f", first.Revision, "op")
	if err != nil || back.Size != 4 || back.Revision <= first.Revision {
		t.Fatalf("restored: %+v, %v", back, err)
	}
	if again, err := restore(a, t, "f", first.Revision, "op"); again != back || err != nil {
		t.Errorf("a retry: %+v, %v, want %+v", again, err, back)
	}
	if now, err := restore(a, t, "f", back.Revision, bus.NewOpID()); err != nil || now.Revision != back.Revision {
		t.Errorf("what is current already: %+v, %v", now, err)
	}
	if _, err := restore(a, t, "f", first.Revision, bus.NewOpID()); !errors.Is(err, errcode.NotFound) {
		t.Errorf("what is not kept any more: %v", err)
	}
	if got := object(t, a, "f"); got != "one\n" {
		t.Errorf("nats.go reads %q", got)
	}
	apply(t, a, record.KindAppend, "f", "three\n")
	want := []string{"one\nthree\n", "one\n", "other\nmore\n", "other\n"}
	if got := contents(t, a, "f"); !slices.Equal(got, want) {
		t.Errorf("kept are %q, want %q", got, want)
	}
	if bytes, _, err := a.used(t.Context(), a.bucket(tenant), ""); err != nil || bytes != 10+11 {
		t.Errorf("%d bytes are counted, two sets of chunks have 21: %v", bytes, err)
	}

	// A move takes them along, and keeps what it replaces.
	apply(t, a, record.KindOverwrite, "g", "replaced\n")
	if _, err := a.Move(t.Context(), tenant, Move{Path: "f", To: "g", Overwrite: true, OpID: bus.NewOpID()}); err != nil {
		t.Fatal(err)
	}
	if got, want := contents(t, other, "g"), []string{"one\nthree\n", "replaced\n", "one\n", "other\nmore\n"}; !slices.Equal(got, want) {
		t.Errorf("after a move kept are %q, want %q", got, want)
	}

	for _, a := range []*Area{a, other} {
		if err := a.later(func() error { return a.Sweep(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	}
	if got := contents(t, other, "g"); len(got) != 4 {
		t.Errorf("after a sweep kept are %q", got)
	}
	apply(t, a, record.KindDelete, "g", "")
	settle(t, a)
	settle(t, other)
	if n := a.count(t, a.bucket(tenant).chunks()); n != 0 || len(contents(t, a, "g")) != 0 {
		t.Errorf("%d chunks of a removed file are left", n)
	}
}

// A tenant that may keep fewer loses the others with the next change.
func TestFewerVersions(t *testing.T) {
	s := natstest.Start(t)
	many, one := replica(t, s, keeping(5)), replica(t, s, keeping(1))
	for _, content := range []string{"1", "2", "3"} {
		apply(t, many, record.KindOverwrite, "f", content)
	}
	if got := contents(t, one, "f"); !slices.Equal(got, []string{"3"}) {
		t.Errorf("listed are %q", got)
	}
	apply(t, one, record.KindAppend, "f", "4")
	settle(t, one)
	if got := contents(t, many, "f"); !slices.Equal(got, []string{"34"}) || one.count(t, one.bucket(tenant).chunks()) != 2 {
		t.Errorf("kept are %q", got)
	}
}

// Kept versions count in the quota: what would replace nothing is refused, and
// nothing is lost.
func TestVersionsAndQuota(t *testing.T) {
	s := natstest.Start(t)
	a := replica(t, s, keeping(3), func(c *Config) { c.Default.Bytes = 100 })
	apply(t, a, record.KindOverwrite, "f", strings.Repeat("1", 40))
	apply(t, a, record.KindOverwrite, "f", strings.Repeat("2", 40))
	write := func(n int) error {
		_, err := a.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindOverwrite, Content: make([]byte, n), OpID: bus.NewOpID()})
		return err
	}
	if err := write(40); !errors.Is(err, errcode.QuotaExceeded) {
		t.Errorf("a third version of 40 bytes: %v", err)
	}
	l, err := a.Versions(t.Context(), tenant, "f")
	if err != nil || len(l.Versions) != 2 {
		t.Fatalf("kept are %+v, %v", l, err)
	}
	if _, err := restore(a, t, "f", l.Versions[1].Revision, bus.NewOpID()); !errors.Is(err, errcode.QuotaExceeded) {
		t.Errorf("restore without room: %v", err)
	}
	if err := write(20); err != nil {
		t.Errorf("a third version of 20 bytes: %v", err)
	}
	if err := write(40); err != nil {
		t.Errorf("in place of the oldest: %v", err)
	}
	if bytes, _, err := a.used(t.Context(), a.bucket(tenant), ""); err != nil || bytes != 100 {
		t.Errorf("%d bytes are counted: %v", bytes, err)
	}
}
