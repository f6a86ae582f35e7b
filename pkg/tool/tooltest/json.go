package tooltest

import (
	"bytes"
	"encoding/json"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/decimal"
)

// encode is a value's JSON without HTML escaping; nil is an empty object.
func encode(v any) (json.RawMessage, error) {
	switch x := v.(type) {
	case nil:
		return json.RawMessage("{}"), nil
	case json.RawMessage:
		return x, nil // as it is: a test may want to send rubbish
	}
	return message.Marshal(v)
}

// canonical is the same text for equal JSON values, whatever the order of their
// fields and the spelling of their numbers and strings.
func canonical(raw json.RawMessage) string {
	v, err := decode(raw)
	if err != nil {
		return string(raw)
	}
	text, err := message.Marshal(v) // sorts the fields
	if err != nil {
		return string(raw)
	}
	return string(text)
}

func decode(raw json.RawMessage) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return plain(v), err
}

// plain spells every number in one way.
func plain(v any) any {
	switch x := v.(type) {
	case json.Number:
		if s, err := decimal.Normalize(x.String()); err == nil {
			return json.Number(s)
		}
	case []any:
		for i := range x {
			x[i] = plain(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = plain(x[k])
		}
	}
	return v
}
