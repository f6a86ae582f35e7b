package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/results"
	"github.com/toolbus/toolbus/pkg/tool"
)

// A call with an idempotency key runs under a claim that the state service keeps, and
// its end is recorded before it is answered. Whoever calls with the same key gets the
// recorded end, or waits for it.

// errEnded is that a call has its answer without having run here.
var errEnded = errors.New("the call has ended before")

const (
	onceGrace     = 10 * time.Second // to record an end when the call's time is over
	firstOncePoll = 20 * time.Millisecond
	maxOncePoll   = 500 * time.Millisecond
)

// keyedRun is one run of a call with a key.
type keyedRun struct {
	hold
	w *Worker
	a *active
}

// once gets the call the right to run, and changes its end so that it is recorded first.
// The caller holds a slot. With an error the slot has been given back; the call has then
// either not begun, or was answered with what is recorded (nil error never).
func (w *Worker) once(a *active, who subject.Agent, req message.CallRequest, call *tool.Call) error {
	r := &keyedRun{w: w, a: a, hold: hold{to: results.NewRecorder(w.nc, who.Tenant, who.Agent)}}
	r.claim = message.ResultClaim{
		CallID: req.CallID, RunID: uuid.NewString(), Tool: a.h.def.Name, Idempotent: a.h.def.Idempotent,
		Keyed: &message.KeyedCall{Key: req.IdempotencyKey, Arguments: digest(call.Arguments, req.ChatID)},
	}
	held := true
	fail := func(err error) error {
		if held {
			w.slots.release(a.slot, 0)
		}
		return err
	}
	for pause := firstOncePoll; ; pause = min(2*pause, maxOncePoll) {
		asked := time.Now()
		c, err := r.to.Claim(a.ctx, r.claim)
		if err != nil {
			return fail(err)
		}
		switch c.State {
		case message.ClaimGranted:
			r.granted(c, asked)
			r.begin(call)
			return nil
		case message.ClaimDone:
			return fail(r.answer(c.Result))
		}
		// It runs elsewhere: wait for its end, without a slot.
		w.slots.release(a.slot, 0)
		held = false
		select {
		case <-a.ctx.Done():
			return ended(a.ctx)
		case <-time.After(pause):
		}
		if err := w.slots.acquire(a.ctx, a.slot, a.deadline); err != nil {
			return err
		}
		held = true
	}
}

// digest tells calls with one key apart that are not the same.
func digest(arguments json.RawMessage, chat string) string {
	var v any
	canonical := []byte(arguments)
	if json.Unmarshal(arguments, &v) == nil { // the order of fields does not matter
		if b, err := json.Marshal(v); err == nil {
			canonical = b
		}
	}
	sum := sha256.Sum256(append(append([]byte(chat), 0), canonical...))
	return hex.EncodeToString(sum[:])
}

// answer answers with a recorded end.
func (r *keyedRun) answer(result *message.ResultReply) error {
	if result == nil {
		return errcode.New(errcode.Internal, "the recorded result says nothing")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.a.ctx), onceGrace)
	defer cancel()
	reply, err := r.to.Resolve(ctx, *result)
	if err != nil {
		return err
	}
	r.a.finish(tool.Result{Success: reply.Success, Content: reply.Content, ErrorMessage: reply.ErrorMessage, Data: reply.Data}, false, nil)
	return errEnded
}

// begin has the call run under the claim.
func (r *keyedRun) begin(call *tool.Call) {
	id := call.Tenant + "\x00" + call.Agent + "\x00" + r.claim.Tool + "\x00" + r.claim.Keyed.Key
	r.a.ctx = bus.WithEffects(r.a.ctx, bus.NewEffects(id, r.first, r.lost))
	r.keep(func() { go r.a.cut(r.lost()) })
	end := r.a.end
	r.a.end = func(res tool.Result, ran bool, err error) {
		r.w.crew.Go(func() { // whoever ends a call must not wait
			end(r.record(res, ran, err))
		})
	}
}

// record records the end of the run and returns what the caller is told: what stands.
func (r *keyedRun) record(res tool.Result, ran bool, err error) (tool.Result, bool, error) {
	r.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.a.ctx), onceGrace)
	defer cancel()
	if !ran {
		r.release(true, nil)
		return res, ran, err
	}
	if err != nil && r.a.h.def.Idempotent && (errcode.From(err).Retryable || errors.Is(err, errcode.Cancelled)) {
		// Not an end: the next one with the key runs it again. A cancel too may come from
		// a caller that gave up, after which another call with the key waits already.
		r.release(false, err)
		return res, ran, err
	}
	defer r.w.crew.Go(func() { r.release(false, nil) })
	end := message.ResultComplete{CallID: r.claim.CallID, Tool: r.claim.Tool, Fence: r.claim.Fence, Keyed: r.claim.Keyed}
	if err == nil {
		reply, failed := r.w.reply(r.a, res, r.a.begun)
		if failed != nil {
			err = failed
		} else {
			end.Reply = &reply
		}
	}
	if err != nil {
		end.Error = errorBody(errcode.From(err))
	}
	recorded, failed := r.to.Complete(ctx, end)
	if failed != nil && end.Reply != nil && !errcode.From(failed).Retryable { // over the limit, for one: that is the end
		err = failed
		end.Reply, end.ReplyBlob, end.Error = nil, nil, errorBody(brief(errcode.From(failed)))
		recorded, failed = r.to.Complete(ctx, end)
	}
	switch {
	case failed != nil:
		return tool.Result{}, ran, errcode.Wrap(errcode.WorkerLost, failed, "the end of %s could not be recorded: %v", r.claim.Tool, failed)
	case !recorded:
		return tool.Result{}, ran, errcode.New(errcode.WorkerLost, "this run of %s was too late: ask again for what stands", r.claim.Tool)
	}
	return res, ran, err
}
