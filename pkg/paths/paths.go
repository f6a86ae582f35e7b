// Package paths has the rules for the paths of a tenant's files. Whoever takes a
// path checks it here: the service, its clients, the mirror and the in-memory
// files of tooltest. It imports no transport.
package paths

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Max is the longest path, in bytes.
const Max = 1024

// Check reports whether path names a file: relative, "/"-separated, valid
// UTF-8 in NFC, 1 to Max bytes; no empty, blank, "." or ".." segment, no
// control, bidirectional-control or replacement character, no backslash, no
// drive ("C:").
// Anything else is an invalid_request that names the field path. It is never
// repaired, so that one file has one spelling.
func Check(path string) error {
	if path == "" {
		return errcode.Field("path", "is required")
	}
	if err := checkText("path", path); err != nil {
		return err
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "":
			return errcode.Field("path", "%q must be relative, without empty segments", path)
		case segment == "." || segment == "..":
			return errcode.Field("path", "%q must not have the segment %q", path, segment)
		case blank(segment):
			return errcode.Field("path", "%q has a blank segment", path)
		}
	}
	return nil
}

// CheckPrefix reports whether prefix may start a path; "" starts every path. Its
// last segment may be any beginning of one, "." and ".." too.
func CheckPrefix(prefix string) error {
	if err := checkText("prefix", prefix); err != nil {
		return err
	}
	if strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") {
		return errcode.Field("prefix", "%q must be relative, without empty segments", prefix)
	}
	whole := strings.Split(prefix, "/")
	for _, segment := range whole[:len(whole)-1] {
		switch {
		case segment == "." || segment == "..":
			return errcode.Field("prefix", "%q must not have the segment %q", prefix, segment)
		case blank(segment):
			return errcode.Field("prefix", "%q has a blank segment", prefix)
		}
	}
	return nil
}

func checkText(field, s string) error {
	switch {
	case len(s) > Max:
		return errcode.Field(field, "is %d bytes long, at most %d are allowed", len(s), Max)
	case !utf8.ValidString(s):
		return errcode.Field(field, "is not valid UTF-8")
	case strings.ContainsRune(s, '\\'):
		return errcode.Field(field, "%q must use /, not \\", s)
	case len(s) >= 2 && s[1] == ':' && asciiLetter(s[0]):
		return errcode.Field(field, "%q must not name a drive", s)
	case !norm.NFC.IsNormalString(s):
		return errcode.Field(field, "%q is not in Unicode normalization form NFC", s)
	}
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			// What JSON decoders make of bytes and surrogates that are no character.
			return errcode.Field(field, "has a replacement character at byte %d", i)
		case unicode.IsControl(r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r):
			return errcode.Field(field, "has a control character at byte %d", i)
		case unicode.Is(unicode.Bidi_Control, r):
			return errcode.Field(field, "has a bidirectional control character at byte %d", i)
		}
	}
	return nil
}

// blank tells whether nothing of s can be seen.
func blank(s string) bool {
	for _, r := range s {
		if !unicode.IsSpace(r) && r != '\u2800' && !unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
			return false
		}
	}
	return true
}

func asciiLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
