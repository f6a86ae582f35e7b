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
//
// A submitted call has such a record too, under its call id.
type runRecord struct {
	record
	Arguments string          `json:"arguments,omitempty"` // digest, of a call with a key
	RunID     string          `json:"runId,omitempty"`
	FirstMs   int64           `json:"firstMs,omitempty"` // when the first run began, Unix milliseconds
	Tries     int             `json:"tries,omitempty"`   // runs begun
	Last      json.RawMessage `json:"last,omitempty"`    // error of the last run that failed
}

func (r runRecord) ended() bool { return r.State == message.ResultDone }

func keyedKey(tenant, agent, tool string, k *message.KeyedCall) string {
	sum := sha256.Sum256([]byte(k.Key))
	return subject.KeyedResultKey(tenant, agent, tool, hex.EncodeToString(sum[:]))
}

func checkKeyed(tool string, k *message.KeyedCall) error {
	if err := subject.CheckName("tool", tool); err != nil {
		return err
	}
	if err := subject.CheckFree("keyed.key", k.Key); err != nil {
		return err
	}
	return subject.CheckName("keyed.arguments", k.Arguments)
}

// claimRun lets a worker run a call that nobody runs and that has not ended.
func (h *Handler) claimRun(ctx context.Context, tenant, agent string, req message.ResultClaim) (message.ResultClaimed, error) {
	out := message.ResultClaimed{LeaseMs: lease.Milliseconds()}
	key := subject.ResultKey(tenant, agent, req.CallID)
	if req.Keyed != nil {
		if err := checkKeyed(req.Tool, req.Keyed); err != nil {
			return out, err
		}
		key = keyedKey(tenant, agent, req.Tool, req.Keyed)
	}
	lock := message.ResultClaim{CallID: req.CallID, RunID: req.RunID, Submit: req.Submit, Release: req.Release}
	if req.Release {
		if err := h.giveBack(ctx, key, req); err != nil {
			return out, err
		}
		state, err := h.claims.take(ctx, key, lock)
		out.State = state
		return out, err
	}
	if req.Keyed != nil { // many ask again for what has ended
		if r, _, err := h.run(ctx, key); err != nil || r.ended() || r.conflicts(req.Keyed) {
			return h.runEnd(out, r, req, err)
		}
	}
	state, err := h.claims.take(ctx, key, lock)
	if err == nil && state != message.ClaimGranted && req.Keyed == nil {
		// Looked for with the claim in mind: an earlier run records its end before it
		// lets its claim go.
		if r, _, err := h.run(ctx, key); err != nil || r.ended() {
			return h.runEnd(out, r, req, err)
		}
	}
	if err != nil || state != message.ClaimGranted {
		out.State = state
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
		r, seq, err := h.run(ctx, key)
		if err != nil || r.ended() || r.conflicts(req.Keyed) {
			return h.runEnd(out, r, req, err)
		}
		now := time.Now()
		out.State, out.Fence, out.Tries = message.ClaimGranted, seq, r.Tries
		switch {
		case r.RunID == req.RunID: // renewed, or asked again
			return out, nil
		case r.State == "": // the first
			r = runRecord{record: record{CallID: req.CallID, State: message.ResultPending, Tool: req.Tool}, FirstMs: now.UnixMilli()}
			if req.Keyed != nil {
				r.Arguments = req.Keyed.Arguments
			}
		case r.RunID == "": // given back
		default:
			young, err := h.claims.young(ctx)
			if err != nil || young {
				// The servers have just forgotten all claims: the run may live.
				out.State, out.Fence = message.ClaimRunning, 0
				return out, err
			}
		}
		if r.Tries > 0 {
			out.FirstMs = max(now.UnixMilli()-r.FirstMs, 1)
			if !req.Idempotent && r.RunID != "" || req.Keyed == nil && r.Tries >= message.MaxSubmitTries {
				if r.State, r.Error, err = message.ResultDone, r.Last, nil; r.Error == nil || r.RunID != "" {
					r.Error, err = message.Marshal(errcode.New(errcode.WorkerLost, "the worker that ran %s is gone, and what it had done is not known", r.Tool))
				}
				if err != nil {
					return out, err
				}
			}
		}
		if !r.ended() {
			r.RunID, r.Last = req.RunID, nil
			r.Tries++
		}
		seq, err = h.putRun(ctx, key, r, seq)
		switch {
		case errors.Is(err, bucket.ErrRevision):
			continue // somebody's end
		case err != nil:
			return out, err
		case r.ended():
			return h.runEnd(out, r, req, nil)
		}
		out.Fence, out.Tries = seq, r.Tries
		return out, nil
	}
	return out, errcode.New(errcode.Unavailable, "too many runs of one call at once")
}

// giveBack says in the record that a run is over that is no end: it has not begun, or
// has failed and the call is to run again.
func (h *Handler) giveBack(ctx context.Context, key string, req message.ResultClaim) error {
	if req.Fence == 0 || !req.NotBegun && len(req.Error) == 0 {
		return nil
	}
	r, seq, err := h.run(ctx, key)
	if err != nil || seq != req.Fence || r.ended() {
		return err
	}
	if r.RunID = ""; req.NotBegun {
		r.Tries--
	} else {
		r.Last = req.Error
	}
	if r.Tries == 0 {
		_, err = h.bucket.Remove(ctx, key, nats.Header{}, time.Second, seq)
	} else {
		_, err = h.putRun(ctx, key, r, seq)
	}
	if errors.Is(err, bucket.ErrRevision) {
		return nil
	}
	return err
}

func (r runRecord) conflicts(k *message.KeyedCall) bool {
	return k != nil && r.Arguments != "" && r.Arguments != k.Arguments
}

// runEnd answers with how a call ended.
func (h *Handler) runEnd(out message.ResultClaimed, r runRecord, req message.ResultClaim, err error) (message.ResultClaimed, error) {
	out.State, out.Fence, out.FirstMs, out.Tries = message.ClaimDone, 0, 0, 0
	out.Failed = err == nil && r.failed()
	if err != nil || req.Keyed == nil {
		return out, err
	}
	if r.conflicts(req.Keyed) {
		err := errcode.New(errcode.Conflict, "idempotencyKey: %q was used for %s with other arguments", req.Keyed.Key, req.Tool)
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

// run reads a record; a zero one when there is none.
func (h *Handler) run(ctx context.Context, key string) (runRecord, uint64, error) {
	var r runRecord
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

func (h *Handler) putRun(ctx context.Context, key string, r runRecord, expect uint64) (uint64, error) {
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

// completeRun records the end of a run, unless another run has taken its place. Without
// a fence it is that of whoever runs the call.
func (h *Handler) completeRun(ctx context.Context, key string, end record, fence uint64) (recorded bool, err error) {
	for range claimTries {
		r, seq, err := h.run(ctx, key)
		if err != nil {
			return false, err
		}
		if r.ended() || fence != 0 && seq != fence {
			x, errX := message.Marshal(r.record)
			y, errY := message.Marshal(end)
			// The same end: an earlier try of this one whose answer was lost.
			return string(x) == string(y), errors.Join(errX, errY)
		}
		r.record, r.Last = end, nil
		if _, err = h.putRun(ctx, key, r, seq); !errors.Is(err, bucket.ErrRevision) {
			return err == nil, err
		}
	}
	return false, errcode.New(errcode.Unavailable, "too many ends of one call at once")
}
