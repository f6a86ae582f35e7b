// Package blobs keeps the bodies of tool calls that are too large for one
// message: the stream that captures their chunks, and the answers to who
// fetches them. Blobs expire by age.
package blobs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// Config are the limits of the blobs.
type Config struct {
	Replicas int
	Age      time.Duration // how long a blob can be fetched
	MaxBytes int64         // of all blobs; the oldest go first. -1: no limit
}

// maxPlaces is how many chunks' places are remembered.
const maxPlaces = 1 << 18

// StreamConfig is the blobs' stream, made safe for the headers that clients may
// set on what they publish: no rollup, no TTL, no schedules, no batches, and the
// shortest duplicate window.
func StreamConfig(cfg Config) jetstream.StreamConfig {
	family := func(f string) string { return subject.Blob(f, "*", "*", "*") }
	return jetstream.StreamConfig{
		Name:        subject.StreamBlobs,
		Description: "Toolbus arguments and results that are too large for one message",
		Subjects:    []string{family(subject.FamilyAgent), family(subject.FamilyWorker)},
		SubjectTransform: &jetstream.SubjectTransformConfig{
			Source:      family("*"),
			Destination: subject.StoredBlob("{{wildcard(2)}}", "{{wildcard(3)}}", "{{wildcard(4)}}"),
		},
		Storage:      jetstream.FileStorage,
		Discard:      jetstream.DiscardOld,
		Replicas:     max(cfg.Replicas, 1),
		MaxAge:       cfg.Age,
		MaxBytes:     cfg.MaxBytes,
		MaxMsgs:      -1,
		MaxMsgSize:   -1,
		MaxConsumers: -1,
		Duplicates:   100 * time.Millisecond,
		AllowDirect:  true,
	}
}

// Blobs answers fetches.
type Blobs struct {
	reader stream.Reader
	flight singleflight.Group

	mu     sync.Mutex
	places map[string]*blob // by stored subject
	total  int
}

// blob is where the chunks of a blob stand.
type blob struct {
	seq  map[int]uint64
	used time.Time
}

// New makes the stream, or updates it, and the Blobs.
func New(ctx context.Context, nc *nats.Conn, cfg Config) (*Blobs, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	if _, err := jet.Ensure(ctx, js, StreamConfig(cfg)); err != nil {
		return nil, err
	}
	return &Blobs{
		reader: stream.Reader{Conn: nc, Name: subject.StreamBlobs, Replicated: cfg.Replicas > 1},
		places: map[string]*blob{},
	}, nil
}

// Fetch returns one chunk of a blob of a tenant's agent.
func (b *Blobs) Fetch(ctx context.Context, tenant, agent, id string, q message.FetchRequest) ([]byte, error) {
	if q.Chunk < 0 || q.Chunk >= message.MaxBlobChunks {
		return nil, errcode.Field("chunk", "must be 0 to %d", message.MaxBlobChunks-1)
	}
	stored := subject.StoredBlob(tenant, agent, id)
	// A replica that answers may be a little behind what was acknowledged.
	for try := 0; ; try++ {
		seq := b.place(stored, q.Chunk)
		if seq == 0 {
			_, err, _ := b.flight.Do(stored, func() (any, error) { return nil, b.find(context.WithoutCancel(ctx), stored) })
			if err != nil {
				return nil, err
			}
			seq = b.place(stored, q.Chunk)
		}
		if seq > 0 {
			m, err := b.reader.At(ctx, seq)
			switch {
			case err == nil && m.Subject == stored:
				return m.Data, nil
			case err != nil && !errors.Is(err, stream.ErrNone):
				return nil, err
			}
			b.forget(stored)
		}
		if try == 2 {
			return nil, errcode.New(errcode.NotFound, "no chunk %d of blob %q: never stored, or expired", q.Chunk, id)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// find looks where a blob's chunks stand; they were published in parallel, so
// their order says nothing.
func (b *Blobs) find(ctx context.Context, stored string) error {
	at := map[int]uint64{}
	seen := 0
	err := b.reader.Walk(ctx, stored, 0, 0, func(m stream.Msg) error {
		if seen++; seen > message.MaxBlobChunks {
			return stream.Stop
		}
		n, ok := m.Chunk()
		if !ok || n >= message.MaxBlobChunks {
			return nil
		}
		if _, twice := at[n]; !twice {
			at[n] = m.Seq
		}
		return nil
	})
	if err != nil || len(at) == 0 {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(stored)
	b.places[stored] = &blob{seq: at, used: time.Now()}
	b.total += len(at)
	for b.total > maxPlaces {
		var oldest string
		for s, e := range b.places {
			if oldest == "" || e.used.Before(b.places[oldest].used) {
				oldest = s
			}
		}
		b.drop(oldest)
	}
	return nil
}

func (b *Blobs) place(stored string, chunk int) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.places[stored]
	if e == nil {
		return 0
	}
	e.used = time.Now()
	return e.seq[chunk]
}

func (b *Blobs) forget(stored string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(stored)
}

func (b *Blobs) drop(stored string) {
	if e := b.places[stored]; e != nil {
		b.total -= len(e.seq)
		delete(b.places, stored)
	}
}

// Expire forgets the places of blobs that nobody fetched for age.
func (b *Blobs) Expire(age time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s, e := range b.places {
		if time.Since(e.used) > age {
			b.drop(s)
		}
	}
}
