package mirror

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// liveTenant is a tenant that changes while it is followed.
type liveTenant struct {
	mu sync.Mutex
	*tenant
	stale  []message.FileInfo // what a list says instead; nil for what stands
	broken string             // the path whose content cannot be had
}

func (l *liveTenant) do(fn func()) { l.mu.Lock(); defer l.mu.Unlock(); fn() }

func (l *liveTenant) Files(ctx context.Context) ([]message.FileInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stale != nil {
		return l.stale, nil
	}
	return l.tenant.Files(ctx)
}

func (l *liveTenant) Stat(_ context.Context, path string) (message.FileInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.files[path]; !ok {
		return message.FileInfo{Path: path}, l.fail
	}
	return l.info(path), l.fail
}

func (l *liveTenant) File(ctx context.Context, path string, w io.Writer) (message.FileInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if path == l.broken {
		return message.FileInfo{}, errcode.New(errcode.Internal, "chunks are missing")
	}
	return l.tenant.File(ctx, path, w)
}

func (l *liveTenant) Documents(ctx context.Context) ([]message.ToolStateEntry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenant.Documents(ctx)
}

func (l *liveTenant) Document(ctx context.Context, ns, chat string) (message.ToolStateData, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.docs[docRef{ns, chat}]; !ok {
		return message.ToolStateData{}, l.fail
	}
	return l.tenant.Document(ctx, ns, chat)
}

// following is a Follow that runs.
type following struct {
	t      *testing.T
	src    *liveTenant
	home   string
	hints  chan Hint
	events chan Event
	warned chan string
	cancel context.CancelFunc
	ended  chan error
	over   chan struct{}
}

func follow(t *testing.T, src *tenant) *following {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	f := &following{
		t: t, src: &liveTenant{tenant: src}, home: home(dir, "acme"), cancel: cancel,
		hints: make(chan Hint), events: make(chan Event, 100), warned: make(chan string, 100), ended: make(chan error, 1), over: make(chan struct{}),
	}
	synced := make(chan struct{})
	go func() {
		defer close(f.over)
		f.ended <- Follow(ctx, dir, "acme", f.src, f.hints, Output{
			Synced:  func(Summary) { close(synced) },
			Changed: func(e Event) { f.events <- e },
			Warn:    func(w string) { f.warned <- w },
		})
	}()
	t.Cleanup(func() { cancel(); <-f.over })
	await(t, synced)
	return f
}

func await[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("it did not come")
		panic("unreachable")
	}
}

// hint hands over a hint; that of another one is then followed.
func (f *following) hint(h Hint) {
	f.t.Helper()
	select {
	case f.hints <- h:
	case err := <-f.ended:
		f.t.Fatalf("it has ended: %v", err)
	case <-time.After(20 * time.Second):
		f.t.Fatal("a hint was not taken")
	}
}

// want waits for as many events, in any order.
func (f *following) want(events ...string) {
	f.t.Helper()
	var got []string
	for range events {
		e := await(f.t, f.events)
		got = append(got, string(e.Kind)+" "+e.Name)
	}
	slices.Sort(got)
	slices.Sort(events)
	if !slices.Equal(got, events) {
		f.t.Errorf("got %q, want %q", got, events)
	}
}

func (f *following) files(want map[string]string) {
	f.t.Helper()
	same(f.t, content(f.t, filepath.Join(f.home, "files")), want)
}

// stop ends it and returns its error; nothing more must have happened.
func (f *following) stop() error {
	f.t.Helper()
	f.cancel()
	err := await(f.t, f.ended)
	select {
	case e := <-f.events:
		f.t.Errorf("also %+v", e)
	default:
	}
	return err
}

func TestFollowTransfersOnlyWhatHintsPointTo(t *testing.T) {
	src := newTenant()
	src.put("a", "1")
	src.put("b", "1")
	src.putDoc("n", "c", `{}`)
	f := follow(t, src)
	f.src.do(func() { src.reads = nil; src.put("a", "22"); delete(src.files, "b"); src.putDoc("n", "c", `{"x":1}`) })
	f.hint(Hint{File: "a"})
	if e := await(t, f.events); e != (Event{Written, "files/a", 2}) {
		t.Errorf("%+v", e)
	}
	f.hint(Hint{File: "b"})
	f.want("removed files/b")
	f.hint(Hint{Namespace: "n", ChatID: "c"})
	f.want("written tmp/state/n_c.json")
	f.src.do(func() { src.put("new/sub", "3"); clear(src.docs) })
	f.hint(Hint{File: "new/sub"})
	f.hint(Hint{Namespace: "n", ChatID: "c"})
	f.want("written files/new/sub", "removed tmp/state/n_c.json")
	// Hints that say nothing new, or name what cannot be, do nothing.
	for _, h := range []Hint{{File: "a"}, {File: "never"}, {File: "../../escape"}, {File: "/abs"}, {Namespace: "../x", ChatID: "c"}, {Namespace: "n"}, {Namespace: "n", ChatID: "c"}} {
		f.hint(h)
	}
	f.hint(Hint{File: "a"}) // the others are through
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	if want := []string{"a", "n/c", "new/sub"}; !slices.Equal(slices.Sorted(slices.Values(src.reads)), want) {
		t.Errorf("read %q, want %q", src.reads, want)
	}
	f.files(map[string]string{"a": "22", "new/sub": "3"})
}

// A name may depend on the others'.
func TestFollowKeepsNamesApart(t *testing.T) {
	src := newTenant()
	src.put("name", "lower")
	f := follow(t, src)
	f.src.do(func() { src.put("NAME", "upper") })
	f.hint(Hint{File: "NAME"})
	const beside = "files/name~82a3537ff0dbce7e"
	f.want("removed files/name", "written files/NAME", "written "+beside)
	f.src.do(func() { delete(src.files, "NAME") })
	f.hint(Hint{File: "NAME"})
	f.want("removed files/NAME", "removed "+beside, "written files/name")
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	f.files(map[string]string{"name": "lower"})
}

// What no hint told, and what somebody did to the folder, is found by comparing.
func TestFollowCompares(t *testing.T) {
	src := newTenant()
	for _, p := range []string{"changed", "gone", "edited", "linked"} {
		src.put(p, "old")
	}
	f := follow(t, src)
	f.src.do(func() { src.put("changed", "new"); delete(src.files, "gone"); src.put("fresh", "new") })
	files := filepath.Join(f.home, "files")
	must(t, os.Chmod(filepath.Join(files, "edited"), 0o644))
	must(t, os.WriteFile(filepath.Join(files, "edited"), []byte("by hand"), 0o644))
	must(t, os.Remove(filepath.Join(files, "linked")))
	must(t, os.Symlink(filepath.Join(t.TempDir(), "not there yet"), filepath.Join(files, "linked")))
	f.hint(Hint{})
	f.want("written files/changed", "removed files/gone", "written files/fresh", "written files/edited", "written files/linked")
	want := map[string]string{"changed": "new", "fresh": "new", "edited": "old", "linked": "old"}
	f.files(want)
	// The whole folder is taken away.
	must(t, os.Rename(f.home, f.home+".old"))
	f.hint(Hint{})
	f.want("written files/changed", "written files/fresh", "written files/edited", "written files/linked")
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	f.files(want)
}

// A list from a server that is behind undoes nothing.
func TestFollowDoesNotTrustAStaleList(t *testing.T) {
	src := newTenant()
	src.put("a", "old")
	src.put("removed", "old")
	f := follow(t, src)
	f.src.do(func() {
		f.src.stale, _ = src.Files(t.Context())
		src.put("a", "new")
		src.put("fresh", "new")
		delete(src.files, "removed")
	})
	for _, p := range []string{"a", "fresh", "removed"} {
		f.hint(Hint{File: p})
	}
	f.want("written files/a", "written files/fresh", "removed files/removed")
	f.hint(Hint{})
	f.src.do(func() { src.put("last", "new") })
	f.hint(Hint{}) // the first is followed
	f.src.do(func() { f.src.stale = nil })
	f.hint(Hint{})
	f.want("written files/last")
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	f.files(map[string]string{"a": "new", "fresh": "new", "last": "new"})
}

func TestFollowWaitsForServicesThatAreAway(t *testing.T) {
	src := newTenant()
	src.put("a", "1")
	f := follow(t, src)
	f.src.do(func() { src.fail = errcode.New(errcode.Unavailable, "down"); src.put("a", "2"); src.put("b", "2") })
	f.hint(Hint{File: "a"})
	if w := await(t, f.warned); !strings.Contains(w, "down; trying again") {
		t.Errorf("warned %q", w)
	}
	f.src.do(func() { src.fail = nil })
	f.want("written files/a", "written files/b")
	if err := f.stop(); err != nil {
		t.Error(err)
	}
}

func TestFollowEndsWhenItIsRefused(t *testing.T) {
	src := newTenant()
	f := follow(t, src)
	f.src.do(func() { src.fail = errcode.New(errcode.NotAllowed, "no") })
	f.hint(Hint{})
	if err := await(t, f.ended); !errors.Is(err, errcode.NotAllowed) {
		t.Errorf("%v", err)
	}
}

// One file that cannot be had does not keep the others away.
func TestFollowLeavesWhatFailsForLater(t *testing.T) {
	src := newTenant()
	f := follow(t, src)
	f.src.do(func() { f.src.broken = "bad"; src.put("bad", "1"); src.put("good", "1") })
	f.hint(Hint{File: "bad"})
	f.hint(Hint{File: "good"})
	f.want("written files/good")
	if w := await(t, f.warned); !strings.Contains(w, "files/bad") || !strings.Contains(w, "chunks are missing") {
		t.Errorf("warned %q", w)
	}
	f.src.do(func() { f.src.broken = "" })
	f.want("written files/bad")
	if err := f.stop(); err != nil {
		t.Error(err)
	}
}

func TestFollowEndsWhenTheFolderCannotBeWritten(t *testing.T) {
	src := newTenant()
	f := follow(t, src)
	must(t, os.RemoveAll(filepath.Join(f.home, ".toolbus-sync")))
	f.src.do(func() { src.put("a", "1") })
	f.hint(Hint{File: "a"})
	if err := await(t, f.ended); !errors.Is(err, errcode.Unavailable) || !strings.Contains(err.Error(), "mirror folder") {
		t.Errorf("%v", err)
	}
}

// A sync that was killed leaves nothing that a later one takes for somebody
// else's.
func TestSyncKnowsWhatAKilledOneWrote(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a", "1")
	src.put("b", "1")
	index := filepath.Join(home(dir, "acme"), indexFile)
	var during map[string]string
	src.during = func(string, int) { during = content(t, filepath.Dir(index)) }
	syncTo(t, dir, src, 2, 0, 0)
	for name := range maps.Keys(during) {
		if strings.HasPrefix(name, "tmp-") {
			delete(during, name)
		}
	}
	must(t, os.WriteFile(index, []byte(during["index.json"]), 0o644))
	clear(src.files)
	if sum := syncTo(t, dir, src, 0, 2, 0); len(sum.Warnings) > 0 {
		t.Errorf("warned %q", sum.Warnings)
	}
}

func TestSyncMeetsAFolderWhereAFileBelongs(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a", "1")
	at := filepath.Join(home(dir, "acme"), "files", "a")
	must(t, os.MkdirAll(at, 0o755))
	syncTo(t, dir, src, 1, 0, 0)
	src.put("a", "2")
	must(t, os.Remove(at))
	must(t, os.MkdirAll(at, 0o755))
	must(t, os.WriteFile(filepath.Join(at, "notes"), []byte("mine"), 0o644))
	if _, err := Sync(t.Context(), dir, "acme", src); !errors.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "files/a") {
		t.Errorf("%v", err)
	}
	same(t, content(t, at), map[string]string{"notes": "mine"})
}
