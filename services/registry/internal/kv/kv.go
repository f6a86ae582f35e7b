// Package kv reads a bucket the way the registry promises: whoever was told
// that a write is done sees it in every read that starts later, whichever
// replica answers.
//
// With one JetStream replica a direct get is that already. With more, followers
// answer direct gets too and may be behind, so values are read from the leader.
package kv

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/internal/jet"
)

const (
	readTimeout = 5 * time.Second
	chunk       = 512 // keys of one direct multi-get; the server answers for at most 1,024
	parallel    = 16  // reads under way at once
)

// Bucket is a bucket's stream.
type Bucket struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	prefix string
	leader bool
}

// Entry is a key's last message.
type Entry struct {
	Key      string
	Data     []byte
	Header   nats.Header
	Revision uint64
	Time     time.Time
	Deleted  bool // a marker: the key has no value
}

// Open creates the bucket's stream or updates it to cfg, which BucketStream
// made for this name.
func Open(ctx context.Context, js jetstream.JetStream, name string, cfg jetstream.StreamConfig) (*Bucket, error) {
	st, err := jet.Ensure(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	return &Bucket{js: js, stream: st, name: name, prefix: jet.KVSubject(name, ""), leader: cfg.Replicas > 1}, nil
}

// Msg is a new message for a key.
func (b *Bucket) Msg(key string, data []byte) *nats.Msg {
	m := nats.NewMsg(b.prefix + key)
	m.Data = data
	return m
}

// DeleteMsg is a marker that says the key has no value. It goes after ttl.
func (b *Bucket) DeleteMsg(key string, ttl time.Duration) *nats.Msg {
	m := b.Msg(key, nil)
	m.Header.Set("KV-Operation", "DEL")
	m.Header.Set(jetstream.MsgTTLHeader, ttl.String())
	return m
}

// Keys lists the keys that match a pattern, those of markers included, in
// order. The leader answers.
func (b *Bucket) Keys(ctx context.Context, pattern string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(b.prefix+pattern))
	if err != nil {
		return nil, unavailable(err)
	}
	keys := make([]string, 0, len(info.State.Subjects))
	for s := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(s, b.prefix))
	}
	slices.Sort(keys)
	return keys, nil
}

// Get reads one key; ok is false when nothing, not even a marker, stands there.
func (b *Bucket) Get(ctx context.Context, key string) (e Entry, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var m *jetstream.RawStreamMsg
	if b.leader {
		m, err = jet.LastFromLeader(ctx, b.js, "KV_"+b.name, b.prefix+key)
	} else {
		m, err = b.stream.GetLastMsgForSubject(ctx, b.prefix+key)
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, unavailable(err)
	}
	return b.entry(m), true, nil
}

// GetAll reads many keys; those where nothing stands are left out. It is no
// snapshot: each key is read at a time of its own.
func (b *Bucket) GetAll(ctx context.Context, keys []string) (map[string]Entry, error) {
	var mu sync.Mutex
	out := make(map[string]Entry, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	if b.leader {
		for _, k := range keys {
			g.Go(func() error {
				e, ok, err := b.Get(ctx, k)
				if err == nil && ok {
					mu.Lock()
					out[k] = e
					mu.Unlock()
				}
				return err
			})
		}
		return out, g.Wait()
	}
	for part := range slices.Chunk(keys, chunk) {
		filters := make([]string, len(part))
		for i, k := range part {
			filters[i] = b.prefix + k
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			msgs, err := jet.Last(ctx, b.js, "KV_"+b.name, filters...)
			mu.Lock()
			defer mu.Unlock()
			for _, m := range msgs {
				e := b.entry(m)
				out[e.Key] = e
			}
			return err
		})
	}
	return out, g.Wait()
}

func (b *Bucket) entry(m *jetstream.RawStreamMsg) Entry {
	return Entry{
		Key: strings.TrimPrefix(m.Subject, b.prefix), Data: m.Data, Header: m.Header, Revision: m.Sequence, Time: m.Time,
		Deleted: m.Header.Get("KV-Operation") != "" || m.Header.Get("Nats-Marker-Reason") != "",
	}
}

func unavailable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
}
