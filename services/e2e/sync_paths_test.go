package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/paths/pathstest"
)

// Odd names in the area, hostile ones that stand in the store, since another
// client of NATS wrote them, and links that wait in the folder: toolbus sync
// writes each file that has a name once, and nothing elsewhere, also the second
// time.
func TestSyncOfHostileAndOddNames(t *testing.T) {
	p, cli := up(t)
	nc := connect(t, p.URL)
	c := files.New(nc, "acme")
	want := map[string]bool{}
	for _, x := range append(pathstest.Taken(), pathstest.Case{Path: "both"}, pathstest.Case{Path: "both/below"}) {
		if _, err := c.Write(t.Context(), x.Path, []byte(x.Path)); err != nil {
			t.Fatalf("%s %q: %v", x.Intent, x.Path, err)
		}
		want[x.Path] = true
	}
	bucket := subject.FilesBucket("acme")
	for i, x := range pathstest.Refused() {
		if x.Path == "" || len(x.Path) > 1100 {
			continue // no subject
		}
		name, err := json.Marshal(x.Path)
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"name":%s,"bucket":%q,"nuid":"evil%d","size":4,"chunks":1}`, name, bucket, i)
		m, err := nc.Request("$O."+bucket+".M."+subject.PathToken(x.Path), []byte(body), 5*time.Second)
		if err != nil || !strings.Contains(string(m.Data), `"seq"`) {
			t.Fatalf("%s %q was not stored: %v", x.Intent, x.Path, err)
		}
	}

	parent := t.TempDir()
	outside, dir := filepath.Join(parent, "outside"), filepath.Join(parent, "in")
	home := filepath.Join(dir, "config/tenants/acme")
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(os.MkdirAll(filepath.Join(home, "files"), 0o755))
	ok(os.MkdirAll(filepath.Join(home, ".toolbus-sync"), 0o755))
	ok(os.MkdirAll(outside, 0o755))
	for _, at := range []string{"files/both", "files/plain.txt", "files/a", ".toolbus-sync/index.json", ".gitignore"} {
		ok(os.Symlink(filepath.Join(outside, filepath.Base(at)), filepath.Join(home, at)))
	}
	check := func() {
		t.Helper()
		left := map[string]bool{}
		for p := range want {
			left[p] = true
		}
		ok(filepath.WalkDir(parent, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !e.Type().IsRegular() {
				return err
			}
			rel, err := filepath.Rel(home, name)
			if err != nil {
				return err
			}
			if rel == ".gitignore" || rel == filepath.FromSlash(".toolbus-sync/index.json") {
				return nil
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if in, err := filepath.Rel("files", rel); err != nil || !filepath.IsLocal(in) || !left[string(text)] {
				t.Errorf("%q has %q, which has no place there, or two", rel, text)
			}
			delete(left, string(text))
			return nil
		}))
		for p := range left {
			t.Errorf("%q is not in the mirror", p)
		}
	}
	var sum struct{ Written, Removed, Unchanged int }
	cli.JSON(t, &sum, "sync", "--dir", dir, "-t", "acme")
	if sum.Written != len(want) {
		t.Errorf("%+v, want %d written", sum, len(want))
	}
	check()
	cli.JSON(t, &sum, "sync", "--dir", dir, "-t", "acme")
	if sum.Written != 0 || sum.Removed != 0 || sum.Unchanged != len(want) {
		t.Errorf("the second time %+v, want %d unchanged", sum, len(want))
	}
	check()
}
