// Package toolstate answers the ToolState operations: one expiring document per
// tenant, chat and namespace, in the bucket toolbus_toolstate.
package toolstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	spelling "github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
	"github.com/toolbus/toolbus/services/state/internal/commit"
	"github.com/toolbus/toolbus/services/state/internal/document"
	"github.com/toolbus/toolbus/services/state/internal/oplog"
	"github.com/toolbus/toolbus/services/state/internal/opstats"
)

// Limits bound documents and their lives.
type Limits struct {
	document.Limits
	DefaultTTL, MinTTL, MaxTTL time.Duration
}

// Kinds of operations as logs store them: never renumber.
const (
	kindSet oplog.Kind = iota + 1
	kindDelete
	kindClear
	kindAppend
	kindIncrement
	kindUpdate
)

// markerLife is how long the server keeps the marker of an expired document. A
// watcher hears of it at once; nothing needs it later.
const markerLife = time.Minute

// Handler answers requests on toolstate.<tenant>.<op>.
type Handler struct {
	bucket *bucket.Bucket
	commit *commit.Committer[document.Document]
	limits Limits
	now    func() time.Time
	serve  map[string]operation

	replyLimit int64         // bytes of a reply
	pageTime   time.Duration // a page of a listing that took longer ends where it is
}

// operation serves one operation, with its metrics.
type operation struct {
	serve func(ctx context.Context, tenant string, in *bus.Incoming) (any, error)
	stats *opstats.Op
}

// Open makes the bucket and a Handler on it. Close it.
func Open(ctx context.Context, js jetstream.JetStream, replicas int, limits Limits, now func() time.Time,
	stats *opstats.Stats,
) (*Handler, error) {
	cfg := jet.BucketStream(subject.BucketToolState, replicas)
	cfg.Description = "ToolState documents"
	cfg.Duplicates = time.Second // no publish carries a message id
	cfg.SubjectDeleteMarkerTTL = markerLife
	cfg.RePublish = &jetstream.RePublish{
		Source:      jet.KVSubject(subject.BucketToolState, "*.*.*"),
		Destination: subject.ChangesToolState("{{wildcard(1)}}", "{{wildcard(2)}}", "{{wildcard(3)}}"),
	}
	b, err := bucket.Open(ctx, js, subject.BucketToolState, cfg)
	if err != nil {
		return nil, err
	}
	codec := commit.Codec[document.Document]{
		Decode: document.Decode,
		Encode: func(d document.Document, expires time.Time) []byte { return d.Encode(expires) },
	}
	h := &Handler{bucket: b, commit: commit.New(b, codec, now, stats.Conflicts), limits: limits, now: now, replyLimit: bus.MaxBody(js.Conn()), pageTime: pageTime}
	h.serve = make(map[string]operation)
	for op, serve := range map[string]func(context.Context, string, *bus.Incoming) (any, error){
		"get": h.get, "set": h.set, "delete": h.delete, "all": h.all, "clear": h.clear,
		"append": h.append, "increment": h.increment, "update": h.update, "list": h.list,
	} {
		h.serve[op] = operation{serve, stats.Op("toolstate." + op)}
	}
	return h, nil
}

// Close ends what runs.
func (h *Handler) Close() { h.commit.Close() }

// Serve answers one request.
func (h *Handler) Serve(ctx context.Context, in *bus.Incoming) (any, error) {
	tenant, op, err := subject.ParseTenantOp(subject.FamilyToolState, in.Subject, false)
	if err != nil {
		return nil, err
	}
	o, ok := h.serve[op]
	if !ok {
		return nil, errcode.Field("op", "%.64q is not an operation of toolstate", op)
	}
	began := time.Now()
	v, err := o.serve(ctx, tenant, in)
	o.stats.Done(began, err)
	return v, err
}

func (h *Handler) get(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateGet
	if !readGet(in.Data, &req) {
		if err := in.Decode(&req); err != nil {
			return nil, wireField(err)
		}
	}
	if err := checkRef(&req.ToolStateRef, &req.Key); err != nil {
		return nil, err
	}
	m, err := h.last(ctx, key(tenant, req.ToolStateRef))
	if err != nil || m.Seq == 0 || m.Marker {
		return message.ToolStateValue{}, err
	}
	v, found, expires, err := document.Lookup(m.Data, req.Key)
	switch {
	case err != nil:
		return nil, unreadable(m, err)
	case !h.now().Before(expires):
		return message.ToolStateValue{}, nil
	}
	return bus.Raw{Data: encodeValue(message.ToolStateValue{Found: found, Value: v, Revision: m.Seq, ExpiresAt: stamp(expires)})}, nil
}

// encodeValue is message.Marshal for a value that a document holds, which is
// JSON without white space, in a tenth of the time.
func encodeValue(v message.ToolStateValue) []byte {
	b := make([]byte, 0, 128+len(v.Value))
	b = append(b, `{"found":`...)
	b = strconv.AppendBool(b, v.Found)
	b = append(b, `,"value":`...)
	if v.Value == nil {
		b = append(b, "null"...)
	}
	b = append(b, v.Value...)
	b = append(b, `,"revision":`...)
	b = strconv.AppendUint(b, v.Revision, 10)
	if v.ExpiresAt != "" {
		b = append(b, `,"expiresAt":"`...)
		b = append(b, v.ExpiresAt...)
		b = append(b, '"')
	}
	return append(b, '}')
}

func (h *Handler) all(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateAll
	if err := decode(in, &req, &req.ToolStateRef, nil); err != nil {
		return nil, err
	}
	d, rev, expires, err := h.read(ctx, key(tenant, req.ToolStateRef))
	if err != nil {
		return nil, err
	}
	return message.ToolStateData{Found: rev != 0, Data: d.All(), Revision: rev, ExpiresAt: stamp(expires)}, nil
}

// read returns the live document; revision 0 when there is none.
func (h *Handler) read(ctx context.Context, key string) (d document.Document, revision uint64, expires time.Time, err error) {
	m, err := h.last(ctx, key)
	if err != nil {
		return d, 0, expires, err
	}
	return h.live(m)
}

// last reads the message of a document, a marker included.
func (h *Handler) last(ctx context.Context, key string) (bucket.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return h.bucket.Read(ctx, key)
}

func unreadable(m bucket.Message, err error) error {
	return errcode.Wrap(errcode.Internal, err, "key %s: %v", m.Key, err)
}

const readTimeout = 3 * time.Second

func (h *Handler) live(m bucket.Message) (d document.Document, revision uint64, expires time.Time, err error) {
	if m.Seq == 0 || m.Marker {
		return d, 0, expires, nil
	}
	if d, expires, err = document.Decode(m.Data); err != nil {
		return d, 0, expires, unreadable(m, err)
	}
	if !h.now().Before(expires) {
		return document.Document{}, 0, time.Time{}, nil
	}
	return d, m.Seq, expires, nil
}

func (h *Handler) set(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateSet
	if err := decode(in, &req, &req.ToolStateRef, &req.Key); err != nil {
		return nil, err
	}
	if req.Value == nil {
		return nil, errcode.Field("value", "is required; null is a value too")
	}
	r, err := h.write(ctx, tenant, req.ToolStateRef, write{
		kind: kindSet, opID: req.OpID, age: in.Age(), ttl: req.TTL, ifRevision: req.IfRevision,
		apply: func(d *document.Document) (string, error) {
			_, err := d.Update(map[string]json.RawMessage{req.Key: req.Value}, nil, h.limits.Limits)
			return "", err
		},
	})
	return message.ToolStateWritten{Revision: r.Revision, ExpiresAt: stamp(r.Expires)}, err
}

func (h *Handler) update(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateUpdate
	if err := decode(in, &req, &req.ToolStateRef, nil); err != nil {
		return nil, err
	}
	if len(req.Set) == 0 && len(req.Delete) == 0 && req.TTL == "" {
		return nil, errcode.Field("set", "give set, delete or ttl: there is nothing to do")
	}
	for k := range req.Set {
		if err := subject.CheckFree(fmt.Sprintf("set[%.64q]", k), k); err != nil {
			return nil, err
		}
	}
	for i, k := range req.Delete {
		if err := subject.CheckFree(fmt.Sprintf("delete[%d]", i), k); err != nil {
			return nil, err
		}
		if _, both := req.Set[k]; both {
			return nil, errcode.Field(fmt.Sprintf("delete[%d]", i), "%q stands in set too", k)
		}
	}
	r, err := h.write(ctx, tenant, req.ToolStateRef, write{
		kind: kindUpdate, opID: req.OpID, age: in.Age(), ttl: req.TTL, ifRevision: req.IfRevision,
		apply: func(d *document.Document) (string, error) {
			_, err := d.Update(req.Set, req.Delete, h.limits.Limits)
			return "", err
		},
	})
	return message.ToolStateWritten{Revision: r.Revision, ExpiresAt: stamp(r.Expires)}, err
}

func (h *Handler) delete(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateDelete
	if err := decode(in, &req, &req.ToolStateRef, &req.Key); err != nil {
		return nil, err
	}
	r, err := h.write(ctx, tenant, req.ToolStateRef, write{
		kind: kindDelete, opID: req.OpID, age: in.Age(), onlyLive: true,
		apply: func(d *document.Document) (string, error) {
			n, err := d.Update(nil, []string{req.Key}, h.limits.Limits)
			return flag(n > 0), err
		},
	})
	return message.ToolStateDeleted{Deleted: r.Text == yes, Revision: r.Revision, ExpiresAt: stamp(r.Expires)}, err
}

func (h *Handler) append(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateAppend
	if err := decode(in, &req, &req.ToolStateRef, &req.Key); err != nil {
		return nil, err
	}
	if req.Values == nil {
		return nil, errcode.Field("values", "is required")
	}
	r, err := h.write(ctx, tenant, req.ToolStateRef, write{
		kind: kindAppend, opID: req.OpID, age: in.Age(), ttl: req.TTL,
		apply: func(d *document.Document) (string, error) {
			n, err := d.Append(req.Key, req.Values, req.Unique, h.limits.Limits)
			return strconv.Itoa(n), err
		},
	})
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(r.Text)
	return message.ToolStateAppended{Length: n, Revision: r.Revision, ExpiresAt: stamp(r.Expires)}, err
}

func (h *Handler) increment(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req struct { // message.ToolStateIncrement, but telling what is no number by its field
		message.ToolStateRef
		Key  string          `json:"key"`
		By   json.RawMessage `json:"by"`
		TTL  string          `json:"ttl"`
		OpID string          `json:"opId"`
	}
	if err := decode(in, &req, &req.ToolStateRef, &req.Key); err != nil {
		return nil, err
	}
	var by json.Number
	switch err := json.Unmarshal(req.By, &by); {
	case len(req.By) == 0 || by == "" && err == nil:
		return nil, errcode.Field("by", "is required")
	case err != nil || req.By[0] == '"': // json.Number takes a string for its number
		return nil, errcode.Field("by", "must be a number")
	}
	r, err := h.write(ctx, tenant, req.ToolStateRef, write{
		kind: kindIncrement, opID: req.OpID, age: in.Age(), ttl: req.TTL,
		apply: func(d *document.Document) (string, error) { return d.Increment(req.Key, by, h.limits.Limits) },
	})
	return message.ToolStateIncremented{Value: json.Number(r.Text), Revision: r.Revision, ExpiresAt: stamp(r.Expires)}, err
}

func (h *Handler) clear(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateClear
	if err := decode(in, &req, &req.ToolStateRef, nil); err != nil {
		return nil, err
	}
	if err := checkOpID(req.OpID); err != nil {
		return nil, err
	}
	r, err := h.commit.Do(ctx, key(tenant, req.ToolStateRef), commit.Op[document.Document]{
		ID: req.OpID, Age: in.Age(), Kind: kindClear,
		Apply: func(s *commit.State[document.Document], _ time.Time) (commit.Answer, error) {
			was := s.Live
			*s = commit.State[document.Document]{}
			return commit.Answer{Text: flag(was), None: true, Idle: !was}, nil
		},
	})
	return message.ToolStateCleared{Cleared: r.Text == yes}, err
}

// write is a change of a document's data, which gets a new life by it. One left
// without keys is no document any more.
type write struct {
	kind       oplog.Kind
	opID       string
	age        time.Duration // as in commit.Op
	ttl        string
	ifRevision *uint64
	onlyLive   bool // do nothing, and answer no, when there is no document
	apply      func(*document.Document) (string, error)
}

func (h *Handler) write(ctx context.Context, tenant string, ref message.ToolStateRef, w write) (commit.Result, error) {
	if err := checkOpID(w.opID); err != nil {
		return commit.Result{}, err
	}
	ttl, err := h.ttl(w.ttl)
	if err != nil {
		return commit.Result{}, err
	}
	return h.commit.Do(ctx, key(tenant, ref), commit.Op[document.Document]{
		ID: w.opID, Age: w.age, Kind: w.kind, IfRevision: w.ifRevision,
		Apply: func(s *commit.State[document.Document], now time.Time) (commit.Answer, error) {
			if !s.Live && w.onlyLive {
				return commit.Answer{Text: no, None: true, Idle: true}, nil
			}
			text, err := w.apply(&s.Data)
			if err != nil {
				return commit.Answer{}, err
			}
			if s.Data.Len() == 0 {
				idle := !s.Live // an update of nothing on nothing
				*s = commit.State[document.Document]{}
				return commit.Answer{Text: text, None: true, Idle: idle}, nil
			}
			s.Live, s.Expires = true, now.Add(ttl)
			return commit.Answer{Text: text}, nil
		},
	})
}

func (h *Handler) ttl(s string) (time.Duration, error) {
	if s == "" {
		return h.limits.DefaultTTL, nil
	}
	d, err := spelling.ParseTTL(s)
	if err != nil {
		return 0, err
	}
	if d < h.limits.MinTTL || d > h.limits.MaxTTL {
		return 0, errcode.Field("ttl", "%.40q is out of range: %s to %s are allowed", s, h.limits.MinTTL, h.limits.MaxTTL)
	}
	return d.Truncate(time.Millisecond), nil
}

// Answers of yes-or-no operations as logs store them.
const (
	yes = "1"
	no  = "0"
)

func flag(b bool) string {
	if b {
		return yes
	}
	return no
}

func key(tenant string, ref message.ToolStateRef) string {
	return subject.ToolStateKey(tenant, ref.Namespace, ref.ChatID)
}

// decode reads a request and checks what names its document and key.
func decode(in *bus.Incoming, req any, ref *message.ToolStateRef, key *string) error {
	if err := in.Decode(req); err != nil {
		return wireField(err)
	}
	return checkRef(ref, key)
}

// wireField names a field as it is on the wire, where the embedded reference's
// fields are the request's.
func wireField(err error) error {
	var e *errcode.Error
	if errors.As(err, &e) && e.Details != nil && len(e.Details.Fields) == 1 {
		f := e.Details.Fields[0]
		return errcode.Field(strings.TrimPrefix(f.Field, "ToolStateRef."), "%s", f.Message)
	}
	return err
}

// checkRef checks what names a document and, unless it is nil, a key.
func checkRef(ref *message.ToolStateRef, key *string) error {
	if err := subject.CheckFree("chatId", ref.ChatID); err != nil {
		return err
	}
	if err := subject.CheckName("namespace", ref.Namespace); err != nil {
		return err
	}
	if key != nil {
		return subject.CheckFree("key", *key)
	}
	return nil
}

func checkOpID(id string) error {
	if id == "" {
		return nil
	}
	return subject.CheckFree("opId", id)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return document.FormatTime(t)
}
