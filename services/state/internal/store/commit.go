package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
	"github.com/toolbus/toolbus/services/state/internal/oplog"
)

const (
	maxWrites     = 200 // of one commit
	parallelReads = 16
)

// tickCommit is a message.StoreCommit that tells a missing value from null, and
// keeps the wake as it came.
type tickCommit struct {
	JobID   string `json:"jobId"`
	TickID  string `json:"tickId"`
	Slot    int64  `json:"slot"`
	Attempt int    `json:"attempt"`
	Writes  []struct {
		Key   string          `json:"key"`
		Value json.RawMessage `json:"value"`
	} `json:"writes"`
	Wake json.RawMessage `json:"wake"`

	values []*string // of Writes; nil: delete
}

// commitTick puts a tick's writes and its outbox record into the bucket in one
// step, if the record still stands at an earlier tick: that compare-and-set is
// the fence. Each written key is under one too, so that the log of recent
// operations that stands with its value is carried on and none is lost.
func (h *Handler) commitTick(ctx context.Context, s scope, in *bus.Incoming) (any, error) {
	var req tickCommit
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	if err := h.check(&req); err != nil {
		return nil, err
	}
	record := outboxRecord{TickID: req.TickID, Slot: req.Slot, Attempt: req.Attempt, Wake: req.Wake, Commit: bus.NewOpID()}
	body, err := message.Marshal(record)
	if err != nil {
		return nil, err
	}
	var out message.StoreCommitted
	err = h.again(ctx, func(ctx context.Context) error {
		stands, rev, err := readOutbox(ctx, h.bucket.Last, s, req.JobID)
		switch {
		case err != nil:
			return err
		case stands.Commit == record.Commit: // an earlier try whose acknowledgement was lost
			out.Committed = true
			return nil
		case rev != 0 && (req.Slot <= stands.Slot || req.TickID == stands.TickID):
			out.Committed = false
			return nil
		case stands.waits():
			return errcode.New(errcode.Conflict, "the wake of tick %s is not settled", stands.TickID)
		}
		writes, err := h.prepare(ctx, s, &req)
		if err != nil {
			return err
		}
		writes = append(writes, bucket.Write{Key: s.outboxKey(req.JobID), Data: body, Expect: rev})
		if err := h.bucket.WriteAll(ctx, writes); err != nil {
			return err
		}
		out.Committed = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// prepare makes the writes of a commit from what stands under its keys now.
func (h *Handler) prepare(ctx context.Context, s scope, req *tickCommit) ([]bucket.Write, error) {
	writes := make([]bucket.Write, len(req.Writes))
	now := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, w := range req.Writes {
		g.Go(func() error {
			m, err := h.bucket.Last(ctx, s.key(w.Key))
			if err != nil {
				return err
			}
			out := bucket.Write{Key: s.key(w.Key), Expect: m.Seq}
			// As in ordinary writes, a log that cannot be read is none.
			log, _ := oplog.Decode(m.Header.Get(oplog.Header), m.Seq)
			if log.Trim(now, 0); log.Len() > 0 {
				out.Header = nats.Header{oplog.Header: []string{log.Encode()}}
			}
			if v := req.values[i]; v != nil {
				out.Data = []byte(*v)
			} else {
				out.Remove, out.TTL = true, oplog.Retention
			}
			writes[i] = out
			return nil
		})
	}
	return writes, g.Wait()
}

// check refuses what is malformed, naming the field.
func (h *Handler) check(req *tickCommit) error {
	if err := subject.CheckName("jobId", req.JobID); err != nil {
		return err
	}
	if err := subject.CheckFree("tickId", req.TickID); err != nil {
		return err
	}
	if req.Slot <= 0 {
		return errcode.Field("slot", "is required: the tick's time in Unix milliseconds")
	}
	if req.Attempt < 0 {
		return errcode.Field("attempt", "must not be negative")
	}
	if n := len(req.Writes); n > maxWrites {
		return tooLarge("writes", maxWrites, n, "has %d writes, at most %d are allowed", n, maxWrites)
	}
	seen := make(map[string]int, len(req.Writes))
	req.values = make([]*string, len(req.Writes))
	for i, w := range req.Writes {
		at := func(field string) string { return fmt.Sprintf("writes[%d].%s", i, field) }
		if err := subject.CheckFree(at("key"), w.Key); err != nil {
			return err
		}
		if first, twice := seen[w.Key]; twice {
			return errcode.Field(at("key"), "%q is the key of writes[%d] already", w.Key, first)
		}
		seen[w.Key] = i
		if w.Value == nil || json.Unmarshal(w.Value, &req.values[i]) != nil {
			return errcode.Field(at("value"), "is required: a string, or null to delete")
		}
		if v := req.values[i]; v != nil && int64(len(*v)) > h.limit {
			return tooLarge(at("value"), h.limit, len(*v), "has %d bytes, at most %d are allowed", len(*v), h.limit)
		}
	}
	return h.checkWake(req)
}

// checkWake looks at what the outbox is there for: a wake that can be told from
// others, and that can be read back. The rest is its author's.
func (h *Handler) checkWake(req *tickCommit) error {
	if isNull(req.Wake) {
		req.Wake = nil
		return nil
	}
	if n := len(req.Wake); int64(n) > h.limit {
		return tooLarge("wake", h.limit, n, "has %d bytes, at most %d are allowed", n, h.limit)
	}
	var wake message.Wake
	if err := bus.DecodeBody(req.Wake, &wake); err != nil {
		return errcode.Field("wake", "is not a wake: %v", err)
	}
	if err := subject.CheckFree("wake.wakeId", wake.WakeID); err != nil {
		return err
	}
	if wake.Mode != message.WakeChat && wake.Mode != message.WakeStateless {
		return errcode.Field("wake.mode", "%.64q is neither chat nor stateless", wake.Mode)
	}
	return nil
}

// tooLarge is a too_large that names its field.
func tooLarge(field string, limit int64, actual int, format string, args ...any) error {
	e := errcode.OverLimit(errcode.TooLarge, limit, int64(actual), "%s: %s", field, fmt.Sprintf(format, args...))
	e.Details.Fields = []errcode.FieldFault{{Field: field, Message: fmt.Sprintf(format, args...)}}
	return e
}
