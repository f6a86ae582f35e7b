package tooltest

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/toolbus/toolbus/contracts/message"
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

// equal compares two JSON values, whatever the order of their fields; numbers
// by their digits.
func equal(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := decode(a)
	y, errY := decode(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

func decode(raw json.RawMessage) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}
