// Package area is the tenants' file area: files in the standard object-store
// layout, written with compare-and-set.
//
// A file is a metadata message, which names a chunk id, and the chunks under
// that id. The metadata message is the one point of commit: chunks are stored
// first, then the metadata with the expected last sequence of its subject, then
// what it superseded is removed. So a crash or a refused write leaves the old
// version or the new one. What a crash leaves behind is removed by the next
// writer of the file or by the sweep.
//
// Chunks that a metadata message names are removed only after another one has
// superseded it. An append adds chunks under the same id, beyond the last one
// named (the tail); readers stop at the tail of the version they opened.
package area

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// Config are the limits of the file area.
type Config struct {
	Replicas     int
	MaxFileSize  int64 // bytes of one file
	Default      Limits
	ReserveQuota bool // give each tenant's stream a MaxBytes, which the server reserves
	// Limits knows what single tenants have instead of Default; may be nil.
	Limits interface {
		Of(ctx context.Context, tenant string, otherwise Limits) Limits
		// Again asks anew, before something is refused.
		Again(ctx context.Context, tenant string, otherwise Limits) Limits
	}
	// OrphanAge is how old chunks must be before the sweep removes those that no
	// file names. Uploads must be committed within UploadAge of their last chunk;
	// the difference is what a commit may take.
	OrphanAge time.Duration
	UploadAge time.Duration
	// CompactChunks is how many chunks a file has at least that is compacted: fewer
	// are read soon enough, and copying often makes appends slow.
	CompactChunks int
}

// Defaults of Config.
const (
	DefaultOrphanAge = time.Hour
	DefaultUploadAge = 50 * time.Minute

	DefaultCompactChunks = 512
)

const (
	maxChunk = 256 << 10       // bytes of a chunk, when a message can be that large
	opLimit  = 5 * time.Minute // what one write may take; well below OrphanAge-UploadAge

	putTimeout = 5 * time.Second
)

// Area serves the files of all tenants. Close it.
type Area struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	cfg       Config
	log       telemetry.Logger
	now       func() time.Time
	index     *index
	memory    memory
	jan       *janitor
	compactor *compactor
	known     *known

	base   context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	buckets map[string]*bucket
	lanes   map[laneKey]*lane
}

// New makes an Area on a connection.
func New(nc *nats.Conn, cfg Config, log telemetry.Logger) (*Area, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	a := &Area{
		nc: nc, js: js, cfg: cfg, log: log, now: time.Now, index: newIndex(), known: newKnown(),
		buckets: map[string]*bucket{}, lanes: map[laneKey]*lane{},
	}
	a.base, a.cancel = context.WithCancel(context.Background())
	a.jan = startJanitor(a)
	a.compactor = newCompactor(a)
	return a, nil
}

// Close waits for what is under way, until ctx ends, and stops.
func (a *Area) Close(ctx context.Context) {
	done := make(chan struct{})
	go func() { a.wg.Wait(); close(done) }()
	a.compactor.stop()
	select {
	case <-done:
	case <-ctx.Done():
		a.cancel()
		<-done
	}
	a.jan.stop(ctx)
	a.cancel()
}

// ChunkSize is the size, in bytes, of the chunks of uploads.
func (a *Area) ChunkSize() int { return int(min(maxChunk, bus.MaxBody(a.nc))) }

// bucket is a tenant's object store.
type bucket struct {
	tenant string
	name   string
	reader stream.Reader
	usage  usage
	marks  marks

	mu    sync.Mutex
	ready bool // the stream was made or updated by this process
}

func (a *Area) bucket(tenant string) *bucket {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.buckets[tenant]
	if b == nil {
		name := subject.FilesBucket(tenant)
		b = &bucket{tenant: tenant, name: name, reader: stream.Reader{Conn: a.nc, Name: "OBJ_" + name, Replicated: a.cfg.Replicas > 1}, usage: newUsage()}
		a.buckets[tenant] = b
	}
	return b
}

func (b *bucket) meta(path string) string {
	return "$O." + b.name + ".M." + base64.URLEncoding.EncodeToString([]byte(path))
}
func (b *bucket) anyMeta() string         { return "$O." + b.name + ".M.*" }
func (b *bucket) metas() string           { return "$O." + b.name + ".M.>" }
func (b *bucket) chunk(id string) string  { return "$O." + b.name + ".C." + id }
func (b *bucket) chunks() string          { return b.chunk("*") }
func (b *bucket) chunkID(s string) string { return strings.TrimPrefix(s, b.chunk("")) }
func (b *bucket) page(path string) string {
	return "$O." + b.name + ".P." + base64.URLEncoding.EncodeToString([]byte(path))
}
func (b *bucket) pages() string           { return "$O." + b.name + ".P.*" }
func (b *bucket) claimID(s string) string { return strings.TrimPrefix(s, b.claim("")) }
func (b *bucket) claim(id string) string  { return "$O." + b.name + ".U." + id }
func (b *bucket) claims() string          { return b.claim("*") }

// ensure makes the tenant's stream.
func (a *Area) ensure(ctx context.Context, b *bucket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready {
		return nil
	}
	if _, err := jet.Ensure(ctx, a.js, a.streamConfig(ctx, b)); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "the tenant's file area cannot be made: %v", err)
	}
	b.ready = true
	return nil
}

// streamConfig is the object store's stream, made safe for the headers that
// clients may set on the chunks they publish: no rollup, no TTL, no schedules, no
// batches, and the shortest duplicate window.
func (a *Area) streamConfig(ctx context.Context, b *bucket) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:        b.reader.Name,
		Description: "Toolbus files of " + b.tenant,
		Subjects:    []string{b.chunk(">"), b.metas(), b.pages(), b.claims(), subject.FilesChunk(b.tenant, "*")},
		SubjectTransform: &jetstream.SubjectTransformConfig{
			Source: subject.FilesChunk(b.tenant, "*"), Destination: b.chunk("{{wildcard(1)}}"),
		},
		Storage:      jetstream.FileStorage,
		Discard:      jetstream.DiscardNew,
		Replicas:     max(a.cfg.Replicas, 1),
		MaxMsgs:      -1,
		MaxBytes:     -1,
		MaxMsgSize:   -1,
		MaxConsumers: -1,
		Duplicates:   100 * time.Millisecond,
		AllowDirect:  true,
		// Only what we write: what clients publish, chunks, tells nobody anything.
		RePublish: &jetstream.RePublish{
			Source: b.anyMeta(), Destination: subject.ChangesFile(b.tenant, "{{wildcard(1)}}"), HeadersOnly: true,
		},
	}
	if quota := a.limits(ctx, b.tenant).Bytes; a.cfg.ReserveQuota && quota > 0 {
		// An overwrite holds both versions for a moment; the rest is headers.
		c.MaxBytes = quota + quota/8 + a.cfg.MaxFileSize + 16<<20
	}
	return c
}

// load reads a file's metadata; a file that never was is a Record without a
// revision.
func (a *Area) load(ctx context.Context, b *bucket, path string) (*record.Record, error) {
	m, err := b.reader.Last(ctx, b.meta(path))
	switch {
	case errors.Is(err, stream.ErrNone), errors.Is(err, stream.ErrNoStream):
		return &record.Record{Path: path}, nil
	case err != nil:
		return nil, err
	}
	return record.Decode(m.Data, m.Seq, m.Time)
}

// store publishes the metadata that follows revision expect, and returns its
// own revision; jet.ErrRevision when another stands.
func (a *Area) store(ctx context.Context, b *bucket, r *record.Record, expect uint64) (uint64, error) {
	data, err := r.Encode(b.name)
	if err != nil {
		return 0, err
	}
	m := nats.NewMsg(b.meta(r.Path))
	m.Data = data
	return a.put(ctx, b, m, expect)
}

// put publishes under the expected last sequence of the message's subject. An
// unavailable or timed out put may have happened.
func (a *Area) put(ctx context.Context, b *bucket, m *nats.Msg, expect uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	seq, err := jet.Put(ctx, a.js, m, expect)
	return seq, a.storeError(b, err)
}

// storeError makes a full stream the tenant's quota, and makes sure that a
// stream that went missing is made again.
func (a *Area) storeError(b *bucket, err error) error {
	switch {
	case err == nil, errors.Is(err, jet.ErrRevision):
		return err
	case errors.Is(err, errcode.TooLarge):
		return errcode.Wrap(errcode.QuotaExceeded, err, "the tenant's file area is full: %v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return errcode.Wrap(errcode.Unavailable, err, "JetStream did not answer in time")
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		b.mu.Lock()
		b.ready = false
		b.mu.Unlock()
	}
	return err
}

// damaged is that chunks are missing which the metadata names.
func damaged(r *record.Record) error {
	return errcode.New(errcode.Internal, "chunks of %q are missing at revision %d", r.Path, r.Revision)
}
