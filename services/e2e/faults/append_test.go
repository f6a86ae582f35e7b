package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

// 200 appends to one document by parallel callers through three replicas, one of
// which is killed half-way, while one caller's connection is cut, and so is a
// replica's: all are there, once, in each caller's order.
func TestParallelAppends(t *testing.T) {
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint(servers, " servers"), func(t *testing.T) {
			t.Parallel()
			parallelAppends(t, newSystem(t, servers))
		})
	}
}

func parallelAppends(t *testing.T, s *system) {
	const callers, each = 20, 10
	ref := message.ToolStateRef{ChatID: "chat 1", Namespace: "relabeling"}
	var answered, retries atomic.Int64
	half := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	var links []*link
	for caller := range callers {
		nc, l := s.connect()
		links = append(links, l)
		client := toolstate.New(nc, "acme")
		wg.Go(func() {
			for i := range each {
				req := message.ToolStateAppend{
					ToolStateRef: ref, Key: "codes", Values: []json.RawMessage{json.RawMessage(fmt.Sprint(caller*1000 + i))},
					OpID: bus.NewOpID(),
				}
				got, err := untilAnswered(t, &retries, func(ctx context.Context) (message.ToolStateAppended, error) { return client.Append(ctx, req) })
				if err != nil {
					t.Errorf("caller %d, append %d: %v", caller, i, err)
					return
				}
				if got.Length <= 0 || got.Length > callers*each {
					t.Errorf("caller %d, append %d: length %d", caller, i, got.Length)
				}
				if answered.Add(1) == callers*each/2 {
					once.Do(func() { close(half) })
				}
			}
		})
	}
	select {
	case <-half:
	case <-time.After(60 * time.Second):
		t.Fatal("too slow")
	}
	s.killService(0)
	if n := links[0].cut() + s.service[1].link.cut(); n != 2 {
		t.Errorf("%d connections were cut, want 2", n)
	}
	if left := callers*each - int(answered.Load()); left <= 0 {
		t.Error("the faults came after the last append")
	}
	wg.Wait()
	t.Logf("%d requests were sent again with the same opId", retries.Load())

	nc, _ := s.connect()
	list, err := toolstate.New(nc, "acme").Get(t.Context(), message.ToolStateGet{ToolStateRef: ref, Key: "codes"})
	if err != nil {
		t.Fatal(err)
	}
	var codes []int
	if err := json.Unmarshal(list.Value, &codes); err != nil {
		t.Fatal(err)
	}
	if len(codes) != callers*each {
		t.Errorf("%d codes, want %d", len(codes), callers*each)
	}
	next := map[int]int{}
	for at, code := range codes {
		if caller, i := code/1000, code%1000; next[caller] != i {
			t.Errorf("element %d is caller %d's append %d, want its %d", at, caller, i, next[caller])
		}
		next[code/1000]++
	}
}

// untilAnswered sends a request again, with the same opId, until it is answered.
// Each try is short, so that lost replies are noticed soon.
func untilAnswered[Out any](t *testing.T, retries *atomic.Int64, do func(context.Context) (Out, error)) (Out, error) {
	deadline := time.Now().Add(60 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		out, err := do(ctx)
		cancel()
		if err == nil || !openEnded(err) || time.Now().After(deadline) {
			return out, err
		}
		retries.Add(1)
	}
}

// openEnded tells whether an error leaves open what became of the request.
func openEnded(err error) bool {
	return errors.Is(err, errcode.Timeout) || errors.Is(err, errcode.Unavailable) || errors.Is(err, errcode.Overloaded) || errors.Is(err, errcode.Cancelled)
}
