package tooltest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/tool"
)

// valueLimit is the largest value in bytes, as the state service has it unless
// told otherwise.
const valueLimit = 256 << 10

type storeKey struct{ tenant, agent, tool, key string }

type storeValue struct {
	text     string
	revision uint64
}

// storeMemory keeps the durable values of an Env.
type storeMemory struct {
	mu       sync.Mutex
	values   map[storeKey]storeValue
	revision uint64 // of the last change
}

func newStoreMemory() *storeMemory { return &storeMemory{values: map[storeKey]storeValue{}} }

// put writes a value and returns its revision.
func (m *storeMemory) put(k storeKey, value string) uint64 {
	m.revision++
	m.values[k] = storeValue{value, m.revision}
	return m.revision
}

func (m *storeMemory) of(tenant, agent, toolName string) tool.RevisionStore {
	return &memoryStore{m, storeKey{tenant: tenant, agent: agent, tool: toolName}}
}

// commit applies all writes of a job run at one moment.
func (m *storeMemory) commit(tenant, agent, toolName string, writes []message.StoreWrite) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range writes {
		k := storeKey{tenant, agent, toolName, w.Key}
		if w.Value == nil {
			delete(m.values, k)
		} else {
			m.put(k, *w.Value)
		}
	}
}

// memoryStore is the store of one tool of one agent.
type memoryStore struct {
	m     *storeMemory
	owner storeKey // without key
}

func (s *memoryStore) at(ctx context.Context, key string) (storeKey, error) {
	if err := ctx.Err(); err != nil {
		return storeKey{}, errcode.From(err)
	}
	k := s.owner
	k.key = key
	return k, subject.CheckFree("key", key)
}

func (s *memoryStore) Get(ctx context.Context, key string) (string, bool, error) {
	v, err := s.Read(ctx, key)
	return v.Value, v.Found, err
}

func (s *memoryStore) Read(ctx context.Context, key string) (message.StoreValue, error) {
	k, err := s.at(ctx, key)
	if err != nil {
		return message.StoreValue{}, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	v, ok := s.m.values[k]
	return message.StoreValue{Found: ok, Value: v.text, Revision: v.revision}, nil
}

func (s *memoryStore) Set(ctx context.Context, key, value string) error {
	_, err := s.set(ctx, key, value, nil)
	return err
}

func (s *memoryStore) SetIf(ctx context.Context, key, value string, revision uint64) (uint64, error) {
	return s.set(ctx, key, value, &revision)
}

func (s *memoryStore) set(ctx context.Context, key, value string, revision *uint64) (uint64, error) {
	k, err := s.at(ctx, key)
	if err != nil {
		return 0, err
	}
	if !utf8.ValidString(value) {
		return 0, errcode.Field("value", "is not valid UTF-8")
	}
	if n := len(value); n > valueLimit {
		return 0, errcode.OverLimit(errcode.TooLarge, valueLimit, int64(n), "the value has %d bytes, at most %d are allowed", n, valueLimit)
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err := s.m.compare(k, revision); err != nil {
		return 0, err
	}
	return s.m.put(k, value), nil
}

// compare is conflict when the key has another revision; nil compares nothing.
func (m *storeMemory) compare(k storeKey, revision *uint64) error {
	if stands := m.values[k].revision; revision != nil && stands != *revision {
		return errcode.ConflictAt(stands, "key %q is at revision %d, not %d", k.key, stands, *revision)
	}
	return nil
}

func (s *memoryStore) Delete(ctx context.Context, key string) (bool, error) {
	return s.delete(ctx, key, nil)
}

func (s *memoryStore) DeleteIf(ctx context.Context, key string, revision uint64) error {
	if revision == 0 {
		return errcode.Field("ifRevision", "0 would delete what does not exist")
	}
	_, err := s.delete(ctx, key, &revision)
	return err
}

func (s *memoryStore) delete(ctx context.Context, key string, revision *uint64) (bool, error) {
	k, err := s.at(ctx, key)
	if err != nil {
		return false, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err := s.m.compare(k, revision); err != nil {
		return false, err
	}
	_, ok := s.m.values[k]
	delete(s.m.values, k)
	return ok, nil
}

func (s *memoryStore) List(ctx context.Context, prefix string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, errcode.From(err)
	}
	if prefix != "" {
		if err := subject.CheckFree("prefix", prefix); err != nil {
			return nil, err
		}
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	keys := []string{}
	for k := range s.m.values {
		owner, key := k, k.key
		owner.key = ""
		if owner == s.owner && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}
