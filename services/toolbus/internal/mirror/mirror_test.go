package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tenant is a source that can also hold what the real services refuse.
type tenant struct {
	mu       sync.Mutex
	files    map[string]stored
	docs     map[docRef]stored
	revision uint64
	reads    []string                       // what was transferred
	fail     error                          // of every read
	during   func(path string, attempt int) // runs while a file is read
	vanish   map[string]bool                // listed, but gone when read
}

type stored struct {
	content  string
	revision uint64
}

func newTenant() *tenant {
	return &tenant{files: map[string]stored{}, docs: map[docRef]stored{}, vanish: map[string]bool{}}
}

func (s *tenant) put(path, content string) {
	s.revision++
	s.files[path] = stored{content, s.revision}
}

func (s *tenant) putDoc(ns, chat, data string) {
	s.revision++
	s.docs[docRef{ns, chat}] = stored{data, s.revision}
}

func (s *tenant) info(path string) message.FileInfo {
	f := s.files[path]
	sum := sha256.Sum256([]byte(f.content))
	return message.FileInfo{
		Exists: true, Path: path, Size: int64(len(f.content)), Revision: f.revision,
		Modified: "2026-05-05T14:00:00.5Z", SHA256: hex.EncodeToString(sum[:]),
	}
}

func (s *tenant) Files(context.Context) ([]message.FileInfo, error) {
	var out []message.FileInfo
	for p := range s.files {
		out = append(out, s.info(p))
	}
	return out, s.fail
}

func (s *tenant) File(_ context.Context, path string, w io.Writer) (message.FileInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, path)
	f := s.files[path]
	info := s.info(path)
	if s.vanish[path] {
		return message.FileInfo{Path: path}, nil
	}
	half := len(f.content) / 2
	if _, err := io.WriteString(w, f.content[:half]); err != nil {
		return info, err
	}
	if s.during != nil {
		s.during(path, len(s.reads))
	}
	if s.files[path].revision != f.revision {
		return info, errcode.ConflictAt(s.files[path].revision, "changed")
	}
	_, err := io.WriteString(w, f.content[half:])
	return info, err
}

func (s *tenant) Documents(context.Context) ([]message.ToolStateEntry, error) {
	var out []message.ToolStateEntry
	for d, v := range s.docs {
		out = append(out, message.ToolStateEntry{Namespace: d.namespace, ChatID: d.chat, Revision: v.revision, ExpiresAt: "2026-05-05T16:00:00+02:00"})
	}
	return out, nil
}

func (s *tenant) Document(_ context.Context, ns, chat string) (message.ToolStateData, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, ns+"/"+chat)
	d := s.docs[docRef{ns, chat}]
	if s.vanish[ns+"/"+chat] {
		return message.ToolStateData{}, nil
	}
	r := message.ToolStateData{Found: true, Revision: d.revision, ExpiresAt: "2026-05-05T16:00:00+02:00"}
	return r, json.Unmarshal([]byte(d.content), &r.Data)
}

// syncTo syncs and checks the summary's numbers.
func syncTo(t *testing.T, dir string, src Source, written, removed, unchanged int) Summary {
	t.Helper()
	sum, err := Sync(t.Context(), dir, "acme", src)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Written != written || sum.Removed != removed || sum.Unchanged != unchanged {
		t.Errorf("got %d written, %d removed, %d unchanged; want %d, %d, %d", sum.Written, sum.Removed, sum.Unchanged, written, removed, unchanged)
	}
	return sum
}

// content reads every file below dir; folders end in "/".
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		out[filepath.ToSlash(rel)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			t.Errorf("%s: got %q (there: %v), want %q", k, g, ok, v)
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s should not be there", k)
		}
	}
}

func TestSyncMirrors(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("mitglieder.json", "[]")
	src.put("logs/2026-05.log", "one\n")
	src.put("empty", "")
	src.putDoc("relabeling", "chat/1", `{"direction":"DHL->DPD","codes":["00340434757211819883","8806096235386"]}`)
	sum := syncTo(t, dir, src, 4, 0, 0)
	home := filepath.Join(dir, "config", "tenants", "acme")
	if sum.Dir != home || len(sum.Warnings) != 0 {
		t.Errorf("summary %+v", sum)
	}
	same(t, content(t, filepath.Join(home, "files")), map[string]string{"mitglieder.json": "[]", "logs/2026-05.log": "one\n", "empty": ""})
	same(t, content(t, filepath.Join(home, "tmp")), map[string]string{"state/relabeling_chat=2F1.json": `{
  "expires_at": "2026-05-05T16:00:00+02:00",
  "data": {
    "codes": ["00340434757211819883", "8806096235386"],
    "direction": "DHL->DPD"
  }
}
`})
	for _, f := range []string{"files/mitglieder.json", "files/logs/2026-05.log", "tmp/state/relabeling_chat=2F1.json"} {
		info, err := os.Stat(filepath.Join(home, f))
		if err != nil || info.Mode().Perm() != 0o444 {
			t.Errorf("%s: %v %v", f, info.Mode(), err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(home, ".gitignore")); err != nil || string(b) != "/files/\n/tmp/\n/.toolbus-sync/\n" {
		t.Errorf(".gitignore: %q %v", b, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("beside config: %v %v", entries, err)
	}
}

func TestSyncTransfersOnlyWhatChanged(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	for i := range 5 {
		src.put(fmt.Sprintf("d/%d", i), strings.Repeat("x", i))
	}
	src.putDoc("n", "c", `{"a":1}`)
	syncTo(t, dir, src, 6, 0, 0)
	src.reads = nil
	syncTo(t, dir, src, 0, 0, 6)
	if len(src.reads) > 0 {
		t.Errorf("transferred again: %v", src.reads)
	}
	src.put("d/1", "new")
	src.putDoc("n", "c", `{"a":2}`)
	delete(src.files, "d/2")
	syncTo(t, dir, src, 2, 1, 3)
	slices.Sort(src.reads)
	if !slices.Equal(src.reads, []string{"d/1", "n/c"}) {
		t.Errorf("transferred %v", src.reads)
	}
	// Without its records the mirror goes by digests.
	if err := os.Remove(filepath.Join(dir, "config/tenants/acme/.toolbus-sync/index.json")); err != nil {
		t.Fatal(err)
	}
	src.reads = nil
	syncTo(t, dir, src, 1, 0, 4)
	if !slices.Equal(src.reads, []string{"n/c"}) {
		t.Errorf("transferred %v", src.reads)
	}
}

func TestSyncRemovesWhatIsGone(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a/b/c", "1")
	src.put("x", "2")
	src.putDoc("n", "c", `{}`)
	syncTo(t, dir, src, 3, 0, 0)
	clear(src.files)
	clear(src.docs)
	syncTo(t, dir, src, 0, 3, 0)
	home := filepath.Join(dir, "config/tenants/acme")
	for _, d := range []string{"files", "tmp/state"} {
		if e, err := os.ReadDir(filepath.Join(home, d)); err != nil || len(e) > 0 {
			t.Errorf("%s: %v %v", d, e, err)
		}
	}
	syncTo(t, dir, src, 0, 0, 0)
}

func TestSyncRepairsWhatWasChangedByHand(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("edited", "true")
	src.put("deleted", "true")
	src.put("linked", "true")
	src.put("writable", "true")
	syncTo(t, dir, src, 4, 0, 0)
	files := filepath.Join(dir, "config/tenants/acme/files")
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("mine"), 0o644))
	must(t, os.Chmod(filepath.Join(files, "edited"), 0o644))
	must(t, os.WriteFile(filepath.Join(files, "edited"), []byte("fals"), 0o644))
	must(t, os.Remove(filepath.Join(files, "deleted")))
	must(t, os.Remove(filepath.Join(files, "linked")))
	must(t, os.Symlink(outside, filepath.Join(files, "linked")))
	must(t, os.Chmod(filepath.Join(files, "writable"), 0o666))
	syncTo(t, dir, src, 4, 0, 0)
	same(t, content(t, files), map[string]string{"edited": "true", "deleted": "true", "linked": "true", "writable": "true"})
	if b, err := os.ReadFile(outside); err != nil || string(b) != "mine" {
		t.Errorf("written through a link: %q %v", b, err)
	}
}

func TestSyncNeverFollowsALinkOut(t *testing.T) {
	src, dir, outside := newTenant(), t.TempDir(), t.TempDir()
	src.put("sub/file", "tenant's")
	src.put("old/file", "tenant's")
	src.putDoc("n", "c", `{}`)
	syncTo(t, dir, src, 3, 0, 0)
	home := filepath.Join(dir, "config/tenants/acme")
	must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("mine"), 0o644))
	for _, link := range []string{"files/sub", "files/old", "tmp/state", ".toolbus-sync"} {
		must(t, os.RemoveAll(filepath.Join(home, link)))
		must(t, os.Symlink(outside, filepath.Join(home, link)))
	}
	delete(src.files, "old/file")
	src.put("sub/file", "tenant's, again")
	if _, err := Sync(t.Context(), dir, "acme", src); err != nil {
		t.Fatal(err)
	}
	same(t, content(t, outside), map[string]string{"file": "mine"})
	if b, err := os.ReadFile(filepath.Join(home, "files/sub/file")); err != nil || string(b) != "tenant's, again" {
		t.Errorf("files/sub/file: %q %v", b, err)
	}
}

func TestSyncRefusesALinkAboveTheMirror(t *testing.T) {
	for _, link := range []string{"config", "config/tenants", "config/tenants/acme"} {
		t.Run(link, func(t *testing.T) {
			src, dir, outside := newTenant(), t.TempDir(), t.TempDir()
			src.put("a", "1")
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755))
			must(t, os.Symlink(outside, filepath.Join(dir, link)))
			if _, err := Sync(t.Context(), dir, "acme", src); !errors.Is(err, errcode.InvalidRequest) {
				t.Errorf("got %v", err)
			}
			same(t, content(t, outside), map[string]string{})
		})
	}
}

func TestSyncSurvivesHostileNames(t *testing.T) {
	parent := t.TempDir()
	src, dir := newTenant(), filepath.Join(parent, "in")
	for _, p := range []string{"../../../../../escape", "/abs", "a/../../b", "a//b", ".", "..", "", "a/.", "nul\x00", `..\..\win`, "\xff"} {
		src.put(p, "evil")
	}
	src.putDoc("../x", "c", `{}`)
	src.putDoc("n", "", `{}`)
	src.putDoc("n", "../../../../chat", `{}`)
	src.put("Ok", "1")
	src.put("oK", "2")
	src.put("ok", "3")
	src.put("ok/inner", "4")
	src.put(strings.Repeat("n", 300), "5")
	sum := syncTo(t, dir, src, 6, 0, 0)
	if len(sum.Warnings) != 13 {
		t.Errorf("%d warnings: %q", len(sum.Warnings), sum.Warnings)
	}
	values := map[string]bool{}
	for name, v := range content(t, parent) {
		if !strings.HasPrefix(name, "in/config/tenants/acme/") {
			t.Errorf("%s was written", name)
		}
		if strings.HasPrefix(name, "in/config/tenants/acme/files/") {
			values[v] = true
		}
	}
	for _, v := range []string{"1", "2", "3", "4", "5"} {
		if !values[v] {
			t.Errorf("%s is missing", v)
		}
	}
	if values["evil"] {
		t.Error("a hostile name was mirrored")
	}
	if _, err := os.Stat(filepath.Join(dir, "config/tenants/acme/tmp/state/n_=2E=2E=2F=2E=2E=2F=2E=2E=2F=2E=2E=2Fchat.json")); err != nil {
		t.Error(err)
	}
}

func TestSyncIgnoresAForgedIndex(t *testing.T) {
	parent := t.TempDir()
	src, dir := newTenant(), filepath.Join(parent, "in")
	src.put("a", "1")
	syncTo(t, dir, src, 1, 0, 0)
	must(t, os.WriteFile(filepath.Join(parent, "mine"), []byte("mine"), 0o644))
	forged := `{"tenant":"acme","entries":{"../../../../mine":{},"files/../.gitignore":{},".gitignore":{},"files":{}}}`
	must(t, os.WriteFile(filepath.Join(dir, "config/tenants/acme/.toolbus-sync/index.json"), []byte(forged), 0o644))
	syncTo(t, dir, src, 0, 0, 1)
	for _, f := range []string{"mine", "in/config/tenants/acme/.gitignore", "in/config/tenants/acme/files/a"} {
		if _, err := os.Stat(filepath.Join(parent, f)); err != nil {
			t.Error(err)
		}
	}
}

func TestSyncLeavesForeignFiles(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a", "1")
	home := filepath.Join(dir, "config/tenants/acme")
	must(t, os.MkdirAll(filepath.Join(home, "files/my"), 0o755))
	must(t, os.WriteFile(filepath.Join(home, "files/my/notes"), []byte("mine"), 0o644))
	must(t, os.WriteFile(filepath.Join(home, ".gitignore"), []byte("*.bak\n/tmp/"), 0o644))
	sum := syncTo(t, dir, src, 1, 0, 0)
	if len(sum.Warnings) != 1 || !strings.Contains(sum.Warnings[0], "files/my/notes") {
		t.Errorf("warnings %q", sum.Warnings)
	}
	same(t, content(t, filepath.Join(home, "files")), map[string]string{"a": "1", "my/notes": "mine"})
	if b, err := os.ReadFile(filepath.Join(home, ".gitignore")); err != nil || string(b) != "*.bak\n/tmp/\n/files/\n/.toolbus-sync/\n" {
		t.Errorf(".gitignore: %q %v", b, err)
	}
}

func TestSyncOfAFileThatChangesMeanwhile(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a", "old content")
	src.during = func(path string, attempt int) {
		if attempt < 3 {
			src.put("a", fmt.Sprintf("new content %d", attempt))
		}
	}
	syncTo(t, dir, src, 1, 0, 0)
	same(t, content(t, filepath.Join(dir, "config/tenants/acme/files")), map[string]string{"a": "new content 2"})
	syncTo(t, dir, src, 0, 0, 1)
}

func TestSyncOfWhatVanishesMeanwhile(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a", "1")
	src.putDoc("n", "c", `{}`)
	syncTo(t, dir, src, 2, 0, 0)
	src.put("a", "2")
	src.putDoc("n", "c", `{"a":1}`)
	src.vanish["a"], src.vanish["n/c"] = true, true
	syncTo(t, dir, src, 0, 2, 0)
	same(t, content(t, filepath.Join(dir, "config/tenants/acme/files")), map[string]string{})
}

func TestSyncKeepsTheMirrorWhenTheServiceFails(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a", "1")
	syncTo(t, dir, src, 1, 0, 0)
	src.fail = errcode.New(errcode.Unavailable, "down")
	clear(src.files)
	if _, err := Sync(t.Context(), dir, "acme", src); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("got %v", err)
	}
	same(t, content(t, filepath.Join(dir, "config/tenants/acme/files")), map[string]string{"a": "1"})
}

func TestSyncRefusesAnotherTenantsFolder(t *testing.T) {
	src, dir := newTenant(), t.TempDir()
	src.put("a", "1")
	syncTo(t, dir, src, 1, 0, 0)
	index := filepath.Join(dir, "config/tenants/acme/.toolbus-sync/index.json")
	must(t, os.WriteFile(index, []byte(`{"tenant":"ACME","entries":{"files/a":{}}}`), 0o644))
	if _, err := Sync(t.Context(), dir, "acme", src); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("got %v", err)
	}
	for _, bad := range []string{"", "a.b", "*", ">", "..", "_all", strings.Repeat("a", 65)} {
		if _, err := Sync(t.Context(), dir, bad, src); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("tenant %q: got %v", bad, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMirrorIntoAFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Sync(t.Context(), name, "acme", &tenant{})
	if e := errcode.From(err); err == nil || e.Code != errcode.InvalidRequest || !strings.HasPrefix(e.Message, "dir: ") {
		t.Errorf("got %v", err)
	}
}
