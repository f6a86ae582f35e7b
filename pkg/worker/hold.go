package worker

import (
	"context"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/results"
)

// hold is the claim under which one run of a call goes on, while it is renewed.
type hold struct {
	to    *results.Recorder
	claim message.ResultClaim
	first time.Time // when an earlier run began; zero when there was none
	tries int       // runs, this one included
	lease time.Duration
	stop  func() // ends the renewals

	mu      sync.Mutex
	renewed time.Time
	gone    bool // the claim is another's
}

// granted takes what was granted when it was asked for.
func (h *hold) granted(c message.ResultClaimed, asked time.Time) {
	h.claim.Fence, h.tries, h.lease, h.renewed = c.Fence, c.Tries, time.Duration(c.LeaseMs)*time.Millisecond, asked
	if c.FirstMs > 0 {
		h.first = asked.Add(-time.Duration(c.FirstMs) * time.Millisecond)
	}
	h.stop = func() {}
}

// lost says why the run may make no more changes: its claim may be another's by now.
func (h *hold) lost() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone || time.Since(h.renewed) > h.lease {
		return errcode.New(errcode.WorkerLost, "this run of %s has lost its claim: another may go on", h.claim.Tool)
	}
	return nil
}

// keep renews the claim until stop, or until it is another's: then it calls lost.
func (h *hold) keep(lost func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	h.stop = sync.OnceFunc(func() { cancel(); <-done })
	go func() {
		defer close(done)
		t := time.NewTicker(min(renewEvery, h.lease/4))
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if !h.renew(ctx) {
				lost()
				return
			}
		}
	}()
}

// renew is false when the claim is another's.
func (h *hold) renew(ctx context.Context) bool {
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	c, err := h.to.Claim(ctx, h.claim)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil && c.State == message.ClaimGranted && c.Fence == h.claim.Fence:
		h.renewed = asked
	case err == nil:
		h.gone = true
	}
	return !h.gone
}

// release gives the claim back, best effort: it ends by itself. notBegun says that the
// tool has not begun; failed that the call is to run again.
func (h *hold) release(notBegun bool, failed error) {
	h.stop() // a renewal after this would take it again
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	c := h.claim
	c.Release, c.NotBegun = true, notBegun
	if failed != nil {
		c.Error = errorBody(brief(errcode.From(failed)))
	}
	_, _ = h.to.Claim(ctx, c)
}
