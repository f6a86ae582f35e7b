package bus

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
)

// Effects make what a run changes happen once, however often it is run: each change
// gets an opId that a later run of the same gets too, and is refused once the run has
// been taken away from this process. Changes that are alike are told apart by their
// number.
type Effects struct {
	id    string
	first time.Time
	lost  func() error

	mu   sync.Mutex
	seen map[string]int
}

// NewEffects makes the Effects of one run. Every run of the same has the same id, and
// nothing else has. first is when an earlier run began, zero when this is the first: the
// services refuse what they may have forgotten since. lost says why this run may not go
// on, nil as long as it may.
func NewEffects(id string, first time.Time, lost func() error) *Effects {
	return &Effects{id: id, first: first, lost: lost, seen: map[string]int{}}
}

type effectsKey struct{}

// WithEffects has the changes that are made with ctx be those of a run.
func WithEffects(ctx context.Context, e *Effects) context.Context {
	return context.WithValue(ctx, effectsKey{}, e)
}

func effectsOf(ctx context.Context) *Effects {
	e, _ := ctx.Value(effectsKey{}).(*Effects)
	return e
}

// OpID makes the opId of a change that ctx is for: op on where, as what says. It
// identifies the change across its retries, and across runs of a call that has Effects.
func OpID(ctx context.Context, op, where string, what any) string {
	if e := effectsOf(ctx); e != nil {
		if b, err := message.Marshal(what); err == nil {
			return e.Key(op, where, string(b))
		}
	}
	return NewOpID()
}

// EffectKey is an idempotency key for what a call with Effects has somebody else do, ""
// for one without.
func EffectKey(ctx context.Context, parts ...string) string {
	if e := effectsOf(ctx); e != nil {
		return e.Key(parts...)
	}
	return ""
}

// Key is the same for the same parts in every run: for the first time, the second, …
func (e *Effects) Key(parts ...string) string {
	h := sha256.New()
	for _, p := range append([]string{e.id}, parts...) {
		h.Write([]byte(strconv.Itoa(len(p)) + ":" + p))
	}
	sum := string(h.Sum(nil))
	e.mu.Lock()
	e.seen[sum]++
	n := e.seen[sum]
	e.mu.Unlock()
	whole := sha256.Sum256([]byte(sum + strconv.Itoa(n)))
	return base64.RawURLEncoding.EncodeToString(whole[:24])
}

// begun is when a change with ctx may have been sent first, zero for now; the error is
// that it must not be sent.
func begun(ctx context.Context) (time.Time, error) {
	e := effectsOf(ctx)
	if e == nil {
		return time.Time{}, nil
	}
	if e.lost != nil {
		if err := e.lost(); err != nil {
			return time.Time{}, err
		}
	}
	return e.first, nil
}
