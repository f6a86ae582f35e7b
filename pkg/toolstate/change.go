package toolstate

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// ChangeKind says what became of a document.
type ChangeKind string

// The kinds of changes.
const (
	Written ChangeKind = "written" // it has the data of the change now
	Cleared ChangeKind = "cleared" // somebody removed it, or its last key
	Expired ChangeKind = "expired" // its life ended
)

// Change is what became of one document.
type Change struct {
	Kind      ChangeKind                 `json:"kind"`
	Namespace string                     `json:"namespace"`
	ChatID    string                     `json:"chatId"`
	Data      map[string]json.RawMessage `json:"data,omitempty"`      // written
	Revision  uint64                     `json:"revision,omitempty"`  // written
	ExpiresAt string                     `json:"expiresAt,omitempty"` // written
}

// document names one document of a tenant.
type document struct{ namespace, chat string }

// event is a change event as it came: a republished message of the bucket.
type event struct {
	Change
	sequence uint64 // of the message, which is the revision of what was written
	before   uint64 // sequence of the document's message before it; 0 when there was none
}

// headers that the server adds when it republishes.
const (
	headerSequence = "Nats-Sequence"
	headerBefore   = "Nats-Last-Sequence"
)

// parseEvent reads an event; false for what is none.
func parseEvent(m *nats.Msg) (event, bool) {
	// …changes.toolstate.<tenant>.<namespace>.<chat>: the last three are the key.
	t := strings.Split(m.Subject, ".")
	_, ns, chat, err := subject.ParseToolStateKey(strings.Join(t[max(0, len(t)-3):], "."))
	if err != nil {
		return event{}, false
	}
	e := event{Change: Change{Namespace: ns, ChatID: chat}}
	if e.sequence, err = strconv.ParseUint(m.Header.Get(headerSequence), 10, 64); err != nil {
		return event{}, false
	}
	e.before, _ = strconv.ParseUint(m.Header.Get(headerBefore), 10, 64)
	switch {
	case m.Header.Get("KV-Operation") != "":
		e.Kind = Cleared
	case m.Header.Get("Nats-Marker-Reason") == "MaxAge":
		e.Kind = Expired
	case m.Header.Get("Nats-Marker-Reason") != "":
		e.Kind = Cleared
	default:
		var d message.ToolStateDocument
		if json.Unmarshal(m.Data, &d) != nil {
			return event{}, false
		}
		e.Kind, e.Data, e.Revision, e.ExpiresAt = Written, d.Data, e.sequence, d.ExpiresAt
	}
	return e, true
}

// instant reads an expiresAt; the zero time when there is none.
func instant(expiresAt string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, expiresAt)
	return t
}
