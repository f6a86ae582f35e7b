package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// parseJSON returns data compacted. A key that stands twice in an object is
// refused: encoding/json would silently take the last.
func parseJSON(data []byte) (json.RawMessage, error) {
	if err := checkSyntax(data); err != nil {
		return nil, err
	}
	w := walker{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	w.dec.UseNumber()
	if err := w.document(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Compact(&out, data); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// checkSyntax places what is wrong. A decoder that reads tokens cannot: its
// offsets in errors are not from the beginning.
func checkSyntax(data []byte) error {
	var whole json.RawMessage
	err := json.Unmarshal(data, &whole)
	if err == nil {
		return nil
	}
	var s *json.SyntaxError
	if !errors.As(err, &s) {
		return fmt.Errorf("is not valid JSON: %w", err)
	}
	at := int(s.Offset) - 1
	if s.Error() == "unexpected end of JSON input" {
		return place(data, len(data), "is not valid JSON: it ends too early")
	}
	if at >= 0 && at <= len(data) && json.Valid(data[:at]) {
		return place(data, at, "holds more than one document")
	}
	return place(data, at, "is not valid JSON: %v", s)
}

type walker struct {
	data []byte
	dec  *json.Decoder
}

func (w *walker) document() error {
	t, err := w.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return w.fail("must be an object, with agentId or agents")
	}
	if err := w.object(""); err != nil {
		return err
	}
	return nil
}

func (w *walker) value(path string) error {
	t, err := w.token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		return w.object(path)
	case json.Delim('['):
		for i := 0; w.dec.More(); i++ {
			if err := w.value(path + "[" + strconv.Itoa(i) + "]"); err != nil {
				return err
			}
		}
		_, err = w.token()
		return err
	}
	return nil
}

func (w *walker) object(path string) error {
	seen := map[string]bool{}
	for w.dec.More() {
		t, err := w.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return w.fail("an object's key must be a string")
		}
		at := key
		if path != "" {
			at = path + "." + key
		}
		if seen[key] {
			return w.fail("%s stands twice", at)
		}
		seen[key] = true
		if err := w.value(at); err != nil {
			return err
		}
	}
	_, err := w.token()
	return err
}

func (w *walker) token() (json.Token, error) {
	t, err := w.dec.Token()
	if err != nil {
		return nil, w.fail("is not valid JSON: %v", err)
	}
	return t, nil
}

// fail places a fault at the last token.
func (w *walker) fail(format string, args ...any) error {
	return place(w.data, int(w.dec.InputOffset())-1, format, args...)
}

func place(data []byte, offset int, format string, args ...any) error {
	offset = min(max(offset, 0), len(data))
	column := offset - bytes.LastIndexByte(data[:offset], '\n')
	return fmt.Errorf("line %d, column %d: "+format, append([]any{lineOf(data, offset), column}, args...)...)
}
