package contract

import (
	"errors"
	"fmt"
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"
)

// schemas derives a JSON Schema (draft 7, which AsyncAPI builds on) for every
// struct of contracts/message and contracts/errcode, as YAML, in the order of
// their names. Every field needs a description: its comment, or one in
// refine.go.
func schemas(root string) (yaml.MapSlice, error) {
	g := generator{used: map[string]bool{}}
	for _, p := range []string{"message", "errcode"} {
		src, err := parseSource(filepath.Join(root, "contracts", p))
		if err != nil {
			return nil, err
		}
		if p == "errcode" {
			for i := range src.types {
				src.types[i].name = errcodeName(src.types[i].name)
			}
		}
		g.types = append(g.types, src.types...)
		g.consts = append(g.consts, src.consts)
	}
	var out yaml.MapSlice
	var errs []error
	for _, t := range g.types {
		s, err := g.object(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
		}
		out = append(out, yaml.MapItem{Key: t.name, Value: s})
	}
	for key := range refinements {
		if !g.used[key] {
			errs = append(errs, fmt.Errorf("refinement %s: no field needs it", key))
		}
	}
	for key := range descriptions {
		if !g.used["description "+key] {
			errs = append(errs, fmt.Errorf("description %s: no field needs it", key))
		}
	}
	return out, errors.Join(errs...)
}

// errcodeName gives the errcode types names that say what they are.
func errcodeName(name string) string {
	switch name {
	case "Body":
		return "ErrorReply"
	case "Details":
		return "ErrorDetails"
	}
	return name
}

type generator struct {
	types  []goType
	consts []map[string]string
	used   map[string]bool // refinements and descriptions that were used
}

func (g *generator) find(name string) (goType, bool) {
	for _, t := range g.types {
		if t.name == name || t.name == errcodeName(name) {
			return t, true
		}
	}
	return goType{}, false
}

func (g *generator) object(t goType) (yaml.MapSlice, error) {
	fields, err := g.flatten(t)
	if err != nil {
		return nil, err
	}
	var props yaml.MapSlice
	var required []string
	var errs []error
	for _, f := range fields {
		s, must, err := g.field(t, f)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.json, err))
			continue
		}
		if must {
			required = append(required, f.json)
		}
		props = append(props, yaml.MapItem{Key: f.json, Value: s})
	}
	out := yaml.MapSlice{{Key: "type", Value: "object"}, {Key: "description", Value: sentence(g.prose(t.doc, t, fields), nil)}}
	if len(required) > 0 {
		out = append(out, yaml.MapItem{Key: "required", Value: required})
	}
	out = append(out, yaml.MapItem{Key: "properties", Value: props})
	if rest, ok := open[t.name]; ok {
		out = append(out, yaml.MapItem{Key: "additionalProperties", Value: yaml.MapSlice{{Key: "description", Value: rest}}})
	}
	return out, errors.Join(errs...)
}

// flatten puts embedded structs' fields in their place, as encoding/json does.
func (g *generator) flatten(t goType) ([]goField, error) {
	var out []goField
	for _, f := range t.fields {
		if f.name != "" {
			out = append(out, f)
			continue
		}
		id, ok := f.typ.(*ast.Ident)
		if !ok {
			return nil, fmt.Errorf("an embedded %T", f.typ)
		}
		inner, ok := g.find(id.Name)
		if !ok {
			return nil, fmt.Errorf("embeds %s, which is unknown", id.Name)
		}
		fields, err := g.flatten(inner)
		if err != nil {
			return nil, err
		}
		out = append(out, fields...)
	}
	return out, nil
}

func (g *generator) field(t goType, f goField) (s yaml.MapSlice, required bool, err error) {
	doc, required := g.prose(f.doc, t, nil), f.required
	if s, err = g.typeOf(f.typ, f.required); err != nil {
		return nil, false, err
	}
	for _, key := range []string{f.json, t.name + "." + f.json} {
		r, ok := refinements[key]
		if !ok {
			continue
		}
		g.used[key] = true
		if r.doc != "" {
			doc = r.doc
		}
		if r.optional {
			required = false
		}
		if r.schema != nil {
			s = r.schema
		}
		s = append(s, r.add...)
	}
	if doc == "" {
		doc = descriptions[f.json]
		g.used["description "+f.json] = true
	}
	if doc == "" {
		return nil, false, fmt.Errorf("has no description: comment it, or add it to refine.go")
	}
	s = append(s, formats(doc, s)...)
	// Beside a $ref nothing else counts.
	if len(s) > 0 && s[0].Key == "$ref" {
		s = yaml.MapSlice{{Key: "allOf", Value: []yaml.MapSlice{s}}}
	}
	return append(yaml.MapSlice{{Key: "description", Value: sentence(doc, s)}}, s...), required, nil
}

// sentence begins with a capital, unless its first word is a value or a code
// that must be written as it stands: utf8 (default), conflict: the revision.
func sentence(doc string, schema yaml.MapSlice) string {
	if doc == "" {
		return ""
	}
	first, _, _ := strings.Cut(doc, " ")
	if strings.HasSuffix(first, ":") || strings.Contains(first, "_") {
		return doc
	}
	for _, item := range schema {
		values, _ := item.Value.([]string)
		if item.Key == "enum" && slices.Contains(values, strings.Trim(first, ",")) {
			return doc
		}
	}
	return strings.ToUpper(doc[:1]) + doc[1:]
}

// formats are what a field's comment says of a string's form.
func formats(doc string, s yaml.MapSlice) yaml.MapSlice {
	if len(s) != 1 || s[0].Key != "type" || s[0].Value != "string" {
		return nil
	}
	switch {
	case strings.Contains(doc, "RFC 3339"):
		return yaml.MapSlice{{Key: "format", Value: "date-time"}}
	case strings.Contains(doc, "Go duration"):
		return yaml.MapSlice{{Key: "pattern", Value: durationPattern}, {Key: "examples", Value: []string{"10s", "1h30m"}}}
	case strings.Contains(doc, "lower-case hex"):
		return yaml.MapSlice{{Key: "pattern", Value: "^[0-9a-f]{64}$"}}
	}
	return nil
}

func (g *generator) typeOf(e ast.Expr, required bool) (yaml.MapSlice, error) {
	one := func(typ string) yaml.MapSlice { return yaml.MapSlice{{Key: "type", Value: typ}} }
	switch e := e.(type) {
	case *ast.Ident:
		switch e.Name {
		case "string", "Code":
			return one("string"), nil
		case "bool":
			return one("boolean"), nil
		case "int", "int64":
			return one("integer"), nil
		case "uint64":
			return append(one("integer"), yaml.MapItem{Key: "minimum", Value: 0}), nil
		}
		t, ok := g.find(e.Name)
		if !ok {
			return nil, fmt.Errorf("unknown type %s", e.Name)
		}
		return yaml.MapSlice{{Key: "$ref", Value: "#/components/schemas/" + t.name}}, nil
	case *ast.StarExpr:
		inner, err := g.typeOf(e.X, required)
		if err != nil || !required {
			return inner, err
		}
		if len(inner) == 0 || inner[0].Key != "type" {
			return inner, nil
		}
		// Always there, and null when there is nothing.
		return append(yaml.MapSlice{{Key: "type", Value: []any{inner[0].Value, "null"}}}, inner[1:]...), nil
	case *ast.ArrayType:
		inner, err := g.typeOf(e.Elt, true)
		return append(one("array"), yaml.MapItem{Key: "items", Value: inner}), err
	case *ast.MapType:
		inner, err := g.typeOf(e.Value, true)
		return append(one("object"), yaml.MapItem{Key: "additionalProperties", Value: inner}), err
	case *ast.SelectorExpr:
		switch e.Sel.Name {
		case "RawMessage":
			return yaml.MapSlice{}, nil // any JSON
		case "Number":
			return one("number"), nil
		}
	}
	return nil, fmt.Errorf("a type this generator does not know: %T", e)
}

var word = regexp.MustCompile(`[A-Z][A-Za-z0-9]*`)

// prose turns the Go names of a comment into what travels: constants into their
// values, the type's own fields into their JSON names.
func (g *generator) prose(doc string, t goType, fields []goField) string {
	values := map[string]string{}
	for _, c := range g.consts {
		for name, v := range c {
			if strings.HasPrefix(name, "Header") {
				values[name] = "header " + v
			}
		}
	}
	for _, f := range fields {
		if _, isType := g.find(f.name); !isType {
			values[f.name] = f.json
		}
	}
	doc = word.ReplaceAllStringFunc(doc, func(w string) string {
		if v, ok := values[w]; ok {
			return v
		}
		return w
	})
	if doc == "" {
		return ""
	}
	// The document's readers do not know the Go type's name.
	return strings.TrimPrefix(doc, t.name+" is ")
}
