package tooltest

import (
	"strings"
	"testing"

	"github.com/toolbus/toolbus/pkg/files"
)

var pathSeeds = []string{
	"", "a", "a/b.txt", "größe/ü.txt", "/a", "a/", "a//b", ".", "a/../b", "./a", "..", "...", "a/ /b", "a\\b", "C:x", "c:/x", "1:x",
	"a\x00b", "a\nb", "\u202ea", "e\u0301", "\u00e9", "\xff", "a/\u00a0", "a/\u200b/b", "a/\u2800", "\ufe0f", "a\u2028b",
	strings.Repeat("a", 1024), strings.Repeat("a", 1025),
}

// The in-memory files accept exactly the paths that the real ones accept.
func FuzzPathsAsTheFilesService(f *testing.F) {
	for _, p := range pathSeeds {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if got, want := checkPath(path), files.CheckPath(path); (got == nil) != (want == nil) {
			t.Errorf("path %q: here %v, in the service %v", path, got, want)
		}
		if got, want := checkPrefix(path), files.CheckPrefix(path); (got == nil) != (want == nil) {
			t.Errorf("prefix %q: here %v, in the service %v", path, got, want)
		}
	})
}
