// Package bucket reads and writes one KV bucket below the level of nats.go's
// KeyValue, whose writes carry neither a TTL nor headers: every write here is a
// compare-and-set on the key's last sequence.
package bucket

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// ErrRevision is a compare-and-set that missed: somebody else wrote.
var ErrRevision = jet.ErrRevision

// Headers of a marker, which stands where a value was removed. The reason is
// one that the server takes for a marker too: it then lets the marker expire
// without announcing an expiry.
const (
	headerOperation = "KV-Operation"
	opDelete        = "DEL"
	reasonRemove    = "Remove"
)

// Message is a key's last message.
type Message struct {
	Key    string
	Seq    uint64 // 0: there is none
	Header nats.Header
	Data   []byte
	Marker bool // the value was removed or has expired; Seq is the marker's
	// Current says that nothing later stood there when it was asked for.
	Current bool
}

// Bucket is one KV bucket with history 1.
type Bucket struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	leader bool // there are replicas, so only the leader is up to date
	reads  *groups
}

// Open creates the bucket's stream, or updates it to cfg, which comes from
// jet.BucketStream(name, …).
func Open(ctx context.Context, js jetstream.JetStream, name string, cfg jetstream.StreamConfig) (*Bucket, error) {
	st, err := jet.Ensure(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	b := &Bucket{js: js, stream: st, name: name, leader: cfg.Replicas > 1}
	b.reads = newGroups(b.readCurrent, b.askBytes)
	return b, nil
}

// Last reads a key's last message; Seq 0 when there is none. With replicas it
// asks the stream's leader, since followers answer direct gets too and may be
// behind; a leader that was deposed and does not know it yet may be behind too,
// so what is not Current is good for a compare-and-set only. Read is not behind.
func (b *Bucket) Last(ctx context.Context, key string) (Message, error) {
	var m *jetstream.RawStreamMsg
	var err error
	if to := jet.KVSubject(b.name, key); b.leader {
		m, err = jet.LastFromLeader(ctx, b.js, "KV_"+b.name, to)
	} else {
		m, err = jet.LastDirect(ctx, b.js, "KV_"+b.name, to)
	}
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return Message{Key: key, Current: !b.leader}, nil
	case err != nil:
		return Message{}, readError(err)
	}
	out := b.message(m)
	out.Current = !b.leader
	return out, nil
}

func (b *Bucket) message(m *jetstream.RawStreamMsg) Message {
	return Message{
		Key:    strings.TrimPrefix(m.Subject, jet.KVSubject(b.name, "")),
		Seq:    m.Sequence,
		Header: m.Header,
		Data:   m.Data,
		Marker: m.Header.Get(headerOperation) != "" || m.Header.Get(jetstream.MarkerReasonHeader) != "",
	}
}

// Put writes a value and returns its sequence. expect is the sequence that the
// key's last message must have (0: none); otherwise ErrRevision. ttl 0 means
// for ever; the server counts whole seconds, so it is rounded up.
func (b *Bucket) Put(ctx context.Context, key string, header nats.Header, data []byte, ttl time.Duration, expect uint64) (uint64, error) {
	return b.publish(ctx, key, header, data, ttl, expect)
}

// Remove writes a marker in a value's place, which itself goes after ttl.
// expect is as in Put.
func (b *Bucket) Remove(ctx context.Context, key string, header nats.Header, ttl time.Duration, expect uint64) (uint64, error) {
	markRemoved(header)
	return b.publish(ctx, key, header, nil, ttl, expect)
}

func markRemoved(header nats.Header) {
	header.Set(headerOperation, opDelete)
	header.Set(jetstream.MarkerReasonHeader, reasonRemove)
}

func (b *Bucket) publish(ctx context.Context, key string, header nats.Header, data []byte, ttl time.Duration, expect uint64) (uint64, error) {
	return jet.Put(ctx, b.js, b.msg(key, header, data, ttl), expect)
}

func (b *Bucket) msg(key string, header nats.Header, data []byte, ttl time.Duration) *nats.Msg {
	m := nats.NewMsg(jet.KVSubject(b.name, key))
	if header != nil {
		m.Header = header
	}
	m.Data = data
	if ttl > 0 {
		m.Header.Set(jetstream.MsgTTLHeader, wholeSeconds(ttl).String())
	}
	return m
}

func wholeSeconds(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}

// Keys returns the keys that match filter (a subject pattern below the
// bucket), markers' included, in no order.
func (b *Bucket) Keys(ctx context.Context, filter string) ([]string, error) {
	info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(jet.KVSubject(b.name, filter)))
	if err != nil {
		return nil, readError(err)
	}
	keys := make([]string, 0, len(info.State.Subjects))
	for s := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(s, jet.KVSubject(b.name, "")))
	}
	return keys, nil
}

// askBytes bounds what one request may name, in bytes of its keys. With what is
// around each it must fit a message, which may be smaller than usual.
const askBytes = 128 << 10

func (b *Bucket) askBytes() int { return int(min(askBytes, b.js.Conn().MaxPayload()/2)) }

// Fetch yields the last messages of keys, in their order, those that are gone
// left out. It asks for at most step (1 to 1,000, the server's limit is 1,024)
// at a time and stops when yield returns false. Replicas may answer a little
// behind the leader.
func (b *Bucket) Fetch(ctx context.Context, keys []string, step int, yield func(Message) bool) error {
	room := b.askBytes()
	for len(keys) > 0 {
		n, size := 0, 0
		for n < len(keys) && n < step && (n == 0 || size+len(keys[n]) < room) {
			size += len(keys[n])
			n++
		}
		filters := make([]string, n)
		for i, k := range keys[:n] {
			filters[i] = jet.KVSubject(b.name, k)
		}
		msgs, err := jet.Last(ctx, b.js, "KV_"+b.name, filters...)
		if err != nil {
			return err
		}
		slices.SortFunc(msgs, func(x, y *jetstream.RawStreamMsg) int {
			return slices.Index(filters, x.Subject) - slices.Index(filters, y.Subject)
		})
		for _, m := range msgs {
			if !yield(b.message(m)) {
				return nil
			}
		}
		keys = keys[n:]
	}
	return nil
}

func readError(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
}
