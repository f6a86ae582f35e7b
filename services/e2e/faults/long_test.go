//go:build faults

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
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
