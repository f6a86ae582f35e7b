package tooltest

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const maxPath = 1024 // bytes

// checkPath refuses what files.CheckPath refuses, for the same reasons. That
// one stands in a package with a transport, so the rules are here a second
// time; a test holds the two together.
func checkPath(path string) error {
	if path == "" {
		return errcode.Field("path", "is required")
	}
	if err := checkPathText("path", path); err != nil {
		return err
	}
	for seg := range strings.SplitSeq(path, "/") {
		switch {
		case seg == "":
			return errcode.Field("path", "%q must be relative, without empty segments", path)
		case seg == "." || seg == "..":
			return errcode.Field("path", "%q must not have the segment %q", path, seg)
		case strings.IndexFunc(seg, visible) < 0:
			return errcode.Field("path", "%q has a blank segment", path)
		}
	}
	return nil
}

// checkPrefix refuses what cannot start a path; "" starts every path.
func checkPrefix(prefix string) error {
	if err := checkPathText("prefix", prefix); err != nil {
		return err
	}
	if strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") {
		return errcode.Field("prefix", "%q must be relative, without empty segments", prefix)
	}
	return nil
}

func checkPathText(field, s string) error {
	switch {
	case len(s) > maxPath:
		return errcode.Field(field, "is %d bytes long, at most %d are allowed", len(s), maxPath)
	case !utf8.ValidString(s):
		return errcode.Field(field, "is not valid UTF-8")
	case strings.ContainsRune(s, '\\'):
		return errcode.Field(field, "%q has a backslash; segments are separated by /", s)
	case len(s) >= 2 && s[1] == ':' && (s[0]|0x20) >= 'a' && (s[0]|0x20) <= 'z':
		return errcode.Field(field, "%q must not name a drive", s)
	case !norm.NFC.IsNormalString(s):
		return errcode.Field(field, "%q is not in Unicode normalization form NFC", s)
	case strings.IndexFunc(s, hidden) >= 0:
		return errcode.Field(field, "%q has a control character", s)
	}
	return nil
}

func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

func visible(r rune) bool {
	return !unicode.IsSpace(r) && r != '\u2800' && !unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}
