package mirror

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/toolbus/toolbus/contracts/message"
)

const (
	indent = "  "

	// maxDepth is how deep values are laid out over lines. What is deeper stays on
	// one line: indented, 64 KiB of brackets would become hundreds of megabytes.
	maxDepth = 16
)

// layout writes a JSON document for people to read, ending in a newline:
//
//	{
//	  "expires_at": "2026-05-05T16:00:00+02:00",
//	  "data": {
//	    "direction": "DHL->DPD",
//	    "codes": ["00340434757211819883", "8806096235386"]
//	  }
//	}
//
// An object has one member per line, in the order it came in. An array of plain
// values stands on one line; one that holds objects or arrays has one element
// per line. Strings have no escapes but those they need; numbers keep their
// digits.
func layout(raw json.RawMessage) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := readValue(dec)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	var b bytes.Buffer
	v.write(&b, 0)
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// value is a JSON value that keeps its members' order.
type value struct {
	text    string   // of a plain value
	open    byte     // '{' or '[', or 0 for a plain value
	names   []string // of an object's members, as JSON
	members []value
}

func readValue(dec *json.Decoder) (value, error) {
	t, err := dec.Token()
	if err != nil {
		return value{}, err
	}
	open, ok := t.(json.Delim)
	if !ok {
		text, err := message.Marshal(t)
		return value{text: string(text)}, err
	}
	v := value{open: byte(open)}
	for dec.More() {
		if v.open == '{' {
			name, err := dec.Token()
			if err != nil {
				return value{}, err
			}
			text, err := message.Marshal(name)
			if err != nil {
				return value{}, err
			}
			v.names = append(v.names, string(text))
		}
		m, err := readValue(dec)
		if err != nil {
			return value{}, err
		}
		v.members = append(v.members, m)
	}
	_, err = dec.Token() // the closing bracket
	return v, err
}

func (v value) write(b *bytes.Buffer, depth int) {
	if v.open == 0 {
		b.WriteString(v.text)
		return
	}
	between, before := ", ", ""
	if depth < maxDepth && v.tall() {
		between, before = ",\n"+strings.Repeat(indent, depth+1), "\n"+strings.Repeat(indent, depth+1)
	}
	b.WriteByte(v.open)
	for i, m := range v.members {
		if i == 0 {
			b.WriteString(before)
		} else {
			b.WriteString(between)
		}
		if v.open == '{' {
			b.WriteString(v.names[i] + ": ")
		}
		m.write(b, depth+1)
	}
	if before != "" {
		b.WriteString("\n" + strings.Repeat(indent, depth))
	}
	b.WriteByte(v.open + 2) // "}" is two after "{", and "]" after "["
}

// tall tells whether a value takes several lines.
func (v value) tall() bool {
	if v.open == '{' {
		return len(v.members) > 0
	}
	for _, m := range v.members {
		if m.open != 0 {
			return true
		}
	}
	return false
}
