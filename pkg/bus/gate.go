package bus

import "sync"

// gate counts the requests being served, limits them, and tells when the last
// has left after it was shut. Unlike a WaitGroup it may be entered while
// somebody waits.
type gate struct {
	mu   sync.Mutex
	n    int64
	max  int64
	shut bool
	idle chan struct{} // closed when shut and empty
}

type admission int

const (
	admitted admission = iota
	full
	closed
)

func newGate(limit int64) *gate { return &gate{max: limit, idle: make(chan struct{})} }

// enter admits one request; whoever was admitted must leave.
func (g *gate) enter() admission {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.shut:
		return closed
	case g.n >= g.max:
		return full
	}
	g.n++
	return admitted
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.shut && g.n == 0 {
		close(g.idle)
	}
}

// close admits nobody any more. The channel it returns is closed when the last
// one has left. Call it once.
func (g *gate) close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	if g.n == 0 {
		close(g.idle)
	}
	return g.idle
}

func (g *gate) count() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}
