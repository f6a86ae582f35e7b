package tooltest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/toolbus/toolbus/contracts/message"
)

// unknownField is a name that no schema has.
const unknownField = "tooltestUnknownField"

// schemaNode is the part of a JSON Schema that samples are made from.
type schemaNode struct {
	Type       any                   `json:"type"`
	Properties map[string]schemaNode `json:"properties"`
	Required   []string              `json:"required"`
	Items      *schemaNode           `json:"items"`
	Enum       []json.RawMessage     `json:"enum"`
	Const      json.RawMessage       `json:"const"`
	Default    json.RawMessage       `json:"default"`
	Minimum    json.RawMessage       `json:"minimum"`
	MinLength  int                   `json:"minLength"`
	MinItems   int                   `json:"minItems"`
}

func parseSchema(schema json.RawMessage) schemaNode {
	var n schemaNode
	_ = json.Unmarshal(schema, &n) // as far as it goes: the compiler reports what is wrong
	return n
}

func (n schemaNode) is(kind string) bool {
	switch t := n.Type.(type) {
	case string:
		return t == kind
	case []any:
		return slices.Contains(t, any(kind))
	}
	return false
}

// madeUp are arguments that should fit: the required ones only, and all.
func madeUp(schema json.RawMessage) []json.RawMessage {
	n := parseSchema(schema)
	least, most := n.sample(false), n.sample(true)
	if string(least) == string(most) {
		return []json.RawMessage{least}
	}
	return []json.RawMessage{least, most}
}

// sample is a value that fits the node, as far as it understands the node.
func (n schemaNode) sample(all bool) json.RawMessage {
	switch {
	case len(n.Const) > 0:
		return n.Const
	case len(n.Enum) > 0:
		return n.Enum[0]
	case len(n.Default) > 0:
		return n.Default
	case n.is("object"):
		m := map[string]json.RawMessage{}
		for name, p := range n.Properties {
			if all || slices.Contains(n.Required, name) {
				m[name] = p.sample(all)
			}
		}
		return mustValue(m)
	case n.is("array"):
		list := []json.RawMessage{}
		if n.Items != nil {
			for range max(n.MinItems, 1) {
				list = append(list, n.Items.sample(all))
			}
		}
		return mustValue(list)
	case n.is("integer"), n.is("number"):
		if len(n.Minimum) > 0 {
			return n.Minimum
		}
		return json.RawMessage(`1`)
	case n.is("boolean"):
		return json.RawMessage(`true`)
	}
	return mustValue(strings.Repeat("x", max(n.MinLength, 1)))
}

// opensFields tells whether the schema says itself what becomes of fields it
// does not list, and does not refuse them.
func opensFields(schema json.RawMessage) bool {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(schema, &m)
	for _, k := range []string{"additionalProperties", "unevaluatedProperties", "patternProperties"} {
		if v, ok := m[k]; ok && string(v) != "false" {
			return true
		}
	}
	return false
}

// faulty are arguments most of which do not fit.
func faulty(schema json.RawMessage, examples []json.RawMessage) []json.RawMessage {
	bad := raws("", "null", "{}", "[]", "[{}]", `"text"`, "5", "true", "{", `{"a":1}{"b":2}`)
	props := slices.Sorted(maps.Keys(parseSchema(schema).Properties))
	for _, ex := range examples {
		bad = append(bad, with(ex, unknownField, json.RawMessage(`"x"`)))
		for _, p := range props {
			bad = append(bad, with(ex, p, nil))
			for _, v := range raws("null", "true", "-1", "0.5", "1e300", `"text"`, "[]", "[null]", "{}", `{"a":{"b":[1]}}`) {
				bad = append(bad, with(ex, p, v))
			}
		}
	}
	return bad
}

// oddTexts are the example with each text replaced by one that has led others
// astray.
func oddTexts(schema, example json.RawMessage) []json.RawMessage {
	odd := []json.RawMessage{}
	props := parseSchema(schema).Properties
	for _, p := range slices.Sorted(maps.Keys(props)) {
		if !props[p].is("string") {
			continue
		}
		for _, text := range []string{
			"", " ", "\t\n", "\u0000", "\u00a0", "\u202e", "%d %s %v", "../../etc/passwd", "/etc/passwd", `C:\x`,
			"a\"b'c`d", "<b>&amp;</b>", "{{.}} ${x} $(x)", "Zoë e\u0301 😀", strings.Repeat("long ", 20_000),
		} {
			odd = append(odd, with(example, p, mustValue(text)))
		}
		odd = append(odd, with(example, p, json.RawMessage(`"\ud800"`))) // half a surrogate pair
	}
	return odd
}

// with sets a field of an object; nil takes it out.
func with(obj json.RawMessage, field string, v json.RawMessage) json.RawMessage {
	m := map[string]json.RawMessage{}
	_ = json.Unmarshal(obj, &m)
	if v == nil {
		delete(m, field)
	} else {
		m[field] = v
	}
	return mustValue(m)
}

func raws(texts ...string) []json.RawMessage {
	r := make([]json.RawMessage, len(texts))
	for i, t := range texts {
		r[i] = json.RawMessage(t)
	}
	return r
}

// mustValue is for values made here, which have a JSON form.
func mustValue(v any) json.RawMessage {
	b, err := message.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
