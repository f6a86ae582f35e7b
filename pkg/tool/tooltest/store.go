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

type storeKey struct{ tenant, agent, tool, key string }

// storeMemory keeps the durable values of an Env.
type storeMemory struct {
	mu     sync.Mutex
	values map[storeKey]string
}

func newStoreMemory() *storeMemory { return &storeMemory{values: map[storeKey]string{}} }

func (m *storeMemory) of(tenant, agent, toolName string) tool.Store {
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
			m.values[k] = *w.Value
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
	k, err := s.at(ctx, key)
	if err != nil {
		return "", false, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	v, ok := s.m.values[k]
	return v, ok, nil
}

func (s *memoryStore) Set(ctx context.Context, key, value string) error {
	k, err := s.at(ctx, key)
	if err != nil {
		return err
	}
	if !utf8.ValidString(value) {
		return errcode.Field("value", "is not valid UTF-8")
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.values[k] = value
	return nil
}

func (s *memoryStore) Delete(ctx context.Context, key string) (bool, error) {
	k, err := s.at(ctx, key)
	if err != nil {
		return false, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	_, ok := s.m.values[k]
	delete(s.m.values, k)
	return ok, nil
}

func (s *memoryStore) List(ctx context.Context, prefix string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, errcode.From(err)
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
