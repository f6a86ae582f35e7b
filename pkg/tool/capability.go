package tool

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// State is a scratch pad of one chat under one namespace: a JSON object that
// expires. Every write gives the whole document a new life (24 hours, or the
// TTL given); what expired is gone. Every op is atomic, also against other
// calls of the same chat that run at the same time.
//
// It is for the steps of a conversation: collected codes, a wizard's step, the
// last result. Not for domain data, settings, secrets, or more than a few KB.
//
// A namespace is [A-Za-z0-9_-]{1,64}; a call without a chat has no scratch
// pad, and every op says so (invalid_request).
type State interface {
	// Get decodes a key's value into v and reports whether it was there; v is
	// left as it is when not.
	Get(ctx context.Context, key string, v any) (found bool, err error)
	// Set writes one key.
	Set(ctx context.Context, key string, value any, opts ...StateOption) error
	// Delete removes one key and reports whether it was there. A document left
	// without keys is removed.
	Delete(ctx context.Context, key string) (bool, error)
	// All returns the whole document; empty when there is none.
	All(ctx context.Context) (map[string]json.RawMessage, error)
	// Clear removes the whole document of this chat and namespace.
	Clear(ctx context.Context) error
	// Append adds a value to the end of an array and returns the new length. A
	// missing key is an empty array.
	Append(ctx context.Context, key string, value any, opts ...StateOption) (int, error)
	// AppendAll is Append for the elements of a slice (anything whose JSON form is
	// an array): all in one step, next to each other.
	AppendAll(ctx context.Context, key string, values any, opts ...StateOption) (int, error)
	// Increment adds to a number, exactly, and returns the new one. A missing key
	// is 0.
	Increment(ctx context.Context, key string, by float64, opts ...StateOption) (float64, error)
	// Update replaces a key's value by what fn makes of it; nil is a missing
	// key, both ways: what fn makes nil is removed. fn may run several times and
	// must have no effects of its own.
	Update(ctx context.Context, key string, fn func(old json.RawMessage) (any, error), opts ...StateOption) error
}

// Get reads a key with a default for when it is missing:
//
//	codes, err := tool.Get(ctx, state, "codes", []string{})
func Get[T any](ctx context.Context, s State, key string, def T) (T, error) {
	v := def
	var got T
	found, err := s.Get(ctx, key, &got)
	if err == nil && found {
		v = got
	}
	return v, err
}

// Update replaces a key's value by what fn makes of it, or of def when the key
// is missing, and returns the new value. fn may run several times and must have
// no effects of its own; its error ends it and comes back as it is.
//
//	step, err := tool.Update(ctx, state, "step", 1, func(n int) (int, error) { return n + 1, nil })
func Update[T any](ctx context.Context, s State, key string, def T, fn func(old T) (T, error), opts ...StateOption) (T, error) {
	var fresh T
	err := s.Update(ctx, key, func(raw json.RawMessage) (any, error) {
		old := def
		if raw != nil {
			var got T
			if err := json.Unmarshal(raw, &got); err != nil {
				return nil, errcode.Wrap(errcode.InvalidRequest, err, "key %q: the stored value does not fit: %v", key, err)
			}
			old = got
		}
		var err error
		fresh, err = fn(old)
		return fresh, err
	}, opts...)
	if err != nil {
		var none T
		return none, err
	}
	return fresh, nil
}

// StateOptions are the choices of a write; for implementations of State.
type StateOptions struct {
	TTL    time.Duration // 0: the service's default
	Unique bool          // Append, AppendAll: leave out a value that is already there
}

// StateOption is one choice of a write.
type StateOption func(*StateOptions)

// TTL gives the whole document this life from now on, 1 second to 30 days unless
// the service is configured otherwise; others are invalid_request for the field
// ttl. 0 is the default, 24 hours.
func TTL(d time.Duration) StateOption { return func(o *StateOptions) { o.TTL = d } }

// Unique keeps Append and AppendAll from adding a value that is already there.
// Values are the same when their JSON is, whatever the order of an object's
// fields and the spelling of numbers.
func Unique() StateOption { return func(o *StateOptions) { o.Unique = true } }

// NewStateOptions gathers options; for implementations of State.
func NewStateOptions(opts []StateOption) StateOptions {
	var o StateOptions
	for _, f := range opts {
		f(&o)
	}
	return o
}

// Store is durable: values of one tool of one agent that never expire, such as
// the offset a poll has reached. Keys are 1 to 256 bytes of UTF-8.
type Store interface {
	// Get returns a value and whether it was there.
	Get(ctx context.Context, key string) (value string, found bool, err error)
	Set(ctx context.Context, key, value string) error
	// Delete removes a key and reports whether it was there.
	Delete(ctx context.Context, key string) (bool, error)
	// List returns the keys that start with prefix, sorted.
	List(ctx context.Context, prefix string) ([]string, error)
}

// RevisionStore is a Store with compare-and-set. A key's revision grows with
// every change; 0 means that the key is not there.
type RevisionStore interface {
	Store
	// Read returns a value with its revision.
	Read(ctx context.Context, key string) (message.StoreValue, error)
	// SetIf writes a value if the key still has this revision, and returns the new
	// one; otherwise conflict, with the revision that stands.
	SetIf(ctx context.Context, key, value string, revision uint64) (uint64, error)
	// DeleteIf removes a key if it still has this revision, not 0; otherwise
	// conflict.
	DeleteIf(ctx context.Context, key string, revision uint64) error
}

// Files is the tenant's file area, shared by all its agents and tools. Paths
// are relative, "/"-separated, without "." or ".." segments; a bad one is
// invalid_request, never repaired.
type Files interface {
	// Read returns a file's content; exists is false, without an error, when
	// there is none.
	Read(ctx context.Context, path string) (content []byte, info FileInfo, exists bool, err error)
	// ReadAt returns up to length bytes from offset, of one version: fewer only
	// at the file's end, none at or beyond it. info.Size is the whole file's.
	ReadAt(ctx context.Context, path string, offset, length int64) (content []byte, info FileInfo, exists bool, err error)
	// Write replaces a file, or makes it.
	Write(ctx context.Context, path string, content []byte) (FileInfo, error)
	// Append adds to the end of a file, or makes it. Appends that run at the
	// same time all land, each whole.
	Append(ctx context.Context, path string, content []byte) (FileInfo, error)
	// Create makes a file that must not exist; else conflict.
	Create(ctx context.Context, path string, content []byte) (FileInfo, error)
	// Stat returns a file's particulars and whether it exists.
	Stat(ctx context.Context, path string) (FileInfo, bool, error)
	// List returns the files whose path starts with prefix, sorted by path.
	List(ctx context.Context, prefix string) ([]FileInfo, error)
	// Move gives a file another path; it never stands under both, or none. It is
	// not_found when there is no file, and conflict when there is one at to already.
	Move(ctx context.Context, from, to string) (FileInfo, error)
	// Delete removes a file and reports whether it was there.
	Delete(ctx context.Context, path string) (bool, error)
}

// FileInfo are a file's particulars.
type FileInfo struct {
	Path     string
	Size     int64 // bytes
	Modified time.Time
	Revision uint64 // grows with every change
}
