package faults

import (
	"math"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// History is what callers asked and were answered, by object. It is safe for
// concurrent use.
type History struct {
	start time.Time

	mu      sync.Mutex
	callers int
	ops     map[string][]porcupine.Operation
}

// NewHistory makes an empty one.
func NewHistory() *History {
	return &History{start: time.Now(), ops: map[string][]porcupine.Operation{}}
}

// Caller is one who waits for an answer before asking again.
type Caller struct {
	h  *History
	id int
}

// Caller makes a caller.
func (h *History) Caller() *Caller {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.callers++
	return &Caller{h, h.callers}
}

// Do asks for something of an object. ask returns the answer and whether there
// was one. Without an answer, a read is as if it had not been asked, while a
// write may take effect now, later, or never.
func (c *Caller) Do(object string, input any, read bool, ask func() (output any, answered bool)) {
	call := time.Since(c.h.start)
	output, answered := ask()
	end := time.Since(c.h.start)
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	op := porcupine.Operation{ClientId: c.id, Input: input, Call: int64(call), Output: output, Return: int64(end)}
	if !answered {
		if read {
			return
		}
		op.Output, op.Return = Unknown{}, math.MaxInt64
		// Its caller goes on while it is under way, so it is another's.
		c.h.callers++
		op.ClientId = c.h.callers
	}
	c.h.ops[object] = append(c.h.ops[object], op)
}

// Unknown is the output of a write that was not answered.
type Unknown struct{}

// Objects returns the operations by object.
func (h *History) Objects() map[string][]porcupine.Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string][]porcupine.Operation, len(h.ops))
	for k, ops := range h.ops {
		out[k] = append([]porcupine.Operation(nil), ops...)
	}
	return out
}

// Unanswered counts the operations without an answer.
func Unanswered(ops []porcupine.Operation) int {
	n := 0
	for _, op := range ops {
		if op.Output == (Unknown{}) {
			n++
		}
	}
	return n
}
