package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

// workload is callers who work on the same few documents and values until they are
// told to stop.
type workload struct {
	t         *testing.T
	documents *History
	values    *History
	answered  atomic.Int64 // operations of all
	unique    atomic.Int64 // makes values differ
	stop      chan struct{}
	wg        sync.WaitGroup
}

// Shape of a workload. Checking takes long where many unanswered writes meet on
// one object.
const (
	objects         = 8 // documents, and as many values
	callersOfObject = 4
	think           = 20 * time.Millisecond // at most, between two operations of a caller
	hasty           = 25                    // one in so many operations waits for its answer only
	haste           = 20 * time.Millisecond // this long at most
	patient         = 60 * time.Second      // the others
)

// startWorkload starts callers, each group with a connection through a link of its
// own.
func startWorkload(s *system) (*workload, []*link) {
	w := &workload{t: s.t, documents: NewHistory(), values: NewHistory(), stop: make(chan struct{})}
	var links []*link
	for range callersOfObject {
		nc, l := s.connect()
		links = append(links, l)
		for i := range objects {
			w.wg.Go(func() { w.documentCaller(nc, fmt.Sprintf("document %d", i)) })
			w.wg.Go(func() { w.valueCaller(nc, fmt.Sprintf("value %d", i)) })
		}
	}
	s.t.Cleanup(w.end)
	return w, links
}

// end stops the callers.
func (w *workload) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.wg.Wait()
}

// progress waits until n more operations were answered.
func (w *workload) progress(n int64) {
	w.t.Helper()
	target := w.answered.Load() + n
	eventually(w.t, 90*time.Second, fmt.Sprint(n, " more operations are answered"), func() bool { return w.answered.Load() >= target })
}

// check ends the workload and checks what was seen.
func (w *workload) check() {
	w.t.Helper()
	w.end()
	asked, unanswered, longest := 0, 0, time.Duration(0)
	for _, c := range []struct {
		h     *History
		model func() porcupine.Model
	}{{w.documents, Documents}, {w.values, Values}} {
		for name, ops := range c.h.Objects() {
			asked += len(ops)
			unanswered += Unanswered(ops)
			start := time.Now()
			if err := Check(c.model(), name, ops); err != nil {
				w.t.Error(err)
			}
			longest = max(longest, time.Since(start))
		}
	}
	w.t.Logf("%d operations, %d writes unanswered; the longest check took %s", asked, unanswered, longest.Round(time.Millisecond))
	if asked == 0 {
		w.t.Error("nothing was asked")
	}
}

// loop calls do until the workload ends, with a context that mostly is patient.
func (w *workload) loop(do func(ctx context.Context)) {
	for {
		select {
		case <-w.stop:
			return
		case <-time.After(rand.N(think)):
		}
		limit := patient
		if rand.N(hasty) == 0 {
			limit = rand.N(haste)
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), limit)
		do(ctx)
		cancel()
	}
}

// outcome makes an Answer of a reply. Errors that a healthy service never gives
// fail the test.
func (w *workload) outcome(out Answer, err error) (any, bool) {
	switch {
	case err == nil:
		w.answered.Add(1)
		return out, true
	case errors.Is(err, errcode.Conflict):
		w.answered.Add(1)
		return Answer{Missed: true, Revision: *errcode.From(err).Details.Revision}, true
	case !openEnded(err):
		w.t.Errorf("unexpected: %v", err)
	}
	return nil, false
}

func (w *workload) value() string { return strconv.FormatInt(w.unique.Add(1), 10) }

// condition is none, or what the caller saw last.
func condition(seen uint64) Condition {
	if rand.N(2) == 0 {
		return Condition{}
	}
	return Condition{Set: true, Revision: seen}
}

func (c Condition) pointer() *uint64 {
	if !c.Set {
		return nil
	}
	return &c.Revision
}

func (w *workload) documentCaller(nc *nats.Conn, chat string) {
	client := toolstate.New(nc, "acme")
	ref := message.ToolStateRef{ChatID: chat, Namespace: "n"}
	caller := w.documents.Caller()
	var seen uint64
	w.loop(func(ctx context.Context) {
		in := Ask{Op: pick("get", "get", "get", "all", "set", "set", "append", "append", "increment", "update", "delete", "clear"), Key: pick(KeyA, KeyB)}
		switch in.Op {
		case "get":
			in.Key = pick(KeyA, KeyB, KeyList, KeyN)
		case "set":
			in.Value, in.If = w.value(), condition(seen)
		case "append":
			in.Key, in.Value = KeyList, w.value()
		case "increment":
			in.Key, in.By = KeyN, 1+rand.N[int64](5)
		case "update":
			in.Value, in.If, in.Delete = w.value(), condition(seen), KeyN
			if in.Key == KeyA {
				in.Delete = KeyB
			}
		case "delete":
			in.Key = pick(KeyA, KeyB, KeyList, KeyN)
		}
		caller.Do(chat, in, in.Op == "get" || in.Op == "all", func() (any, bool) {
			out, err := askDocument(ctx, client, ref, in)
			if err == nil && in.Op != "clear" {
				seen = out.Revision
			}
			return w.outcome(out, err)
		})
	})
}

func pick(of ...string) string { return of[rand.N(len(of))] }

// askDocument does in and translates the reply.
func askDocument(ctx context.Context, c *toolstate.Client, ref message.ToolStateRef, in Ask) (Answer, error) {
	raw := json.RawMessage(in.Value)
	switch in.Op {
	case "get":
		r, err := c.Get(ctx, message.ToolStateGet{ToolStateRef: ref, Key: in.Key})
		out := Answer{Found: r.Found, Revision: r.Revision}
		if r.Found {
			out.Value = string(r.Value)
		}
		return out, err
	case "all":
		r, err := c.All(ctx, ref)
		return Answer{Found: r.Found, Revision: r.Revision, All: data(r.Data)}, err
	case "set":
		r, err := c.Set(ctx, message.ToolStateSet{ToolStateRef: ref, Key: in.Key, Value: raw, IfRevision: in.If.pointer()})
		return Answer{Revision: r.Revision}, err
	case "append":
		r, err := c.Append(ctx, message.ToolStateAppend{ToolStateRef: ref, Key: in.Key, Values: []json.RawMessage{raw}})
		return Answer{Number: int64(r.Length), Revision: r.Revision}, err
	case "increment":
		r, err := c.Increment(ctx, message.ToolStateIncrement{ToolStateRef: ref, Key: in.Key, By: json.Number(strconv.FormatInt(in.By, 10))})
		n, _ := r.Value.Int64() // a wrong one does not fit the model
		return Answer{Number: n, Revision: r.Revision}, err
	case "update":
		r, err := c.Update(ctx, message.ToolStateUpdate{
			ToolStateRef: ref, Set: map[string]json.RawMessage{in.Key: raw}, Delete: []string{in.Delete}, IfRevision: in.If.pointer(),
		})
		return Answer{Revision: r.Revision}, err
	case "delete":
		r, err := c.Delete(ctx, message.ToolStateDelete{ToolStateRef: ref, Key: in.Key})
		return Answer{Found: r.Deleted, Revision: r.Revision}, err
	}
	r, err := c.Clear(ctx, message.ToolStateClear{ToolStateRef: ref})
	return Answer{Found: r.Cleared}, err
}

// data is a document's content as the model has it.
func data(all map[string]json.RawMessage) Data {
	d := Data{N: string(all[KeyN]), A: string(all[KeyA]), B: string(all[KeyB])}
	if list := strings.Trim(string(all[KeyList]), "[]"); list != "" {
		d.List, d.Length = ","+list, int64(strings.Count(list, ",")+1)
	}
	return d
}

func (w *workload) valueCaller(nc *nats.Conn, key string) {
	caller := w.values.Caller()
	var seen uint64
	w.loop(func(ctx context.Context) {
		in := Ask{Op: pick("get", "get", "set", "set", "delete")}
		if in.Op == "set" {
			in.Value, in.If = w.value(), condition(seen)
		}
		if in.Op == "delete" && seen != 0 {
			in.If = condition(seen)
		}
		caller.Do(key, in, in.Op == "get", func() (any, bool) {
			out, err := askValue(ctx, nc, key, in)
			if err == nil {
				seen = out.Revision
			}
			return w.outcome(out, err)
		})
	})
}

// askValue does in and translates the reply.
func askValue(ctx context.Context, nc *nats.Conn, key string, in Ask) (out Answer, err error) {
	s := store.New(nc, "acme", "support", "Mail")
	switch {
	case in.Op == "get":
		r, err := s.Read(ctx, key)
		return Answer{Found: r.Found, Value: r.Value, Revision: r.Revision}, err
	case in.Op == "delete" && in.If.Set:
		return Answer{Found: true}, s.DeleteIf(ctx, key, in.If.Revision)
	case in.Op == "delete":
		out.Found, err = s.Delete(ctx, key)
	case in.If.Set:
		out.Revision, err = s.SetIf(ctx, key, in.Value, in.If.Revision)
	default:
		// As Store.Set, which does not tell the revision.
		var r message.StoreWritten
		err = bus.Retry(ctx, nc, subject.Store("acme", "support", "Mail", "set"), message.StoreSet{Key: key, Value: in.Value, OpID: bus.NewOpID()}, &r)
		out.Revision = r.Revision
	}
	return out, err
}
