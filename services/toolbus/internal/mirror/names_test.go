package mirror

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/paths"
)

func TestFileNames(t *testing.T) {
	long := strings.Repeat("ä", 200) // 400 bytes
	for name, c := range map[string]struct {
		paths []string
		want  []string // "~" at the end: a hash follows
	}{
		"plain":                     {[]string{"a.txt", "b/c.txt"}, []string{"a.txt", "b/c.txt"}},
		"differ in case":            {[]string{"README", "readme"}, []string{"README", "readme~"}},
		"folders differ in case":    {[]string{"Logs/a", "logs/a"}, []string{"Logs/a", "logs~/a"}},
		"file and folder of a name": {[]string{"a", "a/b"}, []string{"a~", "a/b"}},
		"file and folder in case":   {[]string{"A", "a/b"}, []string{"A~", "a/b"}},
		"too long":                  {[]string{long + "/x"}, []string{strings.Repeat("ä", 119) + "~/x"}},
		"like a name made here":     {[]string{"a~0123456789abcdef"}, []string{"a~0123456789abcdef~"}},
		"almost like one":           {[]string{"a~0123456789ABCDEF", "~", "b~1"}, []string{"a~0123456789ABCDEF", "~", "b~1"}},
		"sharp s":                   {[]string{"STRASSE", "straße"}, []string{"STRASSE", "straße~"}},
		"leading dots":              {[]string{"..a", ".b", "c.."}, []string{"..a", ".b", "c.."}},
	} {
		t.Run(name, func(t *testing.T) {
			got := fileNames(c.paths)
			for i, p := range c.paths {
				g := got[p]
				if before, after, ok := strings.Cut(c.want[i], "~"); ok && (after == "" || after[0] == '/') && len(c.want[i]) > 1 {
					cut := strings.LastIndex(g, "~")
					if cut < 0 || len(g) < cut+1+hashDigits || g[:cut]+g[cut+1+hashDigits:] != before+after {
						t.Errorf("%q: got %q, want %q and a hash", p, g, c.want[i])
					}
				} else if strings.Count(c.want[i], "~") == 2 {
					if !strings.HasPrefix(g, c.want[i]) || !hashed(g) {
						t.Errorf("%q: got %q, want %q and a hash", p, g, c.want[i])
					}
				} else if g != c.want[i] {
					t.Errorf("%q: got %q, want %q", p, g, c.want[i])
				}
			}
		})
	}
}

func TestStateNames(t *testing.T) {
	a, b := docRef{"ns", "Chat 1"}, docRef{"ns", "chat 1"}
	c, long := docRef{"n_s", "x_y"}, docRef{"ns", strings.Repeat("ü", 128)}
	got := stateNames([]docRef{long, b, c, a})
	if got[a] != "ns_Chat=201.json" || got[c] != "n_s_x=5Fy.json" {
		t.Errorf("got %v", got)
	}
	for _, d := range []docRef{b, long} {
		stem, ok := strings.CutSuffix(got[d], ".json")
		if !ok || !hashed(stem) || len(got[d]) > maxSegment {
			t.Errorf("%v: got %q", d, got[d])
		}
	}
}

func TestForbiddenOnWindows(t *testing.T) {
	for name, want := range map[string]bool{
		"a.txt": false, "con": true, "CON.txt": true, "com1": true, "com1.log": true, "com10": false, "lpt²": true, "console": false,
		"a:b": true, "a?": true, "end.": true, "end ": true, "nul ": true,
	} {
		if got := forbidden(name, "windows"); got != want {
			t.Errorf("%q: got %v", name, got)
		}
		if forbidden(name, "linux") {
			t.Errorf("%q is forbidden elsewhere", name)
		}
	}
}

// Whatever the tenant's paths are: each gets a local one, no two the same even
// where case does not count, none is also another's folder, all fit the file
// system.
func TestFileNamesNeverCollide(t *testing.T) {
	segment := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "A", "b", "ß", "ss", "SS", "a~0123456789abcdef", "A~0123456789abcdef", strings.Repeat("x", 256), strings.Repeat("X", 256)}),
		rapid.StringMatching(`[aA.~ é]{1,3}x`),
	)
	rapid.Check(t, func(t *rapid.T) {
		drawn := rapid.SliceOfNDistinct(rapid.Map(rapid.SliceOfN(segment, 1, 3), func(s []string) string { return strings.Join(s, "/") }), 0, 12, rapid.ID).Draw(t, "paths")
		for _, p := range drawn {
			if paths.Check(p) != nil {
				t.Fatalf("bad path %q drawn", p)
			}
		}
		got := fileNames(drawn)
		if len(got) != len(drawn) {
			t.Fatalf("%d paths, %d names", len(drawn), len(got))
		}
		seen := map[string]string{}
		folders := map[string]string{}
		for p, local := range got {
			if !filepath.IsLocal(local) {
				t.Fatalf("%q leaves the folder", local)
			}
			key := fold(local)
			if other, ok := seen[key]; ok {
				t.Fatalf("%q and %q both become %q", p, other, local)
			}
			seen[key] = p
			segs := strings.Split(local, "/")
			for i, s := range segs {
				if len(s) > maxSegment {
					t.Fatalf("%q is too long", s)
				}
				if i > 0 {
					folders[fold(strings.Join(segs[:i], "/"))] = p
				}
			}
		}
		for f, p := range folders {
			if other, ok := seen[f]; ok {
				t.Fatalf("the folder of %q is the file %q", p, other)
			}
		}
		slices.Reverse(drawn)
		for p, local := range fileNames(drawn) {
			if got[p] != local {
				t.Fatalf("%q: %q or %q, as the order goes", p, got[p], local)
			}
		}
	})
}

// Whatever the chats are: each document has a file of its own, also where case
// does not count, whose name fits the file system.
func TestStateNamesNeverCollide(t *testing.T) {
	chat := rapid.OneOf(
		rapid.SampledFrom([]string{"+49 170/123", "user@example.com", "User@example.com", "🙂", "🙃", "=2F", "/", "~", "a~0123456789abcdef", "A~0123456789abcdef", "..", "con", "CON", "ß", "ẞ", "ss", "é", "e\u0301"}),
		rapid.StringMatching(`[aAbB=_~./@+ é-]{1,4}`),
		rapid.StringN(1, 256, 256).Filter(func(s string) bool { return subject.CheckFree("", s) == nil }),
		rapid.Map(rapid.SampledFrom([]string{"x", "X", "ü", "🙂", "/"}), func(s string) string { return strings.Repeat(s, 256/len(s)) }),
	)
	doc := rapid.Custom(func(t *rapid.T) docRef {
		return docRef{rapid.SampledFrom([]string{"n", "N", "n_", "n_a", strings.Repeat("n", 64), strings.Repeat("N", 64)}).Draw(t, "namespace"), chat.Draw(t, "chat")}
	})
	rapid.Check(t, func(t *rapid.T) {
		docs := rapid.SliceOfNDistinct(doc, 1, 20, rapid.ID).Draw(t, "documents")
		got := stateNames(docs)
		seen := map[string]docRef{}
		for d, name := range got {
			if back, err := subject.Unescape(subject.Escape(d.chat)); err != nil || back != d.chat {
				t.Fatalf("%q came back as %q, %v", d.chat, back, err)
			}
			if other, ok := seen[fold(name)]; ok {
				t.Fatalf("%+v and %+v both become %q", d, other, name)
			}
			seen[fold(name)] = d
			if len(name) > maxSegment || !filepath.IsLocal(name) || strings.ContainsRune(name, '/') || !strings.HasSuffix(name, stateExt) {
				t.Fatalf("%+v becomes %q", d, name)
			}
		}
		if len(seen) != len(docs) {
			t.Fatalf("%d documents, %d names", len(docs), len(seen))
		}
		slices.Reverse(docs)
		for d, name := range stateNames(docs) {
			if got[d] != name {
				t.Fatalf("%+v: %q or %q, as the order goes", d, got[d], name)
			}
		}
	})
}

func FuzzFileNames(f *testing.F) {
	for _, s := range []string{"a/b", "../x", "/etc/passwd", "a/../../b", "a\\..\\b", "a//b", "\x00", "a/./b", "c:/x", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if paths.Check(p) != nil {
			return
		}
		if local := fileNames([]string{p})[p]; !filepath.IsLocal(local) || strings.ContainsRune(local, 0) {
			t.Fatalf("%q became %q", p, local)
		}
	})
}
