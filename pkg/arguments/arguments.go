// Package arguments checks a call's arguments against a tool's JSON Schema
// (2020-12) and fills in its defaults. Faults name every wrong field and what
// was expected, so that a model can correct itself.
package arguments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	textmessage "golang.org/x/text/message"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// Schema is a compiled schema; safe for concurrent use.
type Schema struct {
	compiled *jsonschema.Schema
	doc      map[string]any
	plain    *plain // nil: takes the full validator
	defaults bool
}

// Compile compiles a tool's input schema. References may point inside the
// schema only. The error is invalid_request on inputSchema.
func Compile(schema json.RawMessage) (*Schema, error) { return CompileField("inputSchema", schema) }

// CompileField is Compile for another field.
func CompileField(field string, schema json.RawMessage) (*Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, errcode.Field(field, "is not valid JSON: %v", err)
	}
	obj, ok := doc.(map[string]any)
	if !ok {
		return nil, errcode.Field(field, "must be an object")
	}
	const url = "toolbus:///input"
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	if err := c.AddResource(url, doc); err != nil {
		return nil, errcode.Field(field, "%v", err)
	}
	compiled, err := c.Compile(url)
	if err != nil {
		return nil, errcode.Field(field, "%s", oneLine(err.Error()))
	}
	return &Schema{compiled: compiled, doc: obj, plain: newPlain(obj), defaults: bytes.Contains(schema, []byte(`"default"`))}, nil
}

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a reference to %s: references may point inside the schema only", url)
}

// Check validates args, an object (nothing or null is an empty one), and
// returns it with defaults filled in. What does not fit is invalid_arguments
// with a fault per field.
func (s *Schema) Check(args json.RawMessage) (json.RawMessage, error) {
	if s.plain != nil && s.plain.fits(args) {
		return args, nil
	}
	return s.check(args)
}

func (s *Schema) check(args json.RawMessage) (json.RawMessage, error) {
	if t := bytes.TrimSpace(args); len(t) == 0 || bytes.Equal(t, []byte("null")) {
		args = json.RawMessage("{}")
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return nil, errcode.Fields(errcode.InvalidArguments, errcode.FieldFault{Field: "arguments", Message: "not valid JSON: " + oneLine(err.Error())})
	}
	obj, ok := v.(map[string]any)
	if !ok {
		return nil, errcode.Fields(errcode.InvalidArguments, errcode.FieldFault{Field: "arguments", Message: "must be an object, not " + typeName(v)})
	}
	if s.defaults && fill(s.doc, obj) {
		if args, err = message.Marshal(obj); err != nil {
			return nil, err
		}
	}
	err = s.compiled.Validate(v)
	if err == nil {
		return args, nil
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return nil, errcode.Wrap(errcode.InvalidArguments, err, "%s", oneLine(err.Error()))
	}
	faults := s.faults(ve, v, nil)
	slices.SortStableFunc(faults, func(a, b errcode.FieldFault) int { return strings.Compare(a.Field, b.Field) })
	faults = slices.Compact(faults)
	if len(faults) > maxFaults {
		faults = append(faults[:maxFaults:maxFaults], errcode.FieldFault{Message: fmt.Sprintf("and %d more faults", len(faults)-maxFaults)})
	}
	return nil, errcode.Fields(errcode.InvalidArguments, faults...)
}

// maxFaults keeps an error readable.
const maxFaults = 20

// fill sets missing properties that have a default, in nested objects and array
// items too. It reports whether it set any.
func fill(schema map[string]any, v any) bool {
	changed := false
	switch x := v.(type) {
	case map[string]any:
		props, _ := schema["properties"].(map[string]any)
		for name, p := range props {
			ps, ok := p.(map[string]any)
			if !ok {
				continue
			}
			if cur, ok := x[name]; ok {
				changed = fill(ps, cur) || changed
			} else if def, ok := ps["default"]; ok {
				x[name] = clone(def)
				changed = true
			}
		}
	case []any:
		if items, ok := schema["items"].(map[string]any); ok {
			for _, e := range x {
				changed = fill(items, e) || changed
			}
		}
	}
	return changed
}

// clone copies a default: a later fill or another call must not write into the
// schema's own value.
func clone(v any) any {
	switch x := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(x))
		for k, e := range x {
			m[k] = clone(e)
		}
		return m
	case []any:
		l := make([]any, len(x))
		for i, e := range x {
			l[i] = clone(e)
		}
		return l
	}
	return v
}

var english = textmessage.NewPrinter(language.English)

// faults flattens a validation error to its leaves.
func (s *Schema) faults(e *jsonschema.ValidationError, root any, out []errcode.FieldFault) []errcode.FieldFault {
	path := dotted(e.InstanceLocation, root)
	add := func(field, format string, args ...any) {
		if field == "" {
			field = "arguments"
		}
		out = append(out, errcode.FieldFault{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		for _, m := range k.Missing {
			add(join(path, m), isRequired)
		}
		return out
	case *kind.AdditionalProperties:
		known := s.known(e.InstanceLocation)
		for _, p := range k.Properties {
			msg := "unknown field"
			if near := nearest(p, known); near != "" {
				msg += fmt.Sprintf("; did you mean %q?", near)
			} else if len(known) > 0 {
				msg += "; known are " + strings.Join(known, ", ")
			} else {
				msg += "; there are none"
			}
			add(join(path, short(p)), "%s", msg)
		}
		return out
	case *kind.Type:
		add(path, "must be %s, not %s", strings.Join(k.Want, " or "), k.Got)
		return out
	case *kind.Enum:
		want := make([]string, len(k.Want))
		for i, w := range k.Want {
			b, _ := message.Marshal(w)
			want[i] = string(b)
		}
		got, _ := message.Marshal(k.Got)
		add(path, "must be one of %s, not %s", strings.Join(want, ", "), short(string(got)))
		return out
	case *kind.AnyOf, *kind.OneOf:
		add(path, "fits none of the allowed forms")
	}
	if len(e.Causes) == 0 {
		if _, ok := e.ErrorKind.(*kind.Schema); !ok {
			add(path, "%s", oneLine(e.ErrorKind.LocalizedString(english)))
		}
		return out
	}
	for _, c := range e.Causes {
		out = s.faults(c, root, out)
	}
	return out
}

// known lists the properties of the object at a location, as far as plain
// properties and items lead there.
func (s *Schema) known(location []string) []string {
	cur := s.doc
	for _, tok := range location {
		props, _ := cur["properties"].(map[string]any)
		next, ok := props[tok].(map[string]any)
		if !ok {
			if next, ok = cur["items"].(map[string]any); !ok {
				return nil
			}
		}
		cur = next
	}
	props, _ := cur["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(props))
}

// dotted writes a location as items[1].code.
func dotted(location []string, root any) string {
	path := ""
	cur := root
	for _, tok := range location {
		switch x := cur.(type) {
		case []any:
			path += "[" + tok + "]"
			if i, err := strconv.Atoi(tok); err == nil && i >= 0 && i < len(x) {
				cur = x[i]
			}
		case map[string]any:
			path = join(path, tok)
			cur = x[tok]
		default:
			path = join(path, tok)
		}
	}
	return path
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case []any:
		return "an array"
	case string:
		return "a string"
	case bool:
		return "true or false"
	}
	return "a number"
}

func short(s string) string { return cut(s, 100) }

func oneLine(s string) string { return cut(strings.Join(strings.Fields(s), " "), 400) }

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
