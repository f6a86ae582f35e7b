// Package store is the client of the durable store: string values of one tool
// of one agent that never expire. It imports no service.
package store

import (
	"context"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Store is the tool.RevisionStore of one tool of one agent. It is safe for
// concurrent use. Requests are tried again while the
// service is unavailable, within ctx (10 s when it has no deadline), and have
// one effect however often they are tried. Errors are *errcode.Error.
type Store struct {
	nc                  *nats.Conn
	tenant, agent, tool string
}

var _ tool.RevisionStore = (*Store)(nil)

// New makes a Store on a connection that stays the caller's.
func New(nc *nats.Conn, tenant, agent, tool string) *Store {
	return &Store{nc: nc, tenant: tenant, agent: agent, tool: tool}
}

func (s *Store) do(ctx context.Context, op string, in, out any) error {
	if err := subject.CheckTenant(s.tenant); err != nil {
		return err
	}
	if err := subject.CheckName("agent", s.agent); err != nil {
		return err
	}
	if err := subject.CheckName("tool", s.tool); err != nil {
		return err
	}
	return bus.Retry(ctx, s.nc, subject.Store(s.tenant, s.agent, s.tool, op), in, out)
}

func (s *Store) where() string { return s.tenant + "." + s.agent + "." + s.tool }

// Get returns a value and whether it was there.
func (s *Store) Get(ctx context.Context, key string) (string, bool, error) {
	out, err := s.Read(ctx, key)
	return out.Value, out.Found, err
}

// Read returns a value with its revision.
func (s *Store) Read(ctx context.Context, key string) (message.StoreValue, error) {
	var out message.StoreValue
	if err := subject.CheckFree("key", key); err != nil {
		return out, err
	}
	err := s.do(ctx, "get", message.StoreGet{Key: key}, &out)
	return out, err
}

// Set writes a value.
func (s *Store) Set(ctx context.Context, key, value string) error {
	_, err := s.write(ctx, message.StoreSet{Key: key, Value: value})
	return err
}

// SetIf writes a value if the key still has this revision (0: it does not
// exist) and returns the new one; otherwise conflict.
func (s *Store) SetIf(ctx context.Context, key, value string, revision uint64) (uint64, error) {
	return s.write(ctx, message.StoreSet{Key: key, Value: value, IfRevision: &revision})
}

// write checks first what its JSON form would hide.
func (s *Store) write(ctx context.Context, req message.StoreSet) (uint64, error) {
	if err := subject.CheckFree("key", req.Key); err != nil {
		return 0, err
	}
	if !utf8.ValidString(req.Value) {
		return 0, errcode.Field("value", "is not valid UTF-8")
	}
	req.OpID = bus.OpID(ctx, "store.set", s.where(), req)
	var out message.StoreWritten
	err := s.do(ctx, "set", req, &out)
	return out.Revision, err
}

// Delete removes a key and reports whether it was there.
func (s *Store) Delete(ctx context.Context, key string) (bool, error) {
	return s.remove(ctx, message.StoreDelete{Key: key})
}

// DeleteIf removes a key if it still has this revision; otherwise conflict.
func (s *Store) DeleteIf(ctx context.Context, key string, revision uint64) error {
	if revision == 0 {
		return errcode.Field("ifRevision", "0 would delete what does not exist")
	}
	_, err := s.remove(ctx, message.StoreDelete{Key: key, IfRevision: &revision})
	return err
}

func (s *Store) remove(ctx context.Context, req message.StoreDelete) (bool, error) {
	if err := subject.CheckFree("key", req.Key); err != nil {
		return false, err
	}
	req.OpID = bus.OpID(ctx, "store.delete", s.where(), req)
	var out message.StoreDeleted
	err := s.do(ctx, "delete", req, &out)
	return out.Deleted, err
}

// List returns the keys that start with prefix, sorted, however many they are.
func (s *Store) List(ctx context.Context, prefix string) ([]string, error) {
	keys := []string{}
	for req := (message.StoreList{Prefix: prefix, Limit: pageKeys}); ; {
		page, err := s.Page(ctx, req)
		if err != nil {
			return nil, err
		}
		keys = append(keys, page.Keys...)
		if page.Cursor == "" {
			return keys, nil
		}
		req.Cursor = page.Cursor
	}
}

const pageKeys = 1000 // the most a page may have

// Page returns one page of keys, sorted; Cursor is set when more follow.
func (s *Store) Page(ctx context.Context, req message.StoreList) (message.StoreKeys, error) {
	var out message.StoreKeys
	if req.Prefix != "" {
		if err := subject.CheckFree("prefix", req.Prefix); err != nil {
			return out, err
		}
	}
	err := s.do(ctx, "list", req, &out)
	return out, err
}

// Commit applies a job run's writes and records its wake in one step, for the
// scheduler; it reports whether this commit took place. False means that the
// job's outbox stands at this tick already, or at a later one: Outbox tells,
// and also whether a commit whose first answer was lost took place.
// conflict means that another tick's wake is still in the outbox: deliver and
// Settle it first.
func (s *Store) Commit(ctx context.Context, c message.StoreCommit) (bool, error) {
	var out message.StoreCommitted
	err := s.do(ctx, "commit", c, &out)
	return out.Committed, err
}

// Outbox returns the last committed tick of a job and, until it is settled, its
// wake.
func (s *Store) Outbox(ctx context.Context, jobID string) (message.StoreOutboxRecord, error) {
	var out message.StoreOutboxRecord
	err := s.do(ctx, "outbox", message.StoreOutbox{JobID: jobID}, &out)
	return out, err
}

// Settle clears the wake of a tick that is in the agent's mailbox. Settling
// what is settled, or superseded, changes nothing.
func (s *Store) Settle(ctx context.Context, jobID, tickID string) error {
	return s.do(ctx, "settle", message.StoreSettle{JobID: jobID, TickID: tickID}, nil)
}
