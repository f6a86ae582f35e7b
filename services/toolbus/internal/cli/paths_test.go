package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/paths/pathstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/toolbus/internal/up"
)

// Every verb that takes a path refuses a hostile one by the name of the field, and
// gives an odd one a file of its own.
func TestPaths(t *testing.T) {
	u, err := up.New(up.Config{Listen: "127.0.0.1:0", Data: t.TempDir(), Sync: up.SyncAlways}, telemetry.Discard(), telemetry.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := u.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := u.Start(ctx); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"NATS_URL": u.URL(), "TOOLBUS_TENANT": "acme"}
	for _, c := range pathstest.Refused() {
		for _, verb := range []string{"put", "append", "cat", "get", "stat", "rm"} {
			run(t, env, "evil", "files", verb, "--", c.Path).fails(t, 1, "invalid_request: ", "path: ")
			if t.Failed() {
				t.Fatalf("%s: files %s %q", c.Intent, verb, c.Path)
			}
		}
	}
	taken := pathstest.Taken()
	for _, c := range taken {
		if o := run(t, env, c.Path, "files", "put", "--create", "--", c.Path); o.code != 0 {
			t.Fatalf("%s: put %q: %+v", c.Intent, c.Path, o)
		}
	}
	for _, c := range taken {
		if o := run(t, env, "", "files", "cat", "--", c.Path); o.code != 0 || o.out != c.Path {
			t.Errorf("%s: cat %q: %+v", c.Intent, c.Path, o)
		}
	}
	var list message.FileListing
	o := run(t, env, "", "files", "ls", "-o", "json")
	if err := json.Unmarshal([]byte(o.out), &list); err != nil || len(list.Files) != len(taken) {
		t.Errorf("%d files listed of %d: %v", len(list.Files), len(taken), err)
	}
	if table := run(t, env, "", "files", "ls").out; strings.Count(table, "\n") != len(taken)+1 {
		t.Errorf("a name breaks the table:\n%s", table)
	}
}
