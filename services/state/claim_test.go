package state_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/results"
)

// fences are those of the runs that were granted.
var fences sync.Map

// claim claims a call of an idempotent tool, or gives it back as not begun.
func claim(t testing.TB, r *results.Recorder, callID, runID string, submit uint64, release bool) string {
	t.Helper()
	req := message.ResultClaim{CallID: callID, RunID: runID, Submit: submit, Release: release, NotBegun: release, Idempotent: true}
	if fence, ok := fences.Load(callID + runID); ok && release {
		req.Fence = fence.(uint64)
	}
	c, err := r.Claim(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if c.State == message.ClaimGranted {
		fences.Store(callID+runID, c.Fence)
	}
	if c.LeaseMs < 1000 || c.LeaseMs > 10_000 {
		t.Errorf("a lease of %d ms; calls come again after 10 s", c.LeaseMs)
	}
	return c.State
}

func TestOneRunOfACallIsGranted(t *testing.T) {
	ns := natstest.Start(t)
	for range 3 {
		start(t, ns)
	}
	r := results.NewRecorder(ns.Connect(), "acme", "support")
	var granted, duplicate atomic.Int64
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			c, err := r.Claim(t.Context(), message.ResultClaim{CallID: "c_1", RunID: fmt.Sprint(i), Submit: uint64(i + 1)})
			switch {
			case err != nil:
				t.Error(err)
			case c.State == message.ClaimGranted:
				granted.Add(1)
			case c.State == message.ClaimDuplicate:
				duplicate.Add(1)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 1 || duplicate.Load() != 11 {
		t.Errorf("%d granted, %d duplicates", granted.Load(), duplicate.Load())
	}
	foreign := results.NewRecorder(ns.Connect(), "acme", "sales")
	for i, step := range []struct {
		of      *results.Recorder
		run     string
		submit  uint64
		release bool
		want    string
	}{
		{r, "a", 7, false, message.ClaimGranted},
		{r, "a", 7, false, message.ClaimGranted}, // renewed
		{r, "b", 7, false, message.ClaimRunning}, // the same message again
		{r, "b", 8, false, message.ClaimDuplicate},
		{foreign, "b", 8, false, message.ClaimGranted}, // another agent's call
		{r, "b", 8, true, message.ClaimReleased},       // not its own
		{r, "b", 8, false, message.ClaimDuplicate},
		{r, "a", 7, true, message.ClaimReleased},
		{r, "b", 8, false, message.ClaimGranted},
	} {
		if got := claim(t, step.of, "c_2", step.run, step.submit, step.release); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	// A recorded end outlives every claim.
	complete(t, r, reply("c_2", "over"))
	for _, release := range []bool{false, true} {
		want := map[bool]string{false: message.ClaimDone, true: message.ClaimReleased}[release]
		if got := claim(t, r, "c_2", "b", 8, release); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := claim(t, r, "c_2", "c", 9, false); got != message.ClaimDone {
		t.Errorf("after the release: %s", got)
	}
	for _, bad := range []message.ResultClaim{{RunID: "r"}, {CallID: "c"}, {CallID: "a.b", RunID: "r"}, {CallID: "c", RunID: "*"}} {
		if _, err := r.Claim(t.Context(), bad); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A claim that is not renewed ends. Then a call of an idempotent tool may run again, and
// that of any other has ended. When the servers forget all claims, runs that may live are
// given time to renew theirs.
func TestAClaimEnds(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	r := results.NewRecorder(nc, "acme", "support")
	granted := func(what, run string) {
		t.Helper()
		since := time.Now()
		for {
			switch got := claim(t, r, "c", run, 1, false); {
			case got == message.ClaimGranted:
				if d := time.Since(since); d < 5*time.Second || d > 10*time.Second {
					t.Errorf("%s: the claim ended after %s", what, d)
				}
				return
			case got != message.ClaimRunning:
				t.Fatalf("%s: %s", what, got)
			case time.Since(since) > 15*time.Second:
				t.Fatalf("%s: the claim of a worker that is gone stands", what)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	once := message.ResultClaim{CallID: "once", RunID: "gone", Submit: 2, Tool: "pay"}
	if c, err := r.Claim(t.Context(), once); err != nil || c.State != message.ClaimGranted || c.Tries != 1 || c.FirstMs != 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	claim(t, r, "c", "gone", 1, false)
	granted("a worker is gone", "next")
	once.RunID = "next"
	if c, err := r.Claim(t.Context(), once); err != nil || c.State != message.ClaimDone || !c.Failed {
		t.Errorf("a call that must not run again: %+v, %v", c, err)
	}
	if end, err := r.Get(t.Context(), "once", 0); err != nil || !strings.Contains(string(end.Error), string(errcode.WorkerLost)) {
		t.Errorf("%+v, %v", end, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "KV_"+subject.BucketClaims); err != nil {
		t.Fatal(err)
	}
	if got := claim(t, r, "c", "next", 1, false); got != message.ClaimGranted {
		t.Errorf("the run that lives: %s", got)
	}
	granted("the servers forgot it", "other")
	ns.Down()
	ns.Up()
	if got := claim(t, r, "c", "third", 1, false); got != message.ClaimRunning {
		t.Errorf("after a restart: %s", got)
	}
	if got := claim(t, r, "c", "other", 1, false); got != message.ClaimGranted {
		t.Errorf("the run that lives, after a restart: %s", got)
	}
}
