package arguments

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// CheckUnresolved is Check for settings in which a {"$secret":"…"} stands for a string
// that is not known here: it fits wherever a string does.
func (s *Schema) CheckUnresolved(settings json.RawMessage) []errcode.FieldFault {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(settings))
	if err != nil {
		return []errcode.FieldFault{{Message: "not valid JSON"}}
	}
	secrets := map[string]bool{}
	v = replaceSecrets(v, "", secrets)
	if secrets[""] {
		return nil // all of it
	}
	plain, err := message.Marshal(v)
	if err != nil {
		return []errcode.FieldFault{{Message: err.Error()}}
	}
	return slices.DeleteFunc(Faults(s.Check(plain)), func(f errcode.FieldFault) bool {
		return secrets[f.Field] && !strings.HasPrefix(f.Message, "must be ") || secrets[f.Field] && strings.HasPrefix(f.Message, "must be one of")
	})
}

func replaceSecrets(v any, at string, found map[string]bool) any {
	switch x := v.(type) {
	case []any:
		for i := range x {
			x[i] = replaceSecrets(x[i], at+"["+strconv.Itoa(i)+"]", found)
		}
	case map[string]any:
		if _, ok := x["$secret"].(string); ok && len(x) == 1 {
			found[at] = true
			return "secret"
		}
		for k := range x {
			x[k] = replaceSecrets(x[k], join(at, k), found)
		}
	}
	return v
}

// CheckSome is Check for some of the arguments: none is missing.
func (s *Schema) CheckSome(args map[string]json.RawMessage) []errcode.FieldFault {
	raw, err := message.Marshal(args)
	if err != nil {
		return []errcode.FieldFault{{Message: err.Error()}}
	}
	required, _ := s.doc["required"].([]any)
	return slices.DeleteFunc(Faults(s.Check(raw)), func(f errcode.FieldFault) bool {
		return f.Message == isRequired && slices.Contains(required, any(f.Field))
	})
}

const isRequired = "is required"

// Faults are the fields that an error of Check names.
func Faults(_ json.RawMessage, err error) []errcode.FieldFault {
	var e *errcode.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e) && e.Details != nil && len(e.Details.Fields) > 0:
		return e.Details.Fields
	}
	return []errcode.FieldFault{{Message: err.Error()}}
}

// Without is a schema without some of its properties, as those see it who may not
// give them.
func Without(schema json.RawMessage, names map[string]json.RawMessage) (json.RawMessage, error) {
	if len(names) == 0 {
		return schema, nil
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(schema, &doc); err != nil {
		return nil, err
	}
	var props map[string]json.RawMessage
	var required []string
	if err := errors.Join(unmarshal(doc["properties"], &props), unmarshal(doc["required"], &required)); err != nil {
		return nil, err
	}
	maps.DeleteFunc(props, func(name string, _ json.RawMessage) bool { _, ok := names[name]; return ok })
	required = slices.DeleteFunc(required, func(name string) bool { _, ok := names[name]; return ok })
	delete(doc, "required")
	var err error
	if props != nil {
		doc["properties"], err = message.Marshal(props)
	}
	if err == nil && len(required) > 0 {
		doc["required"], err = message.Marshal(required)
	}
	if err != nil {
		return nil, err
	}
	return message.Marshal(doc)
}

func unmarshal(raw json.RawMessage, v any) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, v)
}
