package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"sync"
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
	w     *Worker
	a     *active
	to    *results.Recorder
	claim message.ResultClaim
	lease time.Duration
	stop  func() // of the renewals

	mu      sync.Mutex
	renewed time.Time
	gone    bool // the claim is another's
}

// once gets the call the right to run, and changes its end so that it is recorded first.
// The caller holds a slot. With an error the slot has been given back; the call has then
// either not begun, or was answered with what is recorded (nil error never).
func (w *Worker) once(a *active, who subject.Agent, req message.CallRequest, call *tool.Call) error {
	r := &keyedRun{w: w, a: a, to: results.NewRecorder(w.nc, who.Tenant, who.Agent)}
	r.claim = message.ResultClaim{CallID: req.CallID, RunID: uuid.NewString(), Keyed: &message.KeyedClaim{
		Tool: a.h.def.Name, Key: req.IdempotencyKey, Arguments: digest(call.Arguments, req.ChatID), Idempotent: a.h.def.Idempotent,
	}}
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
			r.claim.Keyed.Fence, r.lease, r.renewed = c.Fence, time.Duration(c.LeaseMs)*time.Millisecond, asked
			r.begin(call, time.Duration(c.FirstMs)*time.Millisecond)
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
func (r *keyedRun) begin(call *tool.Call, earlier time.Duration) {
	var first time.Time
	if earlier > 0 {
		first = time.Now().Add(-earlier)
	}
	id := call.Tenant + "\x00" + call.Agent + "\x00" + r.claim.Keyed.Tool + "\x00" + r.claim.Keyed.Key
	r.a.ctx = bus.WithEffects(r.a.ctx, bus.NewEffects(id, first, r.lost))
	r.keep()
	end := r.a.end
	r.a.end = func(res tool.Result, ran bool, err error) {
		r.w.crew.Go(func() { // whoever ends a call must not wait
			end(r.record(res, ran, err))
		})
	}
}

// lost says why the run may make no more changes: its claim may be another's by now.
func (r *keyedRun) lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || time.Since(r.renewed) > r.lease {
		return errcode.New(errcode.WorkerLost, "this run of %s has lost its claim: another may go on", r.claim.Keyed.Tool)
	}
	return nil
}

// keep renews the claim until stop.
func (r *keyedRun) keep() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
	go func() {
		defer close(done)
		t := time.NewTicker(min(renewEvery, r.lease/4))
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			asked := time.Now()
			try, end := context.WithTimeout(ctx, renewEvery)
			c, err := r.to.Claim(try, r.claim)
			end()
			r.mu.Lock()
			switch {
			case err == nil && c.State == message.ClaimGranted && c.Fence == r.claim.Keyed.Fence:
				r.renewed = asked
			case err == nil:
				r.gone = true
			}
			gone := r.gone
			r.mu.Unlock()
			if gone {
				go r.a.cut(r.lost())
				return
			}
		}
	}()
}

// record records the end of the run and returns what the caller is told: what stands.
func (r *keyedRun) record(res tool.Result, ran bool, err error) (tool.Result, bool, error) {
	r.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.a.ctx), onceGrace)
	defer cancel()
	release := func(notBegun bool) {
		c := r.claim
		k := *c.Keyed
		c.Release, c.Keyed, k.NotBegun = true, &k, notBegun
		_, _ = r.to.Claim(ctx, c) // it ends by itself
	}
	if !ran {
		release(true)
		return res, ran, err
	}
	if err != nil && r.a.h.def.Idempotent && errcode.From(err).Retryable {
		// Not an end: the next one with the key runs it again.
		release(false)
		return res, ran, err
	}
	end := message.ResultComplete{CallID: r.claim.CallID, Tool: r.claim.Keyed.Tool, Keyed: r.claim.Keyed}
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
		return tool.Result{}, ran, errcode.Wrap(errcode.WorkerLost, failed, "the end of %s could not be recorded: %v", r.claim.Keyed.Tool, failed)
	case !recorded:
		return tool.Result{}, ran, errcode.New(errcode.WorkerLost, "this run of %s was too late: ask again for what stands", r.claim.Keyed.Tool)
	}
	release(false)
	return res, ran, err
}
