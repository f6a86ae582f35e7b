package faults

import (
	"math/rand/v2"
	"testing"
)

// What callers see is as if one operation after the other were done on each
// document and value, though a replica of the service is killed, a leader killed
// or stepped down, and connections are cut.
func TestLinearizable(t *testing.T) {
	t.Run("1 server", func(t *testing.T) {
		t.Parallel()
		s := newSystem(t, 1)
		w, links := startWorkload(s)
		s.play(w, links, cutCallers, killService, cutService, killLeader)
		w.check()
	})
	t.Run("3 servers", func(t *testing.T) {
		t.Parallel()
		s := newSystem(t, 3)
		w, links := startWorkload(s)
		s.play(w, links, stepDown, killService, cutCallers, killLeader, cutService)
		w.check()
	})
}

// fault is one thing that goes wrong, and is mended again.
type fault struct {
	name string
	do   func(s *system, w *workload, links []*link)
}

// between is how many operations are answered before, during and after a fault.
const between = 100

// play lets things go wrong, one after the other.
func (s *system) play(w *workload, links []*link, faults ...fault) {
	s.t.Helper()
	w.progress(between)
	for _, f := range faults {
		f.do(s, w, links)
		if s.t.Failed() {
			s.t.Fatalf("after fault: %s", f.name)
		}
		w.progress(between)
	}
}

var cutCallers = fault{"callers' connections are cut", func(s *system, w *workload, links []*link) {
	if links[rand.N(len(links))].cut() == 0 {
		s.t.Error("nothing to cut")
	}
}}

var cutService = fault{"a replica's connection is cut", func(s *system, w *workload, _ []*link) {
	if s.service[rand.N(replicas)].link.cut() == 0 {
		s.t.Error("nothing to cut")
	}
}}

var killService = fault{"a replica is killed", func(s *system, w *workload, _ []*link) {
	i := rand.N(replicas)
	s.killService(i)
	w.progress(between)
	s.restartService(i)
}}

// killLeader kills the server that leads a stream, of one server the only one.
var killLeader = fault{"a leader is killed", func(s *system, w *workload, _ []*link) {
	leader := s.nats.Leader(pick(stateStream, storeStream))
	leader.Kill()
	if len(s.nats.Members) > 1 {
		w.progress(between)
	}
	leader.Start()
	s.waitCurrent()
}}

var stepDown = fault{"a leader steps down", func(s *system, w *workload, _ []*link) {
	s.nats.StepDown(pick(stateStream, storeStream))
}}

// waitCurrent waits until every member has caught up.
func (s *system) waitCurrent() {
	s.t.Helper()
	for _, stream := range []string{stateStream, storeStream} {
		s.nats.WaitCurrent(stream)
	}
}
