package jsontext

import (
	"strconv"
	"unicode/utf8"
)

// MaxDepth is how deep plain text nests at most.
const MaxDepth = 64

// Space returns the position of the first byte from i on that is no white space.
func Space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// Span passes over the string that begins at b[i] and returns the position
// behind it. escaped tells whether there are escapes in it.
func Span(b []byte, i int) (end int, escaped, ok bool) {
	if i >= len(b) || b[i] != '"' {
		return i, false, false
	}
	ascii := true
	start := i + 1
	for i = start; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped, ascii || utf8.Valid(b[start:i])
		case c == '\\':
			n := escape(b[i:])
			if n == 0 {
				return i, true, false
			}
			escaped = true
			i += n - 1
		case c < ' ':
			return i, escaped, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return i, escaped, false
}

// escape is the length of the escape that b begins with, 0 for none that is plain.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if r, ok := unicode(b); ok && (r < 0xd800 || r > 0xdfff) {
			return 6
		}
	}
	return 0
}

// unicode reads a \uXXXX.
func unicode(b []byte) (r rune, ok bool) {
	if len(b) < 6 {
		return 0, false
	}
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// String reads the string that begins at b[i].
func String(b []byte, i int) (s string, end int, ok bool) {
	end, escaped, ok := Span(b, i)
	if !ok {
		return "", end, false
	}
	in := b[i+1 : end-1]
	if !escaped {
		return string(in), end, true
	}
	return string(unescape(make([]byte, 0, len(in)), in)), end, true
}

// unescape appends what the inside of a plain string stands for.
func unescape(dst, in []byte) []byte {
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' {
			dst = append(dst, in[i])
			continue
		}
		i++
		switch c := in[i]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, _ := unicode(in[i-1:])
			dst = utf8.AppendRune(dst, r)
			i += 4
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// Int reads the whole number that begins at b[i], of at most 18 digits and without
// fraction or exponent.
func Int(b []byte, i int) (n int64, end int, ok bool) {
	end, whole, ok := Number(b, i)
	if !ok || !whole || end-i > 18 {
		return 0, end, false
	}
	n, err := strconv.ParseInt(string(b[i:end]), 10, 64)
	return n, end, err == nil
}

// Number passes over the number that begins at b[i]. whole tells that it has
// neither fraction nor exponent.
func Number(b []byte, i int) (end int, whole, ok bool) {
	digits := func() bool {
		from := i
		for i < len(b) && '0' <= b[i] && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	zero := i < len(b) && b[i] == '0'
	from := i
	if !digits() || zero && i > from+1 {
		return i, false, false
	}
	whole = true
	if i < len(b) && b[i] == '.' {
		i++
		if whole = false; !digits() {
			return i, false, false
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if whole = false; !digits() {
			return i, false, false
		}
	}
	return i, whole, true
}

// Bool reads true or false.
func Bool(b []byte, i int) (v bool, end int, ok bool) {
	switch {
	case literal(b, i, "true"):
		return true, i + 4, true
	case literal(b, i, "false"):
		return false, i + 5, true
	}
	return false, i, false
}

func literal(b []byte, i int, word string) bool {
	return len(b)-i >= len(word) && string(b[i:i+len(word)]) == word
}

// Skip passes over the value that begins at b[i], whatever it is. compact tells
// that there is no white space in it beside its strings.
func Skip(b []byte, i int) (end int, compact, ok bool) {
	s := skipper{b: b, i: i}
	ok = s.value(0)
	return s.i, !s.spaced, ok
}

type skipper struct {
	b      []byte
	i      int
	spaced bool
}

func (s *skipper) space() {
	from := s.i
	if s.i = Space(s.b, s.i); s.i > from {
		s.spaced = true
	}
}

// next tells whether c comes next, and passes over it.
func (s *skipper) next(c byte) bool {
	if s.space(); s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *skipper) value(depth int) (ok bool) {
	if s.i >= len(s.b) || depth > MaxDepth {
		return false
	}
	switch c := s.b[s.i]; c {
	case '"':
		s.i, _, ok = Span(s.b, s.i)
		return ok
	case '{', '[':
		s.i++
		end := c + 2 // } or ]
		if s.next(end) {
			return true
		}
		for {
			s.space()
			if c == '{' {
				if s.i, _, ok = Span(s.b, s.i); !ok || !s.next(':') {
					return false
				}
				s.space()
			}
			if !s.value(depth + 1) {
				return false
			}
			if s.next(end) {
				return true
			}
			if !s.next(',') {
				return false
			}
		}
	case 't', 'f':
		_, s.i, ok = Bool(s.b, s.i)
		return ok
	case 'n':
		ok = literal(s.b, s.i, "null")
		s.i += 4
		return ok
	}
	s.i, _, ok = Number(s.b, s.i)
	return ok
}

// Object reads the object that is all of b: field is called with each name, which
// is only valid during the call, and the position of its value, and returns the
// position behind it. Names with escapes are not ok.
func Object(b []byte, field func(name []byte, i int) (end int, ok bool)) bool {
	end, ok := Fields(b, Space(b, 0), field)
	return ok && Space(b, end) == len(b)
}

// Fields is Object for an object that begins at b[i]; it returns the position
// behind it.
func Fields(b []byte, i int, field func(name []byte, i int) (end int, ok bool)) (end int, ok bool) {
	if i >= len(b) || b[i] != '{' {
		return i, false
	}
	if i = Space(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, true
	}
	for {
		start := i
		var escaped bool
		if i, escaped, ok = Span(b, i); !ok || escaped {
			return i, false
		}
		name := b[start+1 : i-1]
		if i = Space(b, i); i >= len(b) || b[i] != ':' {
			return i, false
		}
		if i, ok = field(name, Space(b, i+1)); !ok {
			return i, false
		}
		i = Space(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = Space(b, i+1)
		case i < len(b) && b[i] == '}':
			return i + 1, true
		default:
			return i, false
		}
	}
}

// AppendString appends s as encoding/json writes it without escaping HTML; not ok
// when that takes more than the usual escapes.
func AppendString(dst []byte, s string) ([]byte, bool) {
	dst = append(dst, '"')
	from := 0
	ascii := true
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= utf8.RuneSelf {
			ascii = false
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			return dst, false
		}
	}
	dst = append(dst, s[from:]...)
	if !ascii && !wide(s) {
		return dst, false
	}
	return append(dst, '"'), true
}

// wide tells whether s is UTF-8 in which nothing is escaped.
func wide(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for i := 0; i+2 < len(s); i++ {
		if s[i] == 0xe2 && s[i+1] == 0x80 && s[i+2]&^1 == 0xa8 { // U+2028 and U+2029
			return false
		}
	}
	return true
}
