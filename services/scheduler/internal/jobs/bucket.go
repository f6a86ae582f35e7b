// Package jobs is the scheduler's memory: the bucket toolbus_jobs. Every write is
// a compare-and-set, so that any number of replicas may share it.
//
// Its keys: <tenant>.<agent>.<entry> for what each entry did last; those of the
// scheduler itself begin with an underscore, which no tenant's name does.
package jobs

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
)

const ioTimeout = 3 * time.Second // of one read or write

// Bucket is toolbus_jobs.
type Bucket struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	leader bool // reads go to the leader: followers may be behind
}

// Item is a key's value.
type Item struct {
	Key  string
	Data []byte
	Seq  uint64 // what the next Put must expect; 0: there is no value
}

// Open creates or updates the bucket.
func Open(ctx context.Context, js jetstream.JetStream, replicas int) (*Bucket, error) {
	cfg := jet.BucketStream(subject.BucketJobs, replicas)
	cfg.Description = "Toolbus: what schedules and jobs did last"
	cfg.Duplicates = time.Second // no publish carries a message id
	st, err := jet.Ensure(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	return &Bucket{js: js, stream: st, leader: replicas > 1}, nil
}

const streamName = "KV_" + subject.BucketJobs

// Get reads a key; whoever was told that a write is done sees it.
func (b *Bucket) Get(ctx context.Context, key string) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	var m *jetstream.RawStreamMsg
	var err error
	if subj := jet.KVSubject(subject.BucketJobs, key); b.leader {
		m, err = jet.LastFromLeader(ctx, b.js, streamName, subj)
	} else {
		m, err = b.stream.GetLastMsgForSubject(ctx, subj)
	}
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return Item{Key: key}, nil
	case err != nil:
		return Item{}, unavailable(err)
	}
	return item(m), nil
}

// All reads every key that matches a filter of a subject's form. Replicas may
// answer a little behind the leader.
func (b *Bucket) All(ctx context.Context, filter string) ([]Item, error) {
	msgs, err := jet.Last(ctx, b.js, streamName, jet.KVSubject(subject.BucketJobs, filter))
	if err != nil {
		return nil, err
	}
	items := make([]Item, len(msgs))
	for i, m := range msgs {
		items[i] = item(m)
	}
	return items, nil
}

// Put writes a value that goes after ttl (whole seconds; 0: never). The error is
// jet.ErrRevision when the key's value is not the one of expect.
func (b *Bucket) Put(ctx context.Context, key string, data []byte, ttl time.Duration, expect uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	m := nats.NewMsg(jet.KVSubject(subject.BucketJobs, key))
	m.Data = data
	if ttl > 0 {
		m.Header.Set(jetstream.MsgTTLHeader, ttl.String())
	}
	return jet.Put(ctx, b.js, m, expect)
}

// Set writes a value whatever stands there; it is for values that only ever say
// the same.
func (b *Bucket) Set(ctx context.Context, key string, data []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	m := nats.NewMsg(jet.KVSubject(subject.BucketJobs, key))
	m.Data = data
	m.Header.Set(jetstream.MsgTTLHeader, ttl.String())
	if _, err := b.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(1)); err != nil {
		return jet.PublishError(err)
	}
	return nil
}

func item(m *jetstream.RawStreamMsg) Item {
	return Item{Key: strings.TrimPrefix(m.Subject, jet.KVSubject(subject.BucketJobs, "")), Data: m.Data, Seq: m.Sequence}
}

func unavailable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
}
