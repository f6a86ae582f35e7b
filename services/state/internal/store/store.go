// Package store answers the operations of the durable store: string values of
// one tool of one agent, in the bucket toolbus_store, that never expire.
package store

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
	"github.com/toolbus/toolbus/services/state/internal/commit"
	"github.com/toolbus/toolbus/services/state/internal/oplog"
	"github.com/toolbus/toolbus/services/state/internal/opstats"
)

// Kinds of operations as logs store them: never renumber.
const (
	kindSet    oplog.Kind = 1
	kindDelete oplog.Kind = 2
)

// Answers of a delete as logs store them.
const (
	yes = "1"
	no  = "0"
)

const readTimeout = 3 * time.Second

// Handler answers requests on store.<tenant>.<agent>.<tool>.<op>.
type Handler struct {
	bucket     *bucket.Bucket
	commit     *commit.Committer[string]
	limit      int64         // bytes of a value
	replyLimit int64         // bytes of a reply
	pageTime   time.Duration // a page of a list that took longer ends where it is
	serve      map[string]operation
	conflicts  prometheus.Counter
}

// operation serves one operation, with its metrics.
type operation struct {
	serve func(context.Context, scope, *bus.Incoming) (any, error)
	stats *opstats.Op
}

// Open makes the bucket and a Handler on it. limit is the largest value in
// bytes. Close it.
func Open(ctx context.Context, js jetstream.JetStream, replicas int, limit int64,
	stats *opstats.Stats,
) (*Handler, error) {
	cfg := jet.BucketStream(subject.BucketStore, replicas)
	cfg.Description = "Durable values of tools"
	cfg.Duplicates = time.Second // no publish carries a message id
	b, err := bucket.Open(ctx, js, subject.BucketStore, cfg)
	if err != nil {
		return nil, err
	}
	codec := commit.Codec[string]{
		Decode: func(body []byte) (string, time.Time, error) { return string(body), time.Time{}, nil },
		Encode: func(v string, _ time.Time) []byte { return []byte(v) },
	}
	h := &Handler{
		bucket: b, commit: commit.New(b, codec, time.Now, stats.Conflicts), limit: limit, replyLimit: bus.MaxBody(js.Conn()), pageTime: pageTime,
		serve: make(map[string]operation), conflicts: stats.Conflicts,
	}
	for op, serve := range map[string]func(context.Context, scope, *bus.Incoming) (any, error){
		"get": h.get, "set": h.set, "delete": h.delete, "list": h.list,
		"commit": h.commitTick, "outbox": h.outbox, "settle": h.settle,
	} {
		h.serve[op] = operation{serve, stats.Op("store." + op)}
	}
	return h, nil
}

// Close ends what runs.
func (h *Handler) Close() { h.commit.Close() }

// scope is whose keys a request is about.
type scope struct{ tenant, agent, tool string }

func (s scope) key(k string) string { return subject.StoreKey(s.tenant, s.agent, s.tool, k) }

// Serve answers one request.
func (h *Handler) Serve(ctx context.Context, in *bus.Incoming) (any, error) {
	tenant, agent, tool, op, err := subject.ParseStore(in.Subject)
	if err != nil {
		return nil, err
	}
	o, ok := h.serve[op]
	if !ok {
		return nil, errcode.Field("op", "%.64q is not an operation of the store", op)
	}
	began := time.Now()
	v, err := o.serve(ctx, scope{tenant, agent, tool}, in)
	o.stats.Done(began, err)
	return v, err
}

func (h *Handler) get(ctx context.Context, s scope, in *bus.Incoming) (any, error) {
	var req message.StoreGet
	if err := decode(in, &req, &req.Key); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := h.bucket.Read(ctx, s.key(req.Key))
	if err != nil || m.Seq == 0 || m.Marker {
		return message.StoreValue{}, err
	}
	return message.StoreValue{Found: true, Value: string(m.Data), Revision: m.Seq}, nil
}

func (h *Handler) set(ctx context.Context, s scope, in *bus.Incoming) (any, error) {
	var req struct { // message.StoreSet, but telling "" from a missing value
		Key        string  `json:"key"`
		Value      *string `json:"value"`
		IfRevision *uint64 `json:"ifRevision"`
		OpID       string  `json:"opId"`
	}
	if err := decode(in, &req, &req.Key); err != nil {
		return nil, err
	}
	if req.Value == nil {
		return nil, errcode.Field("value", "is required, a string")
	}
	if n := int64(len(*req.Value)); n > h.limit {
		return nil, errcode.OverLimit(errcode.TooLarge, h.limit, n, "the value has %d bytes, at most %d are allowed", n, h.limit)
	}
	if err := checkOpID(req.OpID); err != nil {
		return nil, err
	}
	r, err := h.commit.Do(ctx, s.key(req.Key), commit.Op[string]{
		ID: req.OpID, Age: in.Age(), Kind: kindSet, IfRevision: req.IfRevision,
		Apply: func(st *commit.State[string], _ time.Time) (commit.Answer, error) {
			*st = commit.State[string]{Live: true, Data: *req.Value}
			return commit.Answer{}, nil
		},
	})
	return message.StoreWritten{Revision: r.Revision}, err
}

func (h *Handler) delete(ctx context.Context, s scope, in *bus.Incoming) (any, error) {
	var req message.StoreDelete
	if err := decode(in, &req, &req.Key); err != nil {
		return nil, err
	}
	if err := checkOpID(req.OpID); err != nil {
		return nil, err
	}
	r, err := h.commit.Do(ctx, s.key(req.Key), commit.Op[string]{
		ID: req.OpID, Age: in.Age(), Kind: kindDelete, IfRevision: req.IfRevision,
		Apply: func(st *commit.State[string], _ time.Time) (commit.Answer, error) {
			if !st.Live {
				return commit.Answer{Text: no, None: true, Idle: true}, nil
			}
			*st = commit.State[string]{}
			return commit.Answer{Text: yes, None: true}, nil
		},
	})
	return message.StoreDeleted{Deleted: r.Text == yes}, err
}

func decode(in *bus.Incoming, req any, key *string) error {
	if err := in.Decode(req); err != nil {
		return err
	}
	return subject.CheckFree("key", *key)
}

func checkOpID(id string) error {
	if id == "" {
		return nil
	}
	return subject.CheckFree("opId", id)
}
