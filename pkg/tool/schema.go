package tool

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// schemaFor derives the JSON Schema of an argument struct: the library does the
// types, descriptions and required fields, this file the enum and default tags.
func schemaFor(t reflect.Type) (json.RawMessage, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("arguments must be a struct, not %s", t)
	}
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{})
	if err != nil {
		return nil, err
	}
	if err := refine(s, t, map[reflect.Type]bool{}); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

// refine walks a schema together with the type it was derived from.
func refine(s *jsonschema.Schema, t reflect.Type, seen map[reflect.Type]bool) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		if s.Items != nil {
			dropNull(s) // a nil slice is left out, not sent as null
			return refine(s.Items, t.Elem(), seen)
		}
	case reflect.Map:
		if s.AdditionalProperties != nil {
			dropNull(s)
			return refine(s.AdditionalProperties, t.Elem(), seen)
		}
	case reflect.Struct:
		if seen[t] {
			return nil
		}
		seen[t] = true
		defer delete(seen, t)
		return refineFields(s, t, seen)
	}
	return nil
}

func refineFields(s *jsonschema.Schema, t reflect.Type, seen map[reflect.Type]bool) error {
	for _, f := range reflect.VisibleFields(t) {
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		p := s.Properties[name]
		if p == nil || name == "-" {
			continue
		}
		if err := refine(p, f.Type, seen); err != nil {
			return err
		}
		ft := f.Type
		for ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if tag, ok := f.Tag.Lookup("enum"); ok {
			target, et := p, ft
			if ft.Kind() == reflect.Slice && p.Items != nil {
				target, et = p.Items, ft.Elem()
			}
			for _, v := range strings.Split(tag, ",") {
				val, err := literal(et, strings.TrimSpace(v))
				if err != nil {
					return fmt.Errorf("field %s: enum %q: %w", f.Name, v, err)
				}
				var a any
				if err := json.Unmarshal(val, &a); err != nil {
					return err
				}
				target.Enum = append(target.Enum, a)
			}
		}
		if tag, ok := f.Tag.Lookup("default"); ok {
			val, err := literal(ft, tag)
			if err != nil {
				return fmt.Errorf("field %s: default %q: %w", f.Name, tag, err)
			}
			p.Default = val
			s.Required = slices.DeleteFunc(s.Required, func(r string) bool { return r == name })
		}
	}
	return nil
}

func dropNull(s *jsonschema.Schema) {
	s.Types = slices.DeleteFunc(s.Types, func(t string) bool { return t == "null" })
	if len(s.Types) == 1 {
		s.Type, s.Types = s.Types[0], nil
	}
}

// literal reads a tag's value as JSON of the field's type; a string field takes
// it as it stands.
func literal(t reflect.Type, v string) (json.RawMessage, error) {
	if t.Kind() == reflect.String {
		return json.Marshal(v)
	}
	p := reflect.New(t)
	if err := json.Unmarshal([]byte(v), p.Interface()); err != nil {
		return nil, fmt.Errorf("is not a %s: %w", t, err)
	}
	return json.RawMessage(v), nil
}
