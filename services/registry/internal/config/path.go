package config

import (
	"strconv"
	"strings"
)

// path leads to a value: agents[0].tools.Mail.password. Keys that are not
// plain words are quoted: tools["a.b"].
type path []step

type step struct {
	name    string
	i       int
	isIndex bool
}

func (p path) key(k string) path { return append(p[:len(p):len(p)], step{name: k}) }
func (p path) index(i int) path  { return append(p[:len(p):len(p)], step{i: i, isIndex: true}) }
func (p path) String() string {
	var b strings.Builder
	for _, s := range p {
		switch {
		case s.isIndex:
			b.WriteString("[" + strconv.Itoa(s.i) + "]")
		case plain(s.name):
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.name)
		default:
			b.WriteString("[" + quote(s.name) + "]")
		}
	}
	return b.String()
}

// locate turns a validator's location into a path: whether a token is a key or
// an index depends on the document.
func locate(doc any, tokens []string) path {
	var p path
	for _, t := range tokens {
		switch v := doc.(type) {
		case []any:
			i, err := strconv.Atoi(t)
			if err != nil || i < 0 || i >= len(v) {
				return p
			}
			p, doc = p.index(i), v[i]
		case map[string]any:
			p, doc = p.key(t), v[t]
		default:
			return p
		}
	}
	return p
}

// value is what the path leads to in doc, or nil.
func (p path) value(doc any) any {
	for _, s := range p {
		switch v := doc.(type) {
		case []any:
			if !s.isIndex || s.i >= len(v) {
				return nil
			}
			doc = v[s.i]
		case map[string]any:
			doc = v[s.name]
		default:
			return nil
		}
	}
	return doc
}

func plain(k string) bool {
	if k == "" || len(k) > 64 {
		return false
	}
	for i := range len(k) {
		c := k[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '$' {
			return false
		}
	}
	return true
}

// quote quotes a piece of the document, cut when it is long.
func quote(s string) string {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "…"
	}
	return strconv.Quote(s)
}
