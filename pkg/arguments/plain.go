package arguments

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/jsontext"
)

// plain checks arguments against the schemas that most tools have, in one pass over
// the text. It only ever says that they fit as they are; what it is not sure of, and
// what has defaults to fill in, is left to the full validator, which also says what
// is wrong.
type plain struct {
	types    types // 0: any
	props    map[string]property
	required uint64 // bits of props
	defaults uint64 // bits of props that are filled in
	closed   bool   // no other properties
	items    *plain
	enum     []string
	length   bounds // of a string, in characters
	count    bounds // of an array's items
	value    bounds // of a number
}

type property struct {
	bit    uint64
	schema *plain
}

type bounds struct{ least, most float64 }

var unbounded = bounds{math.Inf(-1), math.Inf(1)}

func (b bounds) hold(v float64) bool { return b.least <= v && v <= b.most }

type types uint8

const (
	isObject types = 1 << iota
	isArray
	isString
	isInteger
	isNumber
	isBoolean
	isNull
)

var typeNames = map[string]types{
	"object": isObject, "array": isArray, "string": isString, "integer": isInteger, "number": isNumber | isInteger,
	"boolean": isBoolean, "null": isNull,
}

// newPlain is nil for a schema that takes the full validator.
func newPlain(schema any) *plain {
	if schema == true {
		return &plain{length: unbounded, count: unbounded, value: unbounded}
	}
	s, ok := schema.(map[string]any)
	if !ok {
		return nil
	}
	p := &plain{length: unbounded, count: unbounded, value: unbounded}
	for keyword, v := range s {
		ok := true
		switch keyword {
		case "title", "description", "default", "examples", "$comment", "deprecated":
		case "type":
			ok = p.setTypes(v)
		case "properties":
			ok = p.setProperties(v)
		case "required": // once the properties are known
		case "additionalProperties":
			var open bool
			open, ok = v.(bool)
			p.closed = ok && !open
		case "items":
			p.items = newPlain(v)
			ok = p.items != nil
		case "enum":
			p.enum, ok = texts(v)
		case "minLength":
			ok = number(v, &p.length.least)
		case "maxLength":
			ok = number(v, &p.length.most)
		case "minItems":
			ok = number(v, &p.count.least)
		case "maxItems":
			ok = number(v, &p.count.most)
		case "minimum":
			ok = number(v, &p.value.least)
		case "maximum":
			ok = number(v, &p.value.most)
		default:
			ok = false
		}
		if !ok {
			return nil
		}
	}
	if required, ok := s["required"]; ok {
		names, ok := texts(required)
		for _, name := range names {
			prop, known := p.props[name]
			ok = ok && known
			p.required |= prop.bit
		}
		if !ok {
			return nil
		}
	}
	return p
}

func (p *plain) setTypes(v any) bool {
	names := []string{}
	if one, ok := v.(string); ok {
		names = append(names, one)
	} else if names, ok = texts(v); !ok {
		return false
	}
	for _, name := range names {
		if typeNames[name] == 0 {
			return false
		}
		p.types |= typeNames[name]
	}
	return p.types != 0
}

func (p *plain) setProperties(v any) bool {
	props, ok := v.(map[string]any)
	if !ok || len(props) > 64 {
		return false
	}
	p.props = make(map[string]property, len(props))
	for name, schema := range props {
		child := property{1 << len(p.props), newPlain(schema)}
		if child.schema == nil {
			return false
		}
		if s, ok := schema.(map[string]any); ok {
			if _, ok := s["default"]; ok {
				p.defaults |= child.bit
			}
		}
		p.props[name] = child
	}
	return true
}

func texts(v any) ([]string, bool) {
	list, ok := v.([]any)
	out := make([]string, 0, len(list))
	for _, e := range list {
		s, isText := e.(string)
		ok = ok && isText
		out = append(out, s)
	}
	return out, ok
}

func number(v any, to *float64) bool {
	n, ok := v.(json.Number)
	if !ok || len(n) > 15 {
		return false
	}
	f, err := n.Float64()
	*to = f
	return err == nil
}

// fits tells that args are an object that fits the schema as it is.
func (p *plain) fits(args []byte) bool {
	end, ok := p.check(args, jsontext.Space(args, 0), 0)
	return ok && p.types == isObject && jsontext.Space(args, end) == len(args)
}

// check passes over a value that fits.
func (p *plain) check(b []byte, i, depth int) (end int, ok bool) {
	if i >= len(b) || depth > jsontext.MaxDepth {
		return i, false
	}
	is := func(t types) bool { return p.types == 0 || p.types&t != 0 }
	switch c := b[i]; c {
	case '{':
		if !is(isObject) || p.enum != nil {
			return i, false
		}
		return p.object(b, i, depth)
	case '[':
		if !is(isArray) || p.enum != nil {
			return i, false
		}
		return p.array(b, i, depth)
	case '"':
		if !is(isString) {
			return i, false
		}
		return p.text(b, i)
	case 't', 'f':
		_, end, ok = jsontext.Bool(b, i)
		return end, ok && is(isBoolean) && p.enum == nil
	case 'n':
		end, _, ok = jsontext.Skip(b, i)
		return end, ok && is(isNull) && p.enum == nil
	}
	end, whole, ok := jsontext.Number(b, i)
	if !ok || p.enum != nil || !is(isNumber) && !(whole && is(isInteger)) {
		return end, false
	}
	if p.value != unbounded {
		f, err := strconv.ParseFloat(string(b[i:end]), 64)
		if err != nil || end-i > 15 || !p.value.hold(f) {
			return end, false
		}
	}
	return end, true
}

func (p *plain) object(b []byte, i, depth int) (end int, ok bool) {
	var seen uint64
	end, ok = jsontext.Fields(b, i, func(name []byte, i int) (end int, ok bool) {
		prop, known := p.props[string(name)]
		switch {
		case known && seen&prop.bit == 0: // twice, and the last one counts
			seen |= prop.bit
			return prop.schema.check(b, i, depth+1)
		case known || p.closed:
			return i, false
		}
		end, _, ok = jsontext.Skip(b, i)
		return end, ok
	})
	return end, ok && seen&p.required == p.required && seen&p.defaults == p.defaults
}

func (p *plain) array(b []byte, i, depth int) (end int, ok bool) {
	n := 0
	if i = jsontext.Space(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1, p.count.hold(0)
	}
	for {
		if p.items != nil {
			i, ok = p.items.check(b, i, depth+1)
		} else {
			i, _, ok = jsontext.Skip(b, i)
		}
		if n++; !ok {
			return i, false
		}
		i = jsontext.Space(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = jsontext.Space(b, i+1)
		case i < len(b) && b[i] == ']':
			return i + 1, p.count.hold(float64(n))
		default:
			return i, false
		}
	}
}

func (p *plain) text(b []byte, i int) (end int, ok bool) {
	end, escaped, ok := jsontext.Span(b, i)
	if !ok || p.enum == nil && p.length == unbounded {
		return end, ok
	}
	if escaped {
		return end, false
	}
	s := b[i+1 : end-1]
	if p.enum != nil && !slices.Contains(p.enum, string(s)) {
		return end, false
	}
	return end, p.length.hold(float64(utf8.RuneCount(s)))
}
