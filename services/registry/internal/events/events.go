// Package events keeps the audit trail, the stream TOOLBUS_EVENTS, and lists what
// it holds of a tenant. Whoever did something publishes its event; nobody else
// touches the stream.
package events

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
)

const (
	maxPage  = 1000
	maxEvent = 64 << 10         // bytes of one message
	idle     = 30 * time.Second // after which a consumer that was left behind goes
)

// Config is how long events are kept.
type Config struct {
	Replicas int
	MaxAge   time.Duration
	MaxBytes int64 // of all tenants; the oldest go first
}

// Trail is safe for concurrent use, by any number of processes.
type Trail struct {
	nc *nats.Conn
	js jetstream.JetStream
}

// Open creates or updates the stream.
func Open(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, cfg Config) (*Trail, error) {
	sc := jetstream.StreamConfig{
		Name:        subject.StreamEvents,
		Description: "Toolbus: audit trail",
		Subjects:    []string{subject.Event("*", "*", "*")},
		Replicas:    cfg.Replicas,
		MaxAge:      cfg.MaxAge,
		MaxBytes:    cfg.MaxBytes,
		MaxMsgSize:  maxEvent,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		// Publishers set no header that means anything here: no rollup, no time to
		// live, no schedule, and the shortest window for duplicates.
		Duplicates: 100 * time.Millisecond,
		DenyDelete: true,
	}
	if cfg.Replicas == 1 {
		// Nobody waits for an event to be stored, so nobody should wait for the disk.
		sc.PersistMode = jetstream.AsyncPersistMode
	}
	if _, err := jet.Ensure(ctx, js, sc); err != nil {
		return nil, err
	}
	return &Trail{nc: nc, js: js}, nil
}

// Publish adds events of a tenant; one that cannot be published is lost.
func (t *Trail) Publish(tenant string, list ...message.Event) {
	for _, e := range list {
		e.Time = time.Now().UTC().Format(time.RFC3339Nano)
		if data, err := message.Marshal(e); err == nil {
			_ = t.nc.Publish(subject.Event(tenant, e.AgentID, e.Kind), data)
		}
	}
}

// List returns a tenant's events, oldest first, at most a page and maxBytes of
// them.
func (t *Trail) List(ctx context.Context, tenant string, req message.EventsList, maxBytes int64) (message.EventListing, error) {
	out := message.EventListing{Events: []message.Event{}}
	cfg, skip, err := query(tenant, req)
	if err != nil {
		return out, err
	}
	most := maxPage
	if req.Limit > 0 {
		most = min(most, req.Limit)
	}
	cons, err := t.js.CreateConsumer(ctx, subject.StreamEvents, cfg)
	if err != nil {
		return out, unavailable(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = t.js.DeleteConsumer(ctx, subject.StreamEvents, cons.CachedInfo().Name) // or it goes by itself
	}()
	batch, err := cons.FetchNoWait(most)
	if err != nil {
		return out, unavailable(err)
	}
	var size int64
	var last uint64
	full := false
	for m := range batch.Messages() {
		if full {
			continue // until the batch has ended
		}
		meta, err := m.Metadata()
		if err != nil {
			return out, errcode.Wrap(errcode.Internal, err, "unreadable answer of JetStream")
		}
		if size += int64(len(m.Data())) + 1; size > maxBytes-1024 && last > 0 {
			full = true
			continue
		}
		last = meta.Sequence.Stream
		var e message.Event
		if json.Unmarshal(m.Data(), &e) == nil { // anything else is no event
			all := e.All()
			all = all[min(skip, len(all)):]
			if room := most - len(out.Events); room < len(all) {
				out.Events = append(out.Events, all[:room]...)
				out.Cursor = cursor(last, skip+room)
				full = true
				continue
			}
			out.Events = append(out.Events, all...)
		}
		skip = 0
		full = meta.Sequence.Consumer == uint64(most) || len(out.Events) == most
	}
	if err := batch.Error(); err != nil {
		return out, unavailable(err)
	}
	if full && out.Cursor == "" {
		out.Cursor = cursor(last+1, 0)
	}
	return out, nil
}

// cursor names the event after so many of the message at a sequence.
func cursor(seq uint64, skip int) string {
	return strconv.FormatUint(seq, 10) + "." + strconv.Itoa(skip)
}

func parseCursor(s string) (seq uint64, skip int, ok bool) {
	at, rest, _ := strings.Cut(s, ".")
	seq, errSeq := strconv.ParseUint(at, 10, 64)
	n, errSkip := strconv.ParseUint(rest, 10, 16)
	return seq, int(n), errSeq == nil && errSkip == nil && seq > 0
}

// query is the consumer that a request asks for.
func query(tenant string, req message.EventsList) (cfg jetstream.ConsumerConfig, skip int, err error) {
	agent, kind := "*", "*"
	cfg = jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: idle,
	}
	if req.Limit < 0 {
		return cfg, 0, errcode.Field("limit", "must not be negative")
	}
	if req.AgentID != "" {
		if err := subject.CheckName("agentId", req.AgentID); err != nil {
			return cfg, 0, err
		}
		agent = req.AgentID
	}
	if req.Kind != "" {
		if !slices.Contains(message.EventKinds, req.Kind) {
			return cfg, 0, errcode.Field("kind", "%q must be %s", req.Kind, strings.Join(message.EventKinds, ", "))
		}
		kind = req.Kind
	}
	if req.Since != "" {
		at, err := time.Parse(time.RFC3339, req.Since)
		if err != nil {
			return cfg, 0, errcode.Field("since", "%q is not an RFC 3339 time", req.Since)
		}
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &at
	}
	if req.Cursor != "" {
		seq, n, ok := parseCursor(req.Cursor)
		if !ok {
			return cfg, 0, errcode.Field("cursor", "%q is not of a page", req.Cursor)
		}
		cfg.DeliverPolicy, cfg.OptStartTime, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, nil, seq
		skip = n
	}
	cfg.FilterSubject = subject.Event(tenant, agent, kind)
	return cfg, skip, nil
}

func unavailable(err error) error {
	return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
}
