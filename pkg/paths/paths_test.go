package paths

import (
	"errors"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/paths/pathstest"
)

var goodPaths = []string{
	"a", "mitglieder.json", "logs/2026-05.log", "a/b/c/d", "Grüße/日本語/🙂.txt", "a b/c d", ".hidden", "..a", "a..", "...", "-", "a/b:c", "ab:c",
	"x\u00a0y", strings.Repeat("x", 1024), "*", ">", "a.b", "%2e%2e/x", "~",
}

var badPaths = []string{
	"", "/", "/etc/passwd", "a/", "a//b", ".", "..", "./a", "a/.", "a/../b", "../a", "a/..", " ", "a/ /b", "\t", "a/\u00a0/b", "a/\u200b", "\u3000", "\u3164", "a/\u115f\u1160/b", "\uffa0 ",
	`a\b`, `\\srv\x`, `..\x`, "C:", "C:/x", `C:\x`, "c:x", "a:b", "a\x00b", "a\nb", "a\x7f", "a\u0085b", "\xff", "a\xc3", "\u202etxt", "a\u2066b", "\u200fx", "\u061cx",
	"e\u0301", "A\u030a", "a\u2028b", "a\ufffdb", strings.Repeat("x", 1025), strings.Repeat("ä", 513),
}

func TestCheck(t *testing.T) {
	for _, p := range goodPaths {
		if err := Check(p); err != nil {
			t.Errorf("%q refused: %v", p, err)
		}
		if err := CheckPrefix(p); err != nil {
			t.Errorf("prefix %q refused: %v", p, err)
		}
	}
	for _, p := range badPaths {
		err := Check(p)
		if !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%q: got %v, want invalid_request", p, err)
			continue
		}
		if d := errcode.From(err).Details; d == nil || len(d.Fields) != 1 || d.Fields[0].Field != "path" {
			t.Errorf("%q: %+v does not name path", p, d)
		}
	}
	for _, p := range []string{"", "a/", "lo", "a/b/", ".", "..", "a/.", "a/..", " "} {
		if err := CheckPrefix(p); err != nil {
			t.Errorf("prefix %q refused: %v", p, err)
		}
	}
	for _, p := range []string{"/", "/a", "a//", "./", "../", "a/../", "./a", "../a", "a/./b", " /", "a/\u3000/b", `a\b`, "C:", "a\x00"} {
		if d := errcode.From(CheckPrefix(p)).Details; d == nil || len(d.Fields) != 1 || d.Fields[0].Field != "prefix" {
			t.Errorf("prefix %q: got %+v, want a fault of prefix", p, d)
		}
	}
}

func TestTable(t *testing.T) {
	for _, c := range pathstest.Taken() {
		if err := Check(c.Path); err != nil {
			t.Errorf("%s: %q refused: %v", c.Intent, c.Path, err)
		}
	}
	for _, c := range pathstest.Refused() {
		if err := Check(c.Path); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: %q: %v", c.Intent, c.Path, err)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, p := range append(goodPaths, badPaths...) {
		f.Add(p)
	}
	for _, c := range append(pathstest.Taken(), pathstest.Refused()...) {
		f.Add(c.Path)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if Check(p) != nil {
			return
		}
		// What is taken has one spelling, stays inside a root, and is a name that
		// every system can hold.
		switch {
		case len(p) == 0 || len(p) > Max || !utf8.ValidString(p) || !norm.NFC.IsNormalString(p):
			t.Fatalf("%q was taken", p)
		case path.Clean(p) != p || path.IsAbs(p) || strings.ContainsAny(p, "\\\x00\n\r\t"):
			t.Fatalf("%q was taken", p)
		case !filepath.IsLocal(filepath.FromSlash(p)):
			t.Fatalf("%q leaves the root", p)
		}
		for segment := range strings.SplitSeq(p, "/") {
			if strings.TrimSpace(segment) == "" || segment == "." || segment == ".." {
				t.Fatalf("%q was taken", p)
			}
		}
		if err := CheckPrefix(p); err != nil {
			t.Fatalf("a path must be a prefix of itself: %v", err)
		}
	})
}
