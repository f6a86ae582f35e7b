package tooltest

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/decimal"
	"github.com/toolbus/toolbus/pkg/tool"
)

// What the state service does unless told otherwise.
const (
	stateTTL      = 24 * time.Hour
	minStateTTL   = time.Second
	maxStateTTL   = 30 * 24 * time.Hour
	documentLimit = 64 << 10 // bytes of the stored document
	keysLimit     = 1024     // keys of a document
	expiresFormat = "2006-01-02T15:04:05.000Z"
)

type stateKey struct{ tenant, chat, namespace string }

// stateMemory keeps the ToolState documents of an Env.
type stateMemory struct {
	now func() time.Time

	mu       sync.Mutex
	docs     map[stateKey]document
	revision uint64
}

// document is never changed in place; a write replaces it.
type document struct {
	data     map[string]json.RawMessage
	expires  time.Time
	revision uint64
}

func newStateMemory(now func() time.Time) *stateMemory {
	return &stateMemory{now: now, docs: map[stateKey]document{}}
}

func (m *stateMemory) of(key stateKey) tool.State { return &memoryState{m, key} }

// live is the document unless it expired; its zero value has revision 0.
func (m *stateMemory) live(key stateKey) document {
	d, ok := m.docs[key]
	if ok && !m.now().Before(d.expires) {
		delete(m.docs, key)
		return document{}
	}
	return d
}

// memoryState is one chat's scratch pad under a namespace.
type memoryState struct {
	m   *stateMemory
	key stateKey
}

func (s *memoryState) check(ctx context.Context, key *string) error {
	if err := ctx.Err(); err != nil {
		return errcode.From(err)
	}
	if s.key.chat == "" {
		return errcode.Field("chatId", "is required: the call names no chat, so there is no scratch state")
	}
	if err := subject.CheckFree("chatId", s.key.chat); err != nil {
		return err
	}
	if err := subject.CheckName("namespace", s.key.namespace); err != nil {
		return err
	}
	if key != nil {
		return subject.CheckFree("key", *key)
	}
	return nil
}

func (s *memoryState) Get(ctx context.Context, key string, v any) (bool, error) {
	if err := s.check(ctx, &key); err != nil {
		return false, err
	}
	s.m.mu.Lock()
	raw, ok := s.m.live(s.key).data[key]
	s.m.mu.Unlock()
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return true, errcode.Wrap(errcode.InvalidRequest, err, "key %q does not fit: %v", key, err)
	}
	return true, nil
}

func (s *memoryState) All(ctx context.Context) (map[string]json.RawMessage, error) {
	if err := s.check(ctx, nil); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return copied(s.m.live(s.key).data), nil
}

func (s *memoryState) Clear(ctx context.Context) error {
	if err := s.check(ctx, nil); err != nil {
		return err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	delete(s.m.docs, s.key)
	return nil
}

func (s *memoryState) Set(ctx context.Context, key string, v any, opts ...tool.StateOption) error {
	raw, err := jsonValue(v)
	if err != nil {
		return err
	}
	return s.write(ctx, key, opts, func(data map[string]json.RawMessage) error {
		data[key] = raw
		return nil
	})
}

func (s *memoryState) Delete(ctx context.Context, key string) (bool, error) {
	if err := s.check(ctx, &key); err != nil {
		return false, err
	}
	s.m.mu.Lock()
	_, found := s.m.live(s.key).data[key]
	s.m.mu.Unlock()
	if !found {
		return false, nil
	}
	err := s.write(ctx, key, nil, func(data map[string]json.RawMessage) error {
		_, found = data[key]
		delete(data, key)
		return nil
	})
	return found, err
}

func (s *memoryState) Append(ctx context.Context, key string, v any, opts ...tool.StateOption) (int, error) {
	raw, err := jsonValue(v)
	if err != nil {
		return 0, err
	}
	return s.append(ctx, key, []json.RawMessage{raw}, opts)
}

func (s *memoryState) AppendAll(ctx context.Context, key string, values any, opts ...tool.StateOption) (int, error) {
	raw, err := message.Marshal(values)
	if err != nil {
		return 0, errcode.Field("values", "has no JSON form: %v", err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, errcode.Field("values", "must be a slice, which %.40s is not", raw)
	}
	return s.append(ctx, key, list, opts)
}

func (s *memoryState) append(ctx context.Context, key string, values []json.RawMessage, opts []tool.StateOption) (int, error) {
	unique := tool.NewStateOptions(opts).Unique
	n := 0
	err := s.write(ctx, key, opts, func(data map[string]json.RawMessage) error {
		list := []json.RawMessage{}
		if old, ok := data[key]; ok {
			if err := json.Unmarshal(old, &list); err != nil || list == nil {
				return errcode.Field("key", "%q is not an array, so nothing can be appended", key)
			}
		}
		if unique {
			values = additions(list, values)
		}
		list = append(list, values...)
		n = len(list)
		var err error
		data[key], err = message.Marshal(list)
		return err
	})
	return n, err
}

// additions are the values, each once, that are not in the list.
func additions(list, values []json.RawMessage) []json.RawMessage {
	seen := make(map[string]bool, len(list)+len(values))
	for _, e := range list {
		seen[canonical(e)] = true
	}
	var add []json.RawMessage
	for _, v := range values {
		if mark := canonical(v); !seen[mark] {
			seen[mark] = true
			add = append(add, v)
		}
	}
	return add
}

func (s *memoryState) Increment(ctx context.Context, key string, by float64, opts ...tool.StateOption) (float64, error) {
	if math.IsNaN(by) || math.IsInf(by, 0) {
		return 0, errcode.Field("by", "must be a finite number")
	}
	sum := 0.0
	err := s.write(ctx, key, opts, func(data map[string]json.RawMessage) error {
		old := "0"
		if raw, ok := data[key]; ok {
			old = string(raw)
			if _, err := decimal.Normalize(old); err != nil {
				return errcode.Field("key", "%q is not a number, so it cannot be incremented", key)
			}
		}
		text, err := decimal.Add(old, strconv.FormatFloat(by, 'f', -1, 64))
		if err != nil {
			return errcode.Field("key", "%q cannot be incremented by %v: %v", key, by, err)
		}
		data[key] = json.RawMessage(text)
		sum, err = strconv.ParseFloat(text, 64)
		return err
	})
	if err != nil {
		return 0, err
	}
	return sum, nil
}

// Update runs fn outside the lock and starts again when somebody else wrote
// meanwhile, as the real one does: an fn with effects of its own shows.
func (s *memoryState) Update(ctx context.Context, key string, fn func(json.RawMessage) (any, error), opts ...tool.StateOption) error {
	for {
		if err := s.check(ctx, &key); err != nil {
			return err
		}
		s.m.mu.Lock()
		before := s.m.live(s.key)
		s.m.mu.Unlock()
		v, err := fn(slices.Clone(before.data[key]))
		if err != nil {
			return err
		}
		if _, found := before.data[key]; v == nil && !found {
			return nil // it is missing, and shall be
		}
		raw, err := jsonValue(v)
		if err != nil {
			return err
		}
		done, err := s.writeAt(ctx, &before.revision, key, opts, func(data map[string]json.RawMessage) error {
			if data[key] = raw; v == nil {
				delete(data, key)
			}
			return nil
		})
		if err != nil || done {
			return err
		}
	}
}

func (s *memoryState) write(ctx context.Context, key string, opts []tool.StateOption, change func(map[string]json.RawMessage) error) error {
	_, err := s.writeAt(ctx, nil, key, opts, change)
	return err
}

// writeAt applies change to a copy of the document and keeps it; with a
// revision only if the document still has it.
func (s *memoryState) writeAt(ctx context.Context, revision *uint64, key string, opts []tool.StateOption, change func(map[string]json.RawMessage) error) (bool, error) {
	if err := s.check(ctx, &key); err != nil {
		return false, err
	}
	ttl := tool.NewStateOptions(opts).TTL
	if ttl == 0 {
		ttl = stateTTL
	}
	if ttl < minStateTTL || ttl > maxStateTTL {
		return false, errcode.Field("ttl", "%s is out of range: %s to %s are allowed", ttl, minStateTTL, maxStateTTL)
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	old := s.m.live(s.key)
	if revision != nil && old.revision != *revision {
		return false, nil
	}
	next := document{data: copied(old.data), expires: s.m.now().Add(ttl), revision: s.m.revision + 1}
	if err := change(next.data); err != nil {
		return false, err
	}
	if n := len(next.data); n > keysLimit && n > len(old.data) {
		return false, errcode.OverLimit(errcode.TooLarge, keysLimit, int64(n), "the document would have %d keys, at most %d are allowed", n, keysLimit)
	}
	size, err := stored(next)
	if err != nil {
		return false, err
	}
	if size > documentLimit {
		return false, errcode.OverLimit(errcode.TooLarge, documentLimit, int64(size),
			"the document would be %d bytes, at most %d are allowed", size, documentLimit)
	}
	s.m.docs[s.key] = next
	if len(next.data) == 0 {
		delete(s.m.docs, s.key) // a document left without keys is none
	}
	s.m.revision = next.revision
	return true, nil
}

// stored is the size of the document as the service stores it.
func stored(d document) (int, error) {
	b, err := message.Marshal(message.ToolStateDocument{ExpiresAt: d.expires.UTC().Format(expiresFormat), Data: d.data})
	return len(b), err
}

func jsonValue(v any) (json.RawMessage, error) {
	raw, err := message.Marshal(v)
	if err != nil {
		return nil, errcode.Field("value", "has no JSON form: %v", err)
	}
	return raw, nil
}

func copied(data map[string]json.RawMessage) map[string]json.RawMessage {
	c := make(map[string]json.RawMessage, len(data))
	for k, v := range data {
		c[k] = slices.Clone(v)
	}
	return c
}
