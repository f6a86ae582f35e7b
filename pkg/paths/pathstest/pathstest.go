// Package pathstest has paths to try on whatever takes the path of a tenant's
// file: hostile ones, which must be refused, and odd ones, which must each be a
// file of its own. It knows the rules of design, not how they are checked.
package pathstest

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// Case is one path.
type Case struct {
	Intent string // what it tries
	Path   string
}

// Refused are paths that name no file.
func Refused() []Case {
	return slices.Concat(traversal(), absolute(), emptySegments(), drives(), backslashes(), controls(), bidirectional(),
		notNFC(), tooLong(), notUTF8(), blanks())
}

// Taken are paths that name a file each: no two of them the same, however alike
// they look, and none of them the one that a decoder, a shell or a file system
// might take it for.
func Taken() []Case {
	return slices.Concat(percent(), ends(), devices(), cases(), wildcards(), shell(), lookalikes(), sizes(), plain())
}

// each makes a case of each path.
func each(intent string, paths ...string) []Case {
	var out []Case
	for _, p := range paths {
		out = append(out, Case{intent, p})
	}
	return out
}

func traversal() (out []Case) {
	for _, dots := range []string{".", ".."} {
		out = append(out, each("traversal", dots, dots+"/x", "a/"+dots, "a/"+dots+"/b", "a/"+dots+"/"+dots+"/b", "a/b/"+dots, dots+"/"+dots, dots+"/a/"+dots)...)
	}
	return append(out, each("traversal",
		"../../../../../../etc/passwd", strings.Repeat("../", 100)+"x", "a/b/c/../../../../x", "../acme/files/x", "./../x", ".././x",
		"../../globex/files/x", "..//x", "../.gitignore", "../.toolbus-sync/index.json", "a/../../.gitignore", "../tmp/state/x")...)
}

func absolute() []Case {
	return each("absolute", "/", "//", "/x", "//x", "///x", "/etc/passwd", "/../x", "/./x", "/a/../../x", "//srv/share/x", "/dev/null", "/proc/self/environ")
}

func emptySegments() []Case {
	return each("empty segment", "", "a/", "a//", "a//b", "a///b", "a/b//", "a//../b", "a/b/")
}

func drives() (out []Case) {
	for _, d := range []string{"A:", "C:", "Z:", "a:", "c:", "z:"} {
		out = append(out, each("drive", d, d+"x", d+"/", d+"/x", d+"..", d+"../x", d+`\x`)...)
	}
	return out
}

func backslashes() []Case {
	return append(each("UNC", `\\srv\share\x`, `\\?\C:\x`, `\\.\pipe\x`, `\\?\UNC\srv\share`, `\??\C:\x`, `\\127.0.0.1\c$\x`),
		each("backslash", `\`, `a\b`, `..\x`, `a\..\..\b`, `\x`, `a\`, `a/..\b`, `.\x`)...)
}

func controls() (out []Case) {
	out = append(out, each("NUL", "\x00", "a\x00", "\x00a", "a\x00b", "a/\x00", "x.txt\x00.png", "..\x00/x", "a/b\x00/../c")...)
	for r := rune(1); r < 0x20; r++ {
		out = append(out, Case{"control character", "a" + string(r) + "b"})
	}
	for r := rune(0x7f); r < 0xa0; r++ {
		out = append(out, Case{"control character", "a" + string(r)})
	}
	return append(out, each("line break", "a\u2028b", "a\u2029b", "a\r\nb", "a\n", "\ra")...)
}

func bidirectional() (out []Case) {
	for _, r := range []rune{0x61c, 0x200e, 0x200f, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069} {
		out = append(out, each("bidirectional control", "a"+string(r)+"gnp.exe", string(r))...)
	}
	return out
}

func notNFC() []Case {
	var out []Case
	for _, composed := range []string{"é", "ü/x", "x/Å", "ñ.txt", "ç", "ö", "ạ̈", "한국", "が", "Ǖ", "ệ", "ặ", "Grüße"} {
		out = append(out, Case{"decomposed", norm.NFD.String(composed)})
	}
	return append(out, each("a second code point for the same character", "\u212b", "\u2126", "\u212a", "\u1fef", "\u0340", "\u0374", "\u037e", "\u0387", "\u2000x", "\u2001x", "\uf900", "\u2329")...)
}

func tooLong() []Case {
	return each("over 1024 bytes", strings.Repeat("x", 1025), strings.Repeat("ä", 513), strings.Repeat("a/", 512)+"aa", strings.Repeat("🙂", 257), strings.Repeat("x", 100_000))
}

func notUTF8() []Case {
	return slices.Concat(
		each("overlong encoding", "\xc0\xae\xc0\xae/x", "\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "a\xc0\x80b", "\xc1\x9c", "..\xc0\xafx"),
		each("surrogate", "\xed\xa0\x80", "\xed\xbf\xbf", "a\xed\xa0\xbd\xed\xb8\x80", "\xed\xae\x80x"),
		each("invalid UTF-8", "\xff", "\xfe", "a\x80", "a\xc3", "\xe2\x82", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "x/\xbf/y", "\xfc", "a\xe2\x82/b"),
		each("replacement character", "\ufffd", "a\ufffdb", "a/\ufffd"),
	)
}

func blanks() (out []Case) {
	for _, r := range []rune{
		' ', 0xa0, 0xad, 0x115f, 0x1160, 0x1680, 0x17b4, 0x180b, 0x180e, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x200b,
		0x200c, 0x200d, 0x202f, 0x205f, 0x2060, 0x2061, 0x2800, 0x3000, 0x3164, 0xfe00, 0xfe0f, 0xfeff, 0xffa0, 0xe0100,
	} {
		s := string(r)
		out = append(out, each(fmt.Sprintf("blank segment of U+%04X", r), s, "a/"+s+"/b", s+s+"/b")...)
	}
	return out
}

func percent() []Case {
	return each("encoded for somebody else", "%2e%2e/x", "%2e", "%2E%2E%2fx", "a%2fb", "%2f", "%5c", "%00", "a%00b", "%c0%ae", "..%2f..%2fx", "%252e", "%", "%zz",
		"&#46;&#46;", "&sol;x", "=2E=2E", "=?utf-8?Q?a?=", "a+b", "u002e", "&amp;", "x;y", "?q=1", "#x", "a?b#c")
}

func ends() []Case {
	return each("dots and spaces at an end", "a.", "a..", "a...", "a ", "a  ", " a", ".a", "..a", "...", "....", ". a", ".. a", "a. .", "a /b", "a./b", " a/ b", "a/b ", ". .", ".. .", "... /x")
}

func devices() (out []Case) {
	names := []string{"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$"}
	for i := range 10 {
		names = append(names, fmt.Sprintf("COM%d", i), fmt.Sprintf("LPT%d", i))
	}
	for _, n := range append(names, "COM¹", "LPT²", "COM³") {
		out = append(out, each("device of DOS", n, strings.ToLower(n)+".txt", "devices/"+n+".tar.gz")...)
	}
	return append(out, each("stream of NTFS", "ab:stream", "x/a:b", "file::$DATA", "a/c:b", "1:x", "$MFT", "$Extend/x")...)
}

func cases() []Case {
	return each("equal but for case", "readme", "README", "ReadMe", "Folder/x", "FOLDER/x", "folder/X", "straße", "STRASSE", "strasse", "ΣΑΣ", "σας", "σασ", "ǆ", "ǅ", "Ǆ", "İ", "i", "I", "ı", "ſ", "s", "S", "ÄÖ", "äö")
}

func wildcards() []Case {
	return each("special to NATS", "*", ">", "a.*", "a.>", "a/*", "*/a", ">/x", "a.b.c", "$O.toolbus_files_acme.M.x", "$JS.API.STREAM.DELETE.x", "$KV/x",
		"_INBOX.x", "toolbus.v1.files.globex.read", "toolbus.v1.>", "*.*.*", ".>", "*.", ">.")
}

func shell() []Case {
	return each("special to a shell, a command or a query", "-rf", "--", "--create", "-", "~", "~/x", "~root/x", "$(id)", "`id`", "${HOME}", "a;b", "a|b", "a&b", "a&&b", "a>b", "a<b",
		"'", `"`, `a"b`, "a'b", "{a,b}", "[a]", "!x", "a*b", "a?", "(a)", "<script>", "' OR 1=1 --", "@x", "@/etc/passwd", "{{.}}", "{}", "null", "true", "0", "[]",
		"<>", ".git/config", ".gitignore", ".toolbus-sync/index.json", ".ssh/authorized_keys", "files/x", "tmp/state/x.json", "config/tenants/globex/files/x")
}

func lookalikes() []Case {
	return append(
		each("looks like another", "paypal", "pаypal", "pɑypal", "ｐaypal", "раураl", "a/b", "a∕b", "a⁄b", "a／b", "a⧸b", "․․/x", "‥/x", "．．/x", "。。/x", "…", "＼x", "a＼b", "﹨x", "C：/x", "Ⅽ:/x",
			"ﬁle", "file", "fіle", "x²", "x2", "x₂", "①", "1", "l", "Ⅰ", "Ι", "І", "O", "Ο", "О", "００", "Å", "A˚", "ä", "å"),
		each("has what cannot be seen", "a\u200bb", "a\u200cb", "a\u200db", "a\u2060b", "a\u00adb", "ab", "a\u034fb", "a\ufe0f", "a\ufe00", "\ufeffa", "a\ufeff", "a\U000e0061", "\u200bpaypal", "paypal\u200b", "x\u00a0y", "x\u2002y", "x y", "x\u3000y",
			"👩\u200d💻", "👩💻", "a\uffffb", "a\ufffeb", "\ufdd0", "\ue000", "\U0010ffff")...)
}

func sizes() []Case {
	return each("long or deep", strings.Repeat("s", 255), strings.Repeat("s", 256), strings.Repeat("s", 300), strings.Repeat("s", 1024), strings.Repeat("ä", 512), strings.Repeat("s", 255)+"/x",
		strings.Repeat("d/", 511)+"dd", strings.Repeat("t", 254)+".", strings.Repeat("🙂", 256), strings.Repeat("l", 238)+"~0123456789abcdef", "x~0123456789abcdef", "x~0123456789abcdef/y")
}

func plain() []Case {
	return append(each("plain", "mitglieder.json", "logs/2026-05.log", "Grüße/日本語/🙂.txt", "thumbnails/1.png"),
		each("a file where others have a folder", "logs", "Folder", "thumbnails")...)
}
