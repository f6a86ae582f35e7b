// Package document is a ToolState document in memory: the operations on its
// data, its limits, and its stored form, exactly
//
//	{"expires_at":"2026-05-05T14:00:00.000Z","data":{…}}
//
// Values stay the JSON text they came as (white space apart), so numbers keep
// every digit. It knows nothing of time, revisions or NATS.
package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/decimal"
)

// timeFormat is RFC 3339 in UTC to the millisecond; always 24 bytes.
const timeFormat = "2006-01-02T15:04:05.000Z"

// FormatTime writes a time as documents and replies do.
func FormatTime(t time.Time) string { return t.UTC().Format(timeFormat) }

const (
	opening  = `{"expires_at":"`
	middle   = `","data":{`
	closing  = `}}`
	envelope = len(opening) + len(timeFormat) + len(middle) + len(closing)
)

// Limits bound a document.
type Limits struct {
	Bytes int64 // of its stored form
	Keys  int
}

// Document is a document's data. The zero Document is empty. Each operation
// changes all it should or, with an error, nothing. Not safe for concurrent
// use.
type Document struct {
	values map[string]*value
	size   int // of the members' stored form, with a comma each
}

// value is a member: its text, or, once something was appended, the elements of
// its array, so that a run of appends does not parse it again and again.
type value struct {
	raw   json.RawMessage
	isArr bool
	list  []json.RawMessage
	bytes int                 // of list's stored form
	seen  map[string]struct{} // canonical elements, for unique appends; nil until needed
}

func (v *value) size() int {
	if v.isArr {
		return v.bytes
	}
	return len(v.raw)
}

func (v *value) text() json.RawMessage {
	if !v.isArr {
		return v.raw
	}
	b := make([]byte, 0, v.bytes)
	return v.append(b)
}

func (v *value) append(b []byte) []byte {
	if !v.isArr {
		return append(b, v.raw...)
	}
	b = append(b, '[')
	for i, e := range v.list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e...)
	}
	return append(b, ']')
}

// Decode reads a stored document.
func Decode(stored []byte) (Document, time.Time, error) {
	var m message.ToolStateDocument
	if err := json.Unmarshal(stored, &m); err != nil {
		return Document{}, time.Time{}, fmt.Errorf("unreadable document: %w", err)
	}
	expires, err := time.Parse(time.RFC3339, m.ExpiresAt)
	if err != nil {
		return Document{}, time.Time{}, fmt.Errorf("unreadable expires_at: %w", err)
	}
	var d Document
	for k, v := range m.Data {
		d.put(k, &value{raw: v})
	}
	return d, expires, nil
}

// Encode is the stored form.
func (d *Document) Encode(expires time.Time) []byte {
	b := make([]byte, 0, envelope+d.size)
	b = append(b, opening...)
	b = expires.UTC().AppendFormat(b, timeFormat)
	b = append(b, middle...)
	for i, k := range slices.Sorted(maps.Keys(d.values)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, quote(k)...)
		b = append(b, ':')
		b = d.values[k].append(b)
	}
	return append(b, closing...)
}

// Len is the number of keys.
func (d *Document) Len() int { return len(d.values) }

// Get returns a key's value.
func (d *Document) Get(key string) (json.RawMessage, bool) {
	v := d.values[key]
	if v == nil {
		return nil, false
	}
	return v.text(), true
}

// All returns every value; never nil.
func (d *Document) All() map[string]json.RawMessage {
	all := make(map[string]json.RawMessage, len(d.values))
	for k, v := range d.values {
		all[k] = v.text()
	}
	return all
}

// Update sets and deletes keys in one step and returns how many deleted keys
// were there.
func (d *Document) Update(set map[string]json.RawMessage, del []string, lim Limits) (deleted int, err error) {
	size, keys := d.size, len(d.values)
	gone := make(map[string]bool, len(del))
	for _, k := range del {
		if v := d.values[k]; v != nil && !gone[k] {
			gone[k] = true
			size -= member(k, v.size())
			keys--
		}
	}
	fresh := make(map[string]*value, len(set))
	for k, raw := range set {
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return 0, errcode.Field(k, "is not valid JSON: %v", err)
		}
		fresh[k] = &value{raw: b.Bytes()}
		if old := d.values[k]; old != nil && !gone[k] {
			size -= member(k, old.size())
		} else {
			keys++
		}
		size += member(k, b.Len())
	}
	if err := lim.check(size, keys, len(d.values), d.size); err != nil {
		return 0, err
	}
	for k := range gone {
		d.drop(k)
	}
	for k, v := range fresh {
		d.put(k, v)
	}
	return len(gone), nil
}

// Append adds values to the end of an array and returns its length. unique
// leaves out those whose JSON value is there already: key order, white space
// and the spelling of numbers and strings do not count. It takes time in
// proportion to the values, and stops at the first that is too much.
func (d *Document) Append(key string, values []json.RawMessage, unique bool, lim Limits) (int, error) {
	old := d.values[key]
	cur, err := old.array()
	if err != nil {
		return 0, errcode.Field("key", "%q %v", key, err)
	}
	if unique && cur.seen == nil {
		cur.seen = make(map[string]struct{}, len(cur.list))
		for _, e := range cur.list {
			cur.seen[canonical(e)] = struct{}{}
		}
	}
	total, keys := d.size+member(key, cur.bytes), len(d.values)
	if old != nil {
		total -= member(key, old.size())
	} else {
		keys++
	}
	var add []json.RawMessage
	marks := make(map[string]struct{}) // of add
	size := cur.bytes
	for _, raw := range values {
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return 0, errcode.Field("values", "is not valid JSON: %v", err)
		}
		if cur.seen != nil {
			mark := canonical(b.Bytes())
			_, there := cur.seen[mark]
			_, twice := marks[mark]
			if unique && (there || twice) {
				continue
			}
			marks[mark] = struct{}{}
		}
		if len(cur.list)+len(add) > 0 {
			size++
		}
		size += b.Len()
		if unique { // comparing is dear: no more than what may stay
			if err := lim.check(total+size-cur.bytes, keys, len(d.values), d.size); err != nil {
				return 0, err
			}
		}
		add = append(add, b.Bytes())
	}
	total += size - cur.bytes
	if err := lim.check(total, keys, len(d.values), d.size); err != nil {
		return 0, err
	}
	cur.list = append(cur.list, add...)
	if cur.seen != nil {
		maps.Copy(cur.seen, marks)
	}
	if old != nil {
		d.size -= member(key, old.size())
	}
	cur.bytes = size
	if d.values == nil {
		d.values = make(map[string]*value)
	}
	d.values[key] = cur
	d.size += member(key, size)
	return len(cur.list), nil
}

// Increment adds by to a number, exactly, and returns the sum.
func (d *Document) Increment(key string, by json.Number, lim Limits) (string, error) {
	cur := "0"
	if v := d.values[key]; v != nil {
		if cur = string(v.text()); !isNumber(cur) {
			return "", errcode.Field("key", "%q holds %s, not a number", key, kind(cur))
		}
	}
	sum, err := decimal.Add(cur, by.String())
	if err != nil {
		return "", errcode.Field("key", "%q cannot be incremented by %.40s: %v", key, by, err)
	}
	_, err = d.Update(map[string]json.RawMessage{key: json.RawMessage(sum)}, nil, lim)
	return sum, err
}

func (v *value) array() (*value, error) {
	switch {
	case v == nil:
		return &value{isArr: true, bytes: 2}, nil
	case v.isArr:
		return v, nil
	}
	if k := kind(string(v.raw)); k != "an array" {
		return nil, fmt.Errorf("holds %s, not an array", k)
	}
	a := &value{isArr: true, bytes: len(v.raw)}
	if err := json.Unmarshal(v.raw, &a.list); err != nil {
		return nil, err
	}
	return a, nil
}

func (d *Document) put(key string, v *value) {
	d.drop(key)
	if d.values == nil {
		d.values = make(map[string]*value)
	}
	d.values[key] = v
	d.size += member(key, v.size())
}

func (d *Document) drop(key string) {
	if v := d.values[key]; v != nil {
		d.size -= member(key, v.size())
		delete(d.values, key)
	}
}

// member is what a key and its value take: the quoted key, a colon, the value
// and a comma.
func member(key string, size int) int { return len(quote(key)) + 1 + size + 1 }

// check refuses what is over a limit, unless it shrinks: a limit that was
// lowered must not keep anyone from tidying up.
func (l Limits) check(size, keys, oldKeys, oldSize int) error {
	if keys > l.Keys && keys > oldKeys {
		return errcode.OverLimit(errcode.TooLarge, int64(l.Keys), int64(keys), "the document would have %d keys, at most %d are allowed", keys, l.Keys)
	}
	total := int64(envelope + size)
	if keys > 0 {
		total-- // the last member has no comma
	}
	if total > l.Bytes && size > oldSize {
		return errcode.OverLimit(errcode.TooLarge, l.Bytes, total, "the document would have %d bytes, at most %d are allowed", total, l.Bytes)
	}
	return nil
}

// quote writes a key as a JSON string. Our own keys have no control
// characters; whatever else stands in a document still comes out valid.
func quote(key string) string {
	plain := strings.IndexFunc(key, func(r rune) bool {
		return r == '"' || r == '\\' || r == unicode.ReplacementChar || unicode.IsControl(r)
	}) < 0
	if plain {
		return `"` + key + `"`
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(key) // a string always has a JSON form
	return strings.TrimSuffix(b.String(), "\n")
}

// canonical is equal for equal JSON values.
func canonical(raw json.RawMessage) string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return string(raw)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(normal(v)); err != nil {
		return string(raw)
	}
	return b.String()
}

func normal(v any) any {
	switch x := v.(type) {
	case json.Number:
		if s, err := decimal.Normalize(x.String()); err == nil {
			return json.Number(s)
		}
	case []any:
		for i := range x {
			x[i] = normal(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = normal(x[k])
		}
	}
	return v
}

func isNumber(raw string) bool {
	return raw != "" && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

func kind(raw string) string {
	if isNumber(raw) {
		return "a number"
	}
	if raw != "" {
		switch raw[0] {
		case '"':
			return "a string"
		case '[':
			return "an array"
		case '{':
			return "an object"
		case 't', 'f':
			return "true or false"
		}
	}
	return "null"
}
