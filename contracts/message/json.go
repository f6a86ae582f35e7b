package message

import (
	"bytes"
	"encoding/json"
)

// Marshal is the compact JSON of a message. Unlike json.Marshal it leaves <, >
// and & as they are, so that text reads as it was written ("DHL->DPD").
func Marshal(v any) (json.RawMessage, error) {
	if p, ok := v.(interface {
		plain() (json.RawMessage, bool)
	}); ok {
		if b, ok := p.plain(); ok {
			return b, nil
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
