package subject

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const (
	maxName  = 64  // bytes of a tenant, agent, tool or namespace
	maxFree  = 256 // bytes of a chat id or store key
	hexUpper = "0123456789ABCDEF"
)

// CheckName reports whether value is a valid name: ^[A-Za-z0-9_-]{1,64}$.
// Tenants, agents, tools, namespaces and ids that become subject tokens all
// obey it. A bad name is an invalid_request that names the field; it is never
// trimmed, lower-cased or replaced by a default.
func CheckName(field, value string) error {
	switch {
	case value == "":
		return errcode.Field(field, "is required")
	case len(value) > maxName:
		return errcode.Field(field, "is %d bytes long, at most %d are allowed", len(value), maxName)
	}
	for i := range len(value) {
		if c := value[i]; !isAlnum(c) && c != '_' && c != '-' {
			return errcode.Field(field, "%q must match [A-Za-z0-9_-]{1,64}", value)
		}
	}
	return nil
}

// CheckTenant is CheckName for a tenant that a client may use; names that
// start with "_" are reserved.
func CheckTenant(value string) error {
	if err := CheckName("tenant", value); err != nil {
		return err
	}
	if value[0] == '_' {
		return errcode.Field("tenant", "%q: names that start with _ are reserved", value)
	}
	return nil
}

// CheckFree reports whether value is a valid free-form id (chat id, store
// key): 1 to 256 bytes of UTF-8 without control characters.
func CheckFree(field, value string) error {
	switch {
	case value == "":
		return errcode.Field(field, "is required")
	case len(value) > maxFree:
		return errcode.Field(field, "is %d bytes long, at most %d are allowed", len(value), maxFree)
	case !utf8.ValidString(value):
		return errcode.Field(field, "is not valid UTF-8")
	}
	if i := strings.IndexFunc(value, unicode.IsControl); i >= 0 {
		return errcode.Field(field, "has a control character at byte %d", i)
	}
	return nil
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Escape writes a free-form id as one subject token or KV key part: bytes
// outside [A-Za-z0-9-] become =XX (upper-case hex). It is one to one.
func Escape(id string) string {
	n := 0
	for i := range len(id) {
		if c := id[i]; !isAlnum(c) && c != '-' {
			n++
		}
	}
	if n == 0 {
		return id
	}
	b := make([]byte, 0, len(id)+2*n)
	for i := range len(id) {
		if c := id[i]; isAlnum(c) || c == '-' {
			b = append(b, c)
		} else {
			b = append(b, '=', hexUpper[c>>4], hexUpper[c&15])
		}
	}
	return string(b)
}

// Unescape is the inverse of Escape. Anything Escape cannot have written is
// refused, so that one id never has two spellings.
func Unescape(token string) (string, error) {
	b := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		switch {
		case isAlnum(c) || c == '-':
			b = append(b, c)
		case c == '=' && i+2 < len(token):
			hi, lo := strings.IndexByte(hexUpper, token[i+1]), strings.IndexByte(hexUpper, token[i+2])
			if hi < 0 || lo < 0 {
				return "", errcode.New(errcode.InvalidRequest, "%q is not an escaped id", token)
			}
			d := byte(hi<<4 | lo)
			if isAlnum(d) || d == '-' {
				return "", errcode.New(errcode.InvalidRequest, "%q escapes a plain character", token)
			}
			b = append(b, d)
			i += 2
		default:
			return "", errcode.New(errcode.InvalidRequest, "%q is not an escaped id", token)
		}
	}
	return string(b), nil
}
