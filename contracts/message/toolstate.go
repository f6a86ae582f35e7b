package message

import "encoding/json"

// ToolStateRef names a document; every ToolState request has it.
type ToolStateRef struct {
	ChatID    string `json:"chatId"`
	Namespace string `json:"namespace"`
}

// ToolStateDocument is the value stored in the bucket toolbus_toolstate, and
// what a mirror writes to disk.
type ToolStateDocument struct {
	ExpiresAt string                     `json:"expires_at"` // RFC 3339
	Data      map[string]json.RawMessage `json:"data"`
}

// ToolStateGet reads one key.
type ToolStateGet struct {
	ToolStateRef
	Key string `json:"key"`
}

// ToolStateValue answers ToolStateGet. Value is null when there is none, and may
// be null when there is one: Found tells.
type ToolStateValue struct {
	Found     bool            `json:"found"`
	Value     json.RawMessage `json:"value"`
	Revision  uint64          `json:"revision"`
	ExpiresAt string          `json:"expiresAt,omitempty"`
}

// ToolStateSet writes one key. TTL is a Go duration or "+24 hours"; it extends
// the whole document. IfRevision 0 means that the document must not exist.
type ToolStateSet struct {
	ToolStateRef
	Key        string          `json:"key"`
	Value      json.RawMessage `json:"value"`
	TTL        string          `json:"ttl,omitempty"`
	IfRevision *uint64         `json:"ifRevision,omitempty"`
	OpID       string          `json:"opId,omitempty"`
}

// ToolStateWritten answers set and update.
type ToolStateWritten struct {
	Revision  uint64 `json:"revision"`
	ExpiresAt string `json:"expiresAt,omitempty"`
}

// ToolStateDelete removes one key.
type ToolStateDelete struct {
	ToolStateRef
	Key  string `json:"key"`
	OpID string `json:"opId,omitempty"`
}

// ToolStateDeleted answers ToolStateDelete. A document left without keys is no
// document any more: then Revision is 0, and ExpiresAt absent.
type ToolStateDeleted struct {
	Deleted   bool   `json:"deleted"`
	Revision  uint64 `json:"revision"`
	ExpiresAt string `json:"expiresAt,omitempty"`
}

// ToolStateAll reads the whole document.
type ToolStateAll struct{ ToolStateRef }

// ToolStateData answers ToolStateAll.
type ToolStateData struct {
	Found     bool                       `json:"found"`
	Data      map[string]json.RawMessage `json:"data"`
	Revision  uint64                     `json:"revision"`
	ExpiresAt string                     `json:"expiresAt,omitempty"`
}

// ToolStateClear removes the document.
type ToolStateClear struct {
	ToolStateRef
	OpID string `json:"opId,omitempty"`
}

// ToolStateCleared answers ToolStateClear; Cleared is false when there was
// nothing.
type ToolStateCleared struct {
	Cleared bool `json:"cleared"`
}

// ToolStateAppend adds values to the end of an array; a missing key is an
// empty array. Unique leaves out values that are already there.
type ToolStateAppend struct {
	ToolStateRef
	Key    string            `json:"key"`
	Values []json.RawMessage `json:"values"`
	Unique bool              `json:"unique,omitempty"`
	TTL    string            `json:"ttl,omitempty"`
	OpID   string            `json:"opId,omitempty"`
}

// ToolStateAppended answers ToolStateAppend with the array's length.
type ToolStateAppended struct {
	Length    int    `json:"length"`
	Revision  uint64 `json:"revision"`
	ExpiresAt string `json:"expiresAt,omitempty"`
}

// ToolStateIncrement adds By (any JSON number) to a number; a missing key is 0.
type ToolStateIncrement struct {
	ToolStateRef
	Key  string      `json:"key"`
	By   json.Number `json:"by"`
	TTL  string      `json:"ttl,omitempty"`
	OpID string      `json:"opId,omitempty"`
}

// ToolStateIncremented answers ToolStateIncrement with the new number.
type ToolStateIncremented struct {
	Value     json.Number `json:"value"`
	Revision  uint64      `json:"revision"`
	ExpiresAt string      `json:"expiresAt,omitempty"`
}

// ToolStateUpdate sets and deletes several keys in one step.
type ToolStateUpdate struct {
	ToolStateRef
	Set        map[string]json.RawMessage `json:"set,omitempty"`
	Delete     []string                   `json:"delete,omitempty"`
	TTL        string                     `json:"ttl,omitempty"`
	IfRevision *uint64                    `json:"ifRevision,omitempty"`
	OpID       string                     `json:"opId,omitempty"`
}

// ToolStateList lists a tenant's live documents; the filters are optional.
type ToolStateList struct {
	ChatID    string `json:"chatId,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Cursor    string `json:"cursor,omitempty"`
	Limit     int    `json:"limit,omitempty"`
}

// ToolStateEntry is one document of a ToolStateListing.
type ToolStateEntry struct {
	Namespace string `json:"namespace"`
	ChatID    string `json:"chatId"`
	Keys      int    `json:"keys"`
	Revision  uint64 `json:"revision"`
	ExpiresAt string `json:"expiresAt"`
}

// ToolStateListing answers ToolStateList; Cursor is set when there may be more. A
// page may have fewer documents than the limit, even none, and yet a Cursor.
type ToolStateListing struct {
	Documents []ToolStateEntry `json:"documents"`
	Cursor    string           `json:"cursor,omitempty"`
}
