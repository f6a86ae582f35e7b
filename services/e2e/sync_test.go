package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

func TestSync(t *testing.T) {
	_, cli := up(t)
	write := func(tenant, path, content string) {
		t.Helper()
		if r := cli.Pipe(t, strings.NewReader(content), "files", "put", path, "-t", tenant); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	write("acme", "mitglieder.json", "[]")
	write("acme", "logs/2026-05.log", strings.Repeat("line\n", 400_000)) // more than one message
	write("globex", "secret", "theirs")
	cli.OK(t, "state", "set", "direction", `"DHL->DPD"`, "-t", "acme", "-n", "relabeling", "-c", "chat/1")
	dir := t.TempDir()
	var sum struct{ Written, Removed, Unchanged int }
	check := func(written, removed, unchanged int) {
		t.Helper()
		cli.JSON(t, &sum, "sync", "--dir", dir, "-t", "acme")
		if sum.Written != written || sum.Removed != removed || sum.Unchanged != unchanged {
			t.Errorf("got %+v, want %d written, %d removed, %d unchanged", sum, written, removed, unchanged)
		}
	}
	check(3, 0, 0)
	check(0, 0, 3)
	home := filepath.Join(dir, "config/tenants/acme")
	if b, err := os.ReadFile(filepath.Join(home, "files/logs/2026-05.log")); err != nil || len(b) != 2_000_000 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	b, err := os.ReadFile(filepath.Join(home, "tmp/state/relabeling_chat=2F1.json"))
	if err != nil || !strings.HasPrefix(string(b), "{\n  \"expires_at\": \"") || !strings.HasSuffix(string(b), "\",\n  \"data\": {\n    \"direction\": \"DHL->DPD\"\n  }\n}\n") {
		t.Errorf("%s %v", b, err)
	}
	write("acme", "mitglieder.json", `["Erika"]`)
	cli.OK(t, "files", "rm", "logs/2026-05.log", "-t", "acme")
	cli.OK(t, "state", "clear", "-t", "acme", "-n", "relabeling", "-c", "chat/1")
	check(1, 2, 0)
	var found []string
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.Contains(path, ".toolbus-sync") {
			rel, _ := filepath.Rel(dir, path)
			found = append(found, filepath.ToSlash(rel))
		}
		return err
	})
	if got := strings.Join(found, " "); err != nil || got != "config/tenants/acme/.gitignore config/tenants/acme/files/mitglieder.json" {
		t.Errorf("found %s, %v", got, err)
	}
}

// What has expired is neither synced nor kept.
func TestSyncShowsNothingExpired(t *testing.T) {
	p, cli := up(t)
	dir := t.TempDir()
	cli.OK(t, "state", "set", "k", "1", "--ttl", "1s", "-t", "acme", "-n", "n", "-c", "c")
	cli.OK(t, "sync", "--dir", dir, "-t", "acme")
	name := filepath.Join(dir, "config/tenants/acme/tmp/state/n_c.json")
	nc := connect(t, p.URL)
	ref := message.ToolStateRef{ChatID: "c", Namespace: "n"}
	for deadline := time.Now().Add(10 * time.Second); ; {
		var v message.ToolStateData
		if err := bus.Request(t.Context(), nc, subject.ToolState("acme", "all"), message.ToolStateAll{ToolStateRef: ref}, &v); err != nil {
			t.Fatal(err)
		}
		if !v.Found {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not expire")
		}
		<-time.After(50 * time.Millisecond)
	}
	cli.OK(t, "sync", "--dir", dir, "-t", "acme")
	if _, err := os.Lstat(name); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", name, err)
	}
}
