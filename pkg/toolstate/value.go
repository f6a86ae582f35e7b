package toolstate

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/toolbus/toolbus/contracts/message"
)

// value is the answer to a get. Reading it was a fifth of what a get cost its
// caller.
type value struct{ message.ToolStateValue }

// ReadReply reads a value that was found, in the form in which the state
// service writes it. The value is a part of body.
func (v *value) ReadReply(body []byte) bool {
	rest, ok := bytes.CutPrefix(body, []byte(`{"found":true,"value":`))
	// The last one is the answer's own: what follows it has no such name.
	end := bytes.LastIndex(rest, []byte(`,"revision":`))
	if !ok || end < 0 {
		return false
	}
	raw := rest[:end:end]
	digits, rest, _ := bytes.Cut(rest[end+len(`,"revision":`):], []byte(`,"expiresAt":"`))
	revision, err := strconv.ParseUint(string(digits), 10, 64)
	at, ok := bytes.CutSuffix(rest, []byte(`"}`))
	if err != nil || !ok || !isTime(at) || !json.Valid(raw) {
		return false
	}
	v.ToolStateValue = message.ToolStateValue{Found: true, Value: raw, Revision: revision, ExpiresAt: string(at)}
	return true
}

// isTime tells whether b has only what a time in RFC 3339 has.
func isTime(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && c != '-' && c != ':' && c != '.' && c != 'T' && c != 'Z' && c != '+' {
			return false
		}
	}
	return len(b) > 0
}
