package message

// StoreGet reads a value of the durable store.
type StoreGet struct {
	Key string `json:"key"`
}

// StoreValue answers StoreGet.
type StoreValue struct {
	Found    bool   `json:"found"`
	Value    string `json:"value"`
	Revision uint64 `json:"revision"`
}

// StoreSet writes a value. IfRevision 0 means that the key must not exist.
type StoreSet struct {
	Key        string  `json:"key"`
	Value      string  `json:"value"`
	IfRevision *uint64 `json:"ifRevision,omitempty"`
	OpID       string  `json:"opId,omitempty"`
}

// StoreWritten answers StoreSet.
type StoreWritten struct {
	Revision uint64 `json:"revision"`
}

// StoreDelete removes a key.
type StoreDelete struct {
	Key        string  `json:"key"`
	IfRevision *uint64 `json:"ifRevision,omitempty"`
	OpID       string  `json:"opId,omitempty"`
}

// StoreDeleted answers StoreDelete; Deleted is false when there was nothing.
type StoreDeleted struct {
	Deleted bool `json:"deleted"`
}

// StoreList lists keys by prefix: all of them (too_large when they do not fit
// one message), or with Limit or Cursor a page.
type StoreList struct {
	Prefix string `json:"prefix,omitempty"`
	Cursor string `json:"cursor,omitempty"` // of the page before
	Limit  int    `json:"limit,omitempty"`  // at most so many keys, 1 to 1,000
}

// StoreKeys answers StoreList, sorted. Cursor is set when a page was asked for
// and more keys may follow: a page may have fewer than Limit, even none.
type StoreKeys struct {
	Keys   []string `json:"keys"`
	Cursor string   `json:"cursor,omitempty"`
}
