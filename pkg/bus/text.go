package bus

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// maxDepth limits how deep a body's objects and arrays nest. It is well below
// what JSON readers stop at (1,000 in some languages, 10,000 in Go): what is
// taken stays readable with what it is stored and answered in around it.
const maxDepth = 512

// maxField is the longest name of a field, in bytes, that an error repeats.
const maxField = 64

// CheckText says what keeps a JSON text from meaning the same to everybody, and
// in which field of the outermost object, when it is in one; "" for nothing:
// bytes that are not UTF-8 and halves of surrogate pairs, which decoders
// replace, so that two names would become one; objects and arrays nested deeper
// than depth. Whether it is JSON at all is the decoder's business.
func CheckText(data []byte, depth int) (field, fault string) {
	valid := validPrefix(data)
	var key, str []byte // the field, and the last string that ended beside it
	level, start := 0, -1
	for i := 0; i < valid; i++ {
		switch c := data[i]; {
		case c == '"' && start < 0:
			start = i + 1
		case c == '"':
			if level == 1 {
				str = data[start:i]
			}
			start = -1
		case start >= 0 && c == '\\':
			n := escaped(data[i:])
			if n == 0 {
				return string(key), fmt.Sprintf("has half a surrogate pair at byte %d", i)
			}
			i += n - 1
		case start >= 0:
		case c == ':' && level == 1:
			key = str
		case c == ',' && level == 1:
			key = nil
		case c == '{' || c == '[':
			if level++; level > depth {
				return string(key), fmt.Sprintf("nests deeper than %d levels", depth)
			}
		case c == '}' || c == ']':
			level--
		}
	}
	if valid < len(data) {
		return string(key), fmt.Sprintf("is not valid UTF-8 at byte %d", valid)
	}
	return "", ""
}

// validPrefix is how much of data is UTF-8.
func validPrefix(data []byte) int {
	if utf8.Valid(data) {
		return len(data)
	}
	i := 0
	for {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
}

// escaped is the length of the escape that b begins with, both halves of a
// surrogate pair together; 0 for a half alone.
func escaped(b []byte) int {
	r, ok := unicodeEscape(b)
	switch {
	case !ok:
		return 2 // \n, \\, or no escape at all
	case r < 0xd800 || r > 0xdfff:
		return 6
	case r < 0xdc00:
		if low, ok := unicodeEscape(b[6:]); ok && low >= 0xdc00 && low <= 0xdfff {
			return 12
		}
	}
	return 0
}

// unicodeEscape reads a \uXXXX.
func unicodeEscape(b []byte) (uint64, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	return r, err == nil
}
