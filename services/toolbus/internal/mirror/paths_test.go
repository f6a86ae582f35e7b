package mirror

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/pkg/paths/pathstest"
)

// mirrorAll mirrors paths, each with itself as content, and checks that nothing
// is outside the tenant's files and that each valid one is there, once.
func mirrorAll(t *testing.T, all ...string) {
	t.Helper()
	parent := t.TempDir()
	src, dir := newTenant(), filepath.Join(parent, "in")
	valid := map[string]bool{}
	for _, p := range all {
		src.put(p, p)
		if paths.Check(p) == nil {
			valid[p] = true
		}
	}
	sum, err := Sync(t.Context(), dir, "acme", src)
	if err != nil {
		t.Fatal(err)
	}
	if refused := len(src.files) - len(valid); sum.Written != len(valid) || len(sum.Warnings) != refused {
		t.Errorf("%d written of %d, %d warnings of %d", sum.Written, len(valid), len(sum.Warnings), refused)
	}
	const files, own = "in/config/tenants/acme/files/", "in/config/tenants/acme/"
	for name, text := range content(t, parent) {
		rel, isFile := strings.CutPrefix(name, files)
		switch {
		case !isFile && name != own+".gitignore" && name != own+indexFile:
			t.Errorf("%q was written", name)
		case isFile && !valid[text]:
			t.Errorf("%q has %q, which has no place or two", rel, text)
		case isFile:
			delete(valid, text)
			if info, err := os.Lstat(filepath.Join(parent, name)); err != nil || info.Mode() != fileMode {
				t.Errorf("%q: %v, %v", name, info.Mode(), err)
			}
		}
	}
	for p := range valid {
		t.Errorf("%q is not there", p)
	}
}

func TestSyncOfHostileAndOddPaths(t *testing.T) {
	var all []string
	for _, c := range append(pathstest.Refused(), pathstest.Taken()...) {
		all = append(all, c.Path)
	}
	mirrorAll(t, all...)
}

func FuzzPath(f *testing.F) {
	f.Add("../escape", "a", "a/b")
	f.Add("NAME", "name", "name/x")
	f.Add("a\x00", "e\u0301", "\u00e9")
	taken, refused := pathstest.Taken(), pathstest.Refused()
	for i := 0; i < len(taken); i += 10 { // the tables as a whole are tried elsewhere
		f.Add(taken[i].Path, taken[i].Path+"/x", refused[i].Path)
	}
	f.Fuzz(func(t *testing.T, a, b, c string) { mirrorAll(t, a, b, c) })
}

// Links that somebody places beforehand, also to what does not exist yet, lead
// nothing out.
func TestSyncReplacesLinksToNowhere(t *testing.T) {
	outside := t.TempDir()
	for _, at := range []string{"files/a", "files/sub", "files/sub/b", ".toolbus-sync/index.json"} {
		t.Run(at, func(t *testing.T) {
			src, dir := newTenant(), t.TempDir()
			src.put("a", "1")
			src.put("sub/b", "2")
			link := filepath.Join(home(dir, "acme"), at)
			must(t, os.MkdirAll(filepath.Dir(link), 0o755))
			must(t, os.Symlink(filepath.Join(outside, "not", "there"), link))
			syncTo(t, dir, src, 2, 0, 0)
			same(t, content(t, outside), map[string]string{})
			same(t, content(t, filepath.Join(home(dir, "acme"), "files")), map[string]string{"a": "1", "sub/b": "2"})
		})
	}
}
