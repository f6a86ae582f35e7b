package subject

import (
	"errors"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestChangesFile(t *testing.T) {
	for _, path := range []string{"a", "Grüße/🙂 *.>", strings.Repeat("x", 1024), "../escape", "\xff"} {
		s := ChangesFile("acme", PathToken(path))
		if strings.ContainsAny(s[len(Prefix):], "*> ") || strings.Count(s, ".") != strings.Count(Prefix, ".")+3 {
			t.Errorf("%q: %s", path, s)
		}
		tenant, got, err := ParseChangesFile(s)
		if err != nil || tenant != "acme" || got != path {
			t.Errorf("%q: %q %q %v", path, tenant, got, err)
		}
	}
	for _, bad := range []string{
		"", "x", Prefix + "changes.files.acme", Prefix + "changes.files.acme.a.b", Prefix + "changes.files.acme.!",
		Prefix + "changes.files.acme.YR==", Prefix + "changes.files.acme.YQ", // a second spelling of "a"
		Prefix + "changes.files._all.YQ==", Prefix + "changes.agent.acme.YQ==", Prefix + "files.changes.acme.YQ==",
	} {
		if tenant, path, err := ParseChangesFile(bad); !errors.Is(err, errcode.InvalidRequest) || tenant != "" || path != "" {
			t.Errorf("%q: %q %q %v", bad, tenant, path, err)
		}
	}
}
