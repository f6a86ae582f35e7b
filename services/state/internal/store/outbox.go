package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
)

// outboxRecord is what stands under subject.OutboxKey: the last committed tick
// of a job. Its key has one token more than a value's, so that no operation of
// a tool reaches it.
type outboxRecord struct {
	TickID  string          `json:"tickId"`
	Slot    int64           `json:"slot"`
	Attempt int             `json:"attempt"`
	Wake    json.RawMessage `json:"wake"`    // as it came, or null
	Settled bool            `json:"settled"` // there was a wake; it is in the mailbox
	Commit  string          `json:"commit"`  // identifies the commit: it may be found again when its acknowledgement is lost
}

func (r outboxRecord) waits() bool { return !isNull(r.Wake) }

// isNull tells whether there is no value, or null.
func isNull(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(raw, []byte("null"))
}

func (s scope) outboxKey(job string) string {
	return subject.OutboxKey(s.tenant, s.agent, s.tool, job)
}

// readOutbox returns a job's record and its revision, 0 when there is none, with
// the bucket's Last or, where no compare-and-set follows, its Read.
func readOutbox(ctx context.Context, read func(context.Context, string) (bucket.Message, error), s scope, job string) (outboxRecord, uint64, error) {
	m, err := read(ctx, s.outboxKey(job))
	if err != nil || m.Seq == 0 {
		return outboxRecord{}, 0, err
	}
	var r outboxRecord
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return outboxRecord{}, 0, errcode.Wrap(errcode.Internal, err, "key %s: %v", m.Key, err)
	}
	return r, m.Seq, nil
}

func (h *Handler) outbox(ctx context.Context, s scope, in *bus.Incoming) (any, error) {
	var req message.StoreOutbox
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	if err := subject.CheckName("jobId", req.JobID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r, rev, err := readOutbox(ctx, h.bucket.Read, s, req.JobID)
	if err != nil {
		return nil, err
	}
	out := struct { // message.StoreOutboxRecord, but with the wake as it came
		message.StoreOutboxRecord
		Wake json.RawMessage `json:"wake,omitempty"`
	}{StoreOutboxRecord: message.StoreOutboxRecord{Found: rev != 0, TickID: r.TickID, Slot: r.Slot}}
	if r.waits() {
		out.Wake = r.Wake
	}
	return out, nil
}

func (h *Handler) settle(ctx context.Context, s scope, in *bus.Incoming) (any, error) {
	var req message.StoreSettle
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	if err := subject.CheckName("jobId", req.JobID); err != nil {
		return nil, err
	}
	if err := subject.CheckFree("tickId", req.TickID); err != nil {
		return nil, err
	}
	return nil, h.again(ctx, func(ctx context.Context) error {
		r, rev, err := readOutbox(ctx, h.bucket.Read, s, req.JobID)
		if err != nil || rev == 0 || r.TickID != req.TickID || !r.waits() {
			return err
		}
		r.Wake, r.Settled = nil, true
		body, err := message.Marshal(r)
		if err != nil {
			return err
		}
		return h.bucket.WriteAll(ctx, []bucket.Write{{Key: s.outboxKey(req.JobID), Data: body, Expect: rev}})
	})
}

const (
	patience   = 3 * time.Second // for one request; less than a client waits for one try
	tryTimeout = 2 * time.Second // for one try; a batch is synced to disk
	firstPause = time.Millisecond
	maxPause   = 50 * time.Millisecond
	missPause  = 5 * time.Millisecond // after a miss at most, or a key that many write would be out of reach
)

// again runs f until it succeeds, while its compare-and-set misses or JetStream
// is away. f reads what it writes over, each time.
func (h *Handler) again(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		try, done := context.WithTimeout(ctx, tryTimeout)
		err := f(try)
		done()
		missed := errors.Is(err, bucket.ErrRevision)
		switch {
		case err == nil:
			return nil
		case missed:
			h.conflicts.Inc()
			pause = min(pause, missPause)
			err = errcode.Wrap(errcode.Unavailable, err, "too many write at the same time; try again")
		case errors.Is(err, context.DeadlineExceeded):
			err = errcode.Wrap(errcode.Unavailable, err, "JetStream does not answer")
		case !errcode.From(err).Retryable:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}
