package mirror

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/toolbus/toolbus/contracts/subject"
)

const (
	maxSegment = 255 // bytes; what common file systems take for one name
	hashDigits = 16
	stateExt   = ".json"
)

// fileNames gives every path the local path it is mirrored to, both with "/".
// A segment keeps its name unless it cannot: too long, not allowed on this
// system, equal but for case to a neighbour before it, a file where a folder
// of that name is, or ending like the names made here. Such a one ends in "~"
// and a hash of its true name. Paths must be valid (paths.Check).
func fileNames(paths []string) map[string]string {
	root := &folder{}
	for _, p := range paths {
		root.add(p, strings.Split(p, "/"))
	}
	out := make(map[string]string, len(paths))
	root.name("", out)
	return out
}

// folder is one level of the tree of all paths.
type folder struct {
	files   map[string]string // name → whole path
	folders map[string]*folder
}

func (f *folder) add(whole string, rest []string) {
	if len(rest) == 1 {
		if f.files == nil {
			f.files = map[string]string{}
		}
		f.files[rest[0]] = whole
		return
	}
	if f.folders == nil {
		f.folders = map[string]*folder{}
	}
	sub := f.folders[rest[0]]
	if sub == nil {
		sub = &folder{}
		f.folders[rest[0]] = sub
	}
	sub.add(whole, rest[1:])
}

func (f *folder) name(at string, out map[string]string) {
	used := map[string]bool{}
	for _, n := range slices.Sorted(maps.Keys(f.folders)) {
		f.folders[n].name(path.Join(at, unique(used, n, "", n+"/")), out)
	}
	for _, n := range slices.Sorted(maps.Keys(f.files)) {
		out[f.files[n]] = path.Join(at, unique(used, n, "", n))
	}
}

// stateNames gives every document its local file name. Documents must have
// valid names.
func stateNames(docs []docRef) map[docRef]string {
	sorted := slices.Clone(docs)
	slices.SortFunc(sorted, func(a, b docRef) int { return strings.Compare(a.stem(), b.stem()) })
	used := map[string]bool{}
	out := make(map[docRef]string, len(docs))
	for _, d := range sorted {
		out[d] = unique(used, d.stem(), stateExt, d.stem())
	}
	return out
}

// docRef names a ToolState document.
type docRef struct{ namespace, chat string }

// stem is one to one: an escaped chat has no "_".
func (d docRef) stem() string { return d.namespace + "_" + subject.Escape(d.chat) }

func (d docRef) check() error {
	if err := subject.CheckName("namespace", d.namespace); err != nil {
		return err
	}
	return subject.CheckFree("chatId", d.chat)
}

// unique is stem+ext when that works as a name beside those used, or else
// "<stem>~<hash of identity>"+ext.
func unique(used map[string]bool, stem, ext, identity string) string {
	name := stem + ext
	if len(name) > maxSegment || hashed(stem) || forbidden(name, runtime.GOOS) || used[fold(name)] {
		sum := sha256.Sum256([]byte(identity))
		tail := "~" + hex.EncodeToString(sum[:])[:hashDigits] + ext
		name = truncate(portable(stem, runtime.GOOS), maxSegment-len(tail)) + tail
	}
	used[fold(name)] = true
	return name
}

// hashed tells whether a name ends as unique's own do; a plain one never may.
func hashed(stem string) bool {
	i := len(stem) - hashDigits - 1
	if i < 0 || stem[i] != '~' {
		return false
	}
	for _, c := range []byte(stem[i+1:]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// fold makes names equal that a file system may take for the same.
func fold(name string) string { return norm.NFC.String(cases.Fold().String(norm.NFKC.String(name))) }

// forbidden tells whether the system refuses, or changes, a name.
func forbidden(name, goos string) bool {
	if goos != "windows" {
		return false
	}
	if strings.ContainsAny(name, `<>:"|?*\`) || strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") {
		return true
	}
	base, _, _ := strings.Cut(strings.ToUpper(name), ".")
	switch base = strings.TrimRight(base, " "); base {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return true
	}
	port, ok := strings.CutPrefix(base, "COM")
	if !ok {
		port, ok = strings.CutPrefix(base, "LPT")
	}
	return ok && utf8.RuneCountInString(port) == 1 && strings.ContainsAny(port, "0123456789¹²³")
}

// portable replaces the characters that the system refuses; the hash that
// follows keeps names apart.
func portable(stem, goos string) string {
	if goos != "windows" {
		return stem
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(`<>:"|?*\`, r) {
			return '_'
		}
		return r
	}, stem)
}

// truncate cuts s to at most n bytes, between runes.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
