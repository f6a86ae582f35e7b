package results

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
)

// A call with an idempotency key has a record in toolbus_results, which says who runs it
// and in the end how it ended. Only whoever holds its claim, which is kept in memory
// and must be renewed, writes the record before that; the record's revision is the run's
// fence, so that of two runs one ends it. A record without an end whose claim nobody
// holds is of a run whose worker is gone: then the tool runs again if it is idempotent,
// and otherwise the call has ended as worker_lost, since nobody knows what it did.
type keyedRecord struct {
	record
	Arguments string `json:"arguments"` // digest
	RunID     string `json:"runId"`
	FirstMs   int64  `json:"firstMs"` // when the first run began, Unix milliseconds
}

func (r keyedRecord) ended() bool { return r.State == message.ResultDone }

func keyedKey(tenant, agent string, k *message.KeyedClaim) string {
	sum := sha256.Sum256([]byte(k.Key))
	return subject.KeyedResultKey(tenant, agent, k.Tool, hex.EncodeToString(sum[:]))
}

func checkKeyed(k *message.KeyedClaim) error {
	if err := subject.CheckName("keyed.tool", k.Tool); err != nil {
		return err
	}
	if err := subject.CheckFree("keyed.key", k.Key); err != nil {
		return err
	}
	return subject.CheckName("keyed.arguments", k.Arguments)
}

// claimKeyed lets a worker run a call with a key that nobody runs and that has not ended.
func (h *Handler) claimKeyed(ctx context.Context, tenant, agent string, req message.ResultClaim) (message.ResultClaimed, error) {
	k := req.Keyed
	out := message.ResultClaimed{LeaseMs: lease.Milliseconds()}
	if err := checkKeyed(k); err != nil {
		return out, err
	}
	key := keyedKey(tenant, agent, k)
	lock := message.ResultClaim{CallID: req.CallID, RunID: req.RunID, Release: req.Release}
	if req.Release {
		if k.NotBegun {
			if err := h.forget(ctx, key, k.Fence); err != nil {
				return out, err
			}
		}
		state, err := h.claims.take(ctx, key, lock)
		out.State = state
		return out, err
	}
	if r, _, err := h.keyed(ctx, key); err != nil || r.ended() || r.conflicts(k) {
		return h.keyedEnd(out, r, k, err)
	}
	state, err := h.claims.take(ctx, key, lock)
	if err != nil || state != message.ClaimGranted {
		out.State = message.ClaimRunning
		return out, err
	}
	out, err = h.begin(ctx, key, req, out)
	if err != nil || out.State != message.ClaimGranted {
		lock.Release = true
		_, _ = h.claims.take(ctx, key, lock) // or it ends by itself
	}
	return out, err
}

// begin makes the record of a run that holds the claim.
func (h *Handler) begin(ctx context.Context, key string, req message.ResultClaim, out message.ResultClaimed) (message.ResultClaimed, error) {
	for range claimTries {
		r, seq, err := h.keyed(ctx, key)
		if err != nil || r.ended() || r.conflicts(req.Keyed) {
			return h.keyedEnd(out, r, req.Keyed, err)
		}
		out.State, out.Fence = message.ClaimGranted, seq
		now := time.Now()
		if r.RunID != "" && r.RunID != req.RunID {
			if young, err := h.claims.young(ctx); err != nil || young {
				// The servers have just forgotten all claims: the run may live.
				out.State, out.Fence = message.ClaimRunning, 0
				return out, err
			}
		}
		switch mine := r.RunID == req.RunID; {
		case mine: // renewed, or asked again
			out.FirstMs = 0
			return out, nil
		case r.RunID == "":
			r = keyedRecord{record: record{CallID: req.CallID, State: message.ResultPending, Tool: req.Keyed.Tool}, Arguments: req.Keyed.Arguments, FirstMs: now.UnixMilli()}
		case req.Keyed.Idempotent:
			out.FirstMs = max(now.UnixMilli()-r.FirstMs, 1)
		default:
			lost, err := message.Marshal(errcode.New(errcode.WorkerLost, "the worker that ran %s is gone, and what it had done is not known", r.Tool))
			if err != nil {
				return out, err
			}
			r.State, r.Error = message.ResultDone, lost
		}
		r.RunID = req.RunID
		seq, err = h.putKeyed(ctx, key, r, seq)
		switch {
		case errors.Is(err, bucket.ErrRevision):
			continue // a claim ended between
		case err != nil:
			return out, err
		case r.ended():
			return h.keyedEnd(out, r, req.Keyed, nil)
		}
		out.Fence = seq
		return out, nil
	}
	return out, errcode.New(errcode.Unavailable, "too many runs of one call at once")
}

func (r keyedRecord) conflicts(k *message.KeyedClaim) bool {
	return r.Arguments != "" && r.Arguments != k.Arguments
}

// keyedEnd answers with how a call ended.
func (h *Handler) keyedEnd(out message.ResultClaimed, r keyedRecord, k *message.KeyedClaim, err error) (message.ResultClaimed, error) {
	out.State, out.Fence, out.FirstMs = message.ClaimDone, 0, 0
	if err != nil {
		return out, err
	}
	if r.conflicts(k) {
		err := errcode.New(errcode.Conflict, "idempotencyKey: %q was used for %s with other arguments", k.Key, k.Tool)
		err.Details = &errcode.Details{Fields: []errcode.FieldFault{{Field: "idempotencyKey", Message: "was used with other arguments"}}}
		return out, err
	}
	b, err := message.Marshal(r.record)
	if err == nil {
		out.Result = new(message.ResultReply)
		err = json.Unmarshal(b, out.Result)
	}
	return out, err
}

// keyed reads a record; a zero one when there is none.
func (h *Handler) keyed(ctx context.Context, key string) (keyedRecord, uint64, error) {
	var r keyedRecord
	m, err := h.bucket.Last(ctx, key)
	switch {
	case err != nil:
		return r, 0, unavailable(err)
	case m.Seq == 0 || m.Marker:
		return r, m.Seq, nil
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return r, 0, errcode.Wrap(errcode.Internal, err, "unreadable record of a call")
	}
	return r, m.Seq, nil
}

func (h *Handler) putKeyed(ctx context.Context, key string, r keyedRecord, expect uint64) (uint64, error) {
	body, err := message.Marshal(r)
	if err != nil {
		return 0, err
	}
	if err := h.fits(body); err != nil {
		return 0, err
	}
	ack, err := h.bucket.Put(ctx, key, nats.Header{}, body, h.limits.Keep, expect)
	if err != nil && !errors.Is(err, bucket.ErrRevision) {
		err = unavailable(err)
	}
	return ack, err
}

// completeKeyed records the end of a run, unless another run has taken its place.
func (h *Handler) completeKeyed(ctx context.Context, tenant, agent string, end record, k *message.KeyedClaim) (message.ResultCompleted, error) {
	if err := checkKeyed(k); err != nil {
		return message.ResultCompleted{}, err
	}
	key := keyedKey(tenant, agent, k)
	r, seq, err := h.keyed(ctx, key)
	if err != nil {
		return message.ResultCompleted{}, err
	}
	if !r.ended() && seq == k.Fence && seq != 0 {
		r.record = end
		_, err = h.putKeyed(ctx, key, r, seq)
		if err == nil {
			return message.ResultCompleted{Recorded: true}, nil
		}
		if !errors.Is(err, bucket.ErrRevision) {
			return message.ResultCompleted{}, err
		}
		if r, _, err = h.keyed(ctx, key); err != nil {
			return message.ResultCompleted{}, err
		}
	}
	x, errX := message.Marshal(r.record)
	y, errY := message.Marshal(end)
	return message.ResultCompleted{Recorded: string(x) == string(y)}, errors.Join(errX, errY)
}

// forget removes the record of a run that has not begun, if it is still that run's.
func (h *Handler) forget(ctx context.Context, key string, fence uint64) error {
	r, seq, err := h.keyed(ctx, key)
	if err != nil || seq != fence || seq == 0 || r.ended() {
		return err
	}
	_, err = h.bucket.Remove(ctx, key, nats.Header{}, time.Second, seq)
	if errors.Is(err, bucket.ErrRevision) {
		return nil
	}
	return err
}
