//go:build faults

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

// The same as the short scenarios, for minutes: every fault several times, in any
// order, also a leader that freezes and does not know that it was deposed.

const rounds = 4

func TestLongLinearizable(t *testing.T) {
	for round := range rounds {
		for _, servers := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d servers, round %d", servers, round), func(t *testing.T) {
				s := newSystem(t, servers)
				faults := []fault{cutCallers, cutCallers, cutService, cutService, killService, killService, killLeader, killLeader}
				if servers > 1 {
					faults = append(faults, stepDown, stepDown, stepDown, stepDown, freezeLeader, freezeLeader)
				}
				rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
				w, links := startWorkload(s)
				s.play(w, links, faults...)
				w.check()
			})
		}
	}
}

// freezeLeader freezes the server that leads a stream until another one leads.
// What was sent to it meanwhile it answers when it goes on, before it hears of
// the other.
var freezeLeader = fault{"a leader freezes", func(s *system, w *workload, _ []*link) {
	leader := s.nats.Leader(pick(stateStream, storeStream))
	leader.Pause()
	w.progress(between)
	leader.Resume()
	s.waitCurrent()
}}

func TestLongParallelAppends(t *testing.T) {
	for round := range rounds {
		for _, servers := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d servers, round %d", servers, round), func(t *testing.T) { parallelAppends(t, newSystem(t, servers)) })
		}
	}
}

func TestLongClearedStaysCleared(t *testing.T) {
	for _, sync := range []string{"always", "2m"} {
		t.Run("sync "+sync, func(t *testing.T) { clearedStaysCleared(t, sync, 40) })
	}
}

// What expires and what is cleared leaves nothing in the stream in the end, though
// nobody reads it: neither markers nor what reads of a cluster leave.
func TestLongNothingIsLeft(t *testing.T) {
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, servers)
			nc, _ := s.connect()
			c := toolstate.New(nc, "acme")
			for i := range 20 {
				pad := c.Scratch(fmt.Sprint("chat ", i), "n")
				if err := pad.Set(t.Context(), "k", "v", tool.TTL(time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := pad.All(t.Context()); err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					if err := pad.Clear(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			st, err := js.Stream(t.Context(), stateStream)
			if err != nil {
				t.Fatal(err)
			}
			// A marker of what was cleared holds its operations for two minutes.
			eventually(t, 150*time.Second, "the stream is empty", func() bool {
				info, err := st.Info(t.Context())
				return err == nil && info.State.Msgs == 0
			})
		})
	}
}
