package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/schema"
)

// structure checks documents against contracts/schema and says what is wrong
// in words of our own.
type structure struct {
	file, agent *jsonschema.Schema
	known       map[string][]string // definition → its fields
}

func newStructure() (*structure, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.AgentConfig()))
	if err != nil {
		return nil, fmt.Errorf("configuration schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schema.AgentConfigID, doc); err != nil {
		return nil, fmt.Errorf("configuration schema: %w", err)
	}
	s := &structure{known: map[string][]string{}}
	if s.file, err = c.Compile(schema.AgentConfigID + "#/$defs/file"); err != nil {
		return nil, fmt.Errorf("configuration schema: %w", err)
	}
	if s.agent, err = c.Compile(schema.AgentConfigID + "#/$defs/agent"); err != nil {
		return nil, fmt.Errorf("configuration schema: %w", err)
	}
	defs, _ := path{{name: "$defs"}}.value(doc).(map[string]any)
	for name, def := range defs {
		props, _ := path{{name: "properties"}}.value(def).(map[string]any)
		for field := range props {
			s.known[name] = append(s.known[name], field)
		}
		slices.Sort(s.known[name])
	}
	return s, nil
}

// check returns every structural fault of doc.
func (s *structure) check(doc any, single bool) []errcode.FieldFault {
	sch := s.file
	if single {
		sch = s.agent
	}
	var ve *jsonschema.ValidationError
	if err := sch.Validate(doc); errors.As(err, &ve) {
		return s.faults(nil, doc, ve)
	} else if err != nil {
		return []errcode.FieldFault{{Field: "config", Message: "does not fit the configuration schema"}}
	}
	return nil
}

func (s *structure) faults(out []errcode.FieldFault, doc any, e *jsonschema.ValidationError) []errcode.FieldFault {
	at := locate(doc, e.InstanceLocation)
	add := func(p path, format string, args ...any) {
		field := p.String()
		if field == "" {
			field = "config"
		}
		out = append(out, errcode.FieldFault{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		for _, f := range k.Missing {
			add(at.key(f), "is required")
		}
	case *kind.AdditionalProperties:
		props := slices.Clone(k.Properties)
		slices.Sort(props)
		def := e.SchemaURL[strings.LastIndexByte(e.SchemaURL, '/')+1:]
		for _, f := range props {
			if hint := nearest(f, s.known[def]); hint != "" {
				add(at.key(f), "is not a known field; did you mean %q?", hint)
			} else {
				add(at.key(f), "is not a known field; known are %s", strings.Join(s.known[def], ", "))
			}
		}
	case *kind.PropertyNames:
		// The validator shares this location's memory with later ones, so it
		// may name another field by now: the checker checks tools' names.
	case *kind.Type:
		add(at, "must be %s, not %s", withArticle(k.Want...), withArticle(k.Got))
	case *kind.Enum:
		want := make([]string, len(k.Want))
		for i, w := range k.Want {
			want[i] = fmt.Sprintf("%q", w)
		}
		add(at, "must be %s", strings.Join(want, " or "))
	case *kind.Minimum:
		add(at, "must be at least %s", k.Want.RatString())
	case *kind.Maximum:
		add(at, "must be at most %s", k.Want.RatString())
	case *kind.MinLength:
		add(at, "is required")
	case *kind.Pattern:
		v, _ := at.value(doc).(string)
		switch {
		case v == "":
			add(at, "is required")
		case at[len(at)-1].name == "$secret": // somebody may have put the secret itself here
			add(at, "must be a secret's name and match [A-Za-z0-9_-]{1,64}")
		default:
			add(at, "%s must match [A-Za-z0-9_-]{1,64}", quote(v))
		}
	default:
		if len(e.Causes) == 0 {
			add(at, "does not fit the configuration schema (%s)", strings.Join(e.ErrorKind.KeywordPath(), "/"))
		}
		for _, c := range e.Causes {
			out = s.faults(out, doc, c)
		}
	}
	return out
}

func withArticle(types ...string) string {
	words := make([]string, len(types))
	for i, t := range types {
		switch t {
		case "object", "array", "integer":
			words[i] = "an " + t
		case "null":
			words[i] = t
		default:
			words[i] = "a " + t
		}
	}
	return strings.Join(words, " or ")
}

// nearest is the known field that a misspelt one most likely means, or "".
func nearest(field string, known []string) string {
	best, least := "", 3
	if len(field) > 64 {
		return ""
	}
	for _, k := range known {
		if strings.EqualFold(field, k) {
			return k
		}
		if d := distance(strings.ToLower(field), strings.ToLower(k)); d < least && d < len(k) {
			best, least = k, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
