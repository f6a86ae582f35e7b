package tool

import (
	"context"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// maxJobWrites is how many keys one commit takes.
const maxJobWrites = 200

// jobStore lays a run's writes over the store as it stands.
type jobStore struct {
	base Store

	mu     sync.Mutex
	order  []string           // keys by first write
	writes map[string]*string // nil: deleted
	ended  bool
}

func newJobStore(base Store) *jobStore {
	return &jobStore{base: base, writes: map[string]*string{}}
}

func (s *jobStore) written(key string) (value *string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok = s.writes[key]
	return value, ok
}

func (s *jobStore) Get(ctx context.Context, key string) (string, bool, error) {
	if v, ok := s.written(key); ok {
		if v == nil {
			return "", false, nil
		}
		return *v, true, nil
	}
	return s.base.Get(ctx, key)
}

func (s *jobStore) Set(ctx context.Context, key, value string) error {
	if !utf8.ValidString(value) {
		return errcode.Field("value", "is not valid UTF-8")
	}
	return s.write(ctx, key, &value)
}

func (s *jobStore) Delete(ctx context.Context, key string) (bool, error) {
	_, found, err := s.Get(ctx, key)
	if err == nil {
		err = s.write(ctx, key, nil)
	}
	return found && err == nil, err
}

func (s *jobStore) write(ctx context.Context, key string, value *string) error {
	if err := ctx.Err(); err != nil {
		return errcode.From(err)
	}
	if err := subject.CheckFree("key", key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errcode.New(errcode.InvalidRequest, "the job's run is over: %q is not written", key)
	}
	if _, again := s.writes[key]; !again {
		if len(s.order) == maxJobWrites {
			return errcode.OverLimit(errcode.TooLarge, maxJobWrites, maxJobWrites+1, "one run may write at most %d keys", maxJobWrites)
		}
		s.order = append(s.order, key)
	}
	s.writes[key] = value
	return nil
}

func (s *jobStore) List(ctx context.Context, prefix string) ([]string, error) {
	keys, err := s.base.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keys = slices.DeleteFunc(keys, func(k string) bool { _, ok := s.writes[k]; return ok })
	for k, v := range s.writes {
		if v != nil && strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// end refuses further writes and returns those made.
func (s *jobStore) end() []message.StoreWrite {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	var out []message.StoreWrite
	for _, k := range s.order {
		out = append(out, message.StoreWrite{Key: k, Value: s.writes[k]})
	}
	return out
}
