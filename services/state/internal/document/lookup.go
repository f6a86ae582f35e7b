package document

import (
	"bytes"
	"encoding/json"
	"time"
)

// Lookup reads one key of a stored document: what Decode and Get return, but
// what Encode wrote is only skipped through, in a tenth of the time. The value
// is a part of stored.
func Lookup(stored []byte, key string) (value json.RawMessage, found bool, expires time.Time, err error) {
	if value, found, expires, ok := lookup(stored, quote(key)); ok {
		return value, found, expires, nil
	}
	d, expires, err := Decode(stored)
	if err != nil {
		return nil, false, time.Time{}, err
	}
	value, found = d.Get(key)
	return value, found, expires, nil
}

// lookup is Lookup for what Encode wrote; anything else is not ok, or has a
// fault that whoever reads the value will find.
func lookup(stored []byte, quoted string) (value []byte, found bool, expires time.Time, ok bool) {
	const start = len(opening) + len(timeFormat)
	if len(stored) < envelope || string(stored[:len(opening)]) != opening || string(stored[start:start+len(middle)]) != middle {
		return nil, false, expires, false
	}
	expires, err := time.Parse(time.RFC3339, string(stored[len(opening):start]))
	if err != nil {
		return nil, false, expires, false
	}
	rest := stored[start+len(middle):]
	for string(rest) != closing {
		n := skip(rest)
		if n == 0 || n >= len(rest) || rest[0] != '"' || rest[n] != ':' {
			return nil, false, expires, false
		}
		name := rest[:n]
		rest = rest[n+1:]
		if n = skip(rest); n == 0 || rest[0] <= ' ' || rest[n-1] <= ' ' {
			return nil, false, expires, false
		}
		if string(name) == quoted {
			return rest[:n:n], true, expires, true
		}
		if bytes.IndexByte(name, '\\') >= 0 { // it may be the key in another spelling
			return nil, false, expires, false
		}
		if rest = rest[n:]; len(rest) > 0 && rest[0] == ',' {
			rest = rest[1:]
		}
	}
	return nil, false, expires, true
}

// skip is the length of the value that b begins with, 0 for none. It looks for
// the value's end only.
func skip(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			n := skipString(b[i:])
			if n == 0 {
				return 0
			}
			if i += n - 1; depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			} else if depth < 0 {
				return i // a number or a word ended before it
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return 0
}

// skipString is the length of the string that b begins with, 0 when it does not
// end.
func skipString(b []byte) int {
	for i := 1; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return 0
		}
		i += n + 1
		escapes := 0
		for b[i-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
}
