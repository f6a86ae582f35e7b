package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/internal/jet"
)

const (
	historyLength = 20                 // slots kept per entry
	textLimit     = 300                // bytes of a summary or error in the history
	goneTTL       = 7 * 24 * time.Hour // of the record of an entry that is gone
	updateTries   = 50
)

// Record is what the scheduler knows of one entry.
type Record struct {
	// Revision and Timing are the definition that runs; Config is the revision of
	// the agent's configuration it was taken from, which never goes back.
	Revision string `json:"revision"`
	Timing   string `json:"timing"`
	Config   uint64 `json:"config"`
	Tool     string `json:"tool,omitempty"` // of a tool job

	Enabled bool `json:"enabled"`          // by the configuration, which has it
	Gone    bool `json:"gone,omitempty"`   // the configuration has it no more
	Paused  bool `json:"paused,omitempty"` // by an operator

	// Done is the time, in Unix milliseconds, up to which every slot has ended,
	// or is none of this definition's.
	Done int64 `json:"done"`

	// Claim is the run under way, or one that ended badly: what it had committed
	// is not known to be finished.
	Claim *Claim `json:"claim,omitempty"`
	// Order is the last number given to a run, by which the store's fence orders
	// a job's runs: the slot in Unix milliseconds, or what follows the one before.
	Order int64 `json:"order,omitempty"`

	// Unsettled says that a run failed which may have committed before.
	Unsettled bool `json:"unsettled,omitempty"`

	Started string              `json:"started,omitempty"` // for which start runOnStart has run
	Extra   string              `json:"extra,omitempty"`   // the last triggered run that has ended
	History []message.SlotEntry `json:"history,omitempty"` // oldest first
}

// Claim is the right to run.
type Claim struct {
	TickID  string `json:"tickId"`
	Attempt int    `json:"attempt"` // from 1
	Owner   string `json:"owner"`   // of this attempt
	Cause   string `json:"cause"`   // as timers.Body has it
	Slot    int64  `json:"slot"`    // Unix milliseconds
	Order   int64  `json:"order"`   // the run's, see Record
	Tool    string `json:"tool,omitempty"`
	Since   int64  `json:"since"` // Unix milliseconds
	Until   int64  `json:"until"` // Unix milliseconds; past: nobody runs
}

// Running tells whether somebody holds the claim at now.
func (r *Record) Running(now time.Time) bool {
	return r.Claim != nil && now.UnixMilli() < r.Claim.Until
}

// Ended tells whether a run that an operator triggered has ended.
func (r *Record) Ended(tickID string) bool {
	return r.Extra == tickID || slices.ContainsFunc(r.History, func(s message.SlotEntry) bool { return s.TickID == tickID })
}

// Runs tells whether the entry's slots run.
func (r *Record) Runs() bool { return r.Enabled && !r.Paused && !r.Gone }

// DoneAt is Done as a time.
func (r *Record) DoneAt() time.Time { return time.UnixMilli(r.Done) }

// Pass says that all slots up to t have ended.
func (r *Record) Pass(t time.Time) { r.Done = max(r.Done, t.UnixMilli()) }

// Remember adds to the history.
func (r *Record) Remember(s message.SlotEntry) {
	s.Summary, s.Error = short(s.Summary), short(s.Error)
	if r.History = append(r.History, s); len(r.History) > historyLength {
		r.History = r.History[len(r.History)-historyLength:]
	}
}

func short(s string) string {
	if len(s) <= textLimit {
		return s
	}
	return strings.ToValidUTF8(s[:textLimit], "") + "…"
}

// Key is an entry's key.
func Key(tenant, agent, entry string) string { return tenant + "." + agent + "." + entry }

// Keep is returned by a change that leaves the record as it is.
var Keep = errors.New("nothing to change") //nolint:staticcheck // a signal, like fs.SkipDir, no error to show

// Record reads an entry's record; ok is false when there is none.
func (b *Bucket) Record(ctx context.Context, key string) (r Record, ok bool, err error) {
	it, err := b.Get(ctx, key)
	if err != nil || it.Seq == 0 {
		return Record{}, false, err
	}
	r, err = decode(it)
	return r, err == nil, err
}

// Records reads the records of a tenant, or with agent of one agent, by key.
func (b *Bucket) Records(ctx context.Context, tenant, agent string) (map[string]Record, error) {
	if agent == "" {
		agent = "*"
	}
	items, err := b.All(ctx, Key(tenant, agent, "*"))
	if err != nil {
		return nil, err
	}
	out := make(map[string]Record, len(items))
	for _, it := range items {
		if out[it.Key], err = decode(it); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Update changes a record, or makes it from the zero value. change may run
// several times, each time on what stands; its error ends the update, and Keep
// does so without being one. The record as it stands after is returned.
func (b *Bucket) Update(ctx context.Context, key string, change func(*Record) error) (Record, error) {
	for try := 0; ; try++ {
		it, err := b.Get(ctx, key)
		if err != nil {
			return Record{}, err
		}
		var r Record
		if it.Seq != 0 {
			if r, err = decode(it); err != nil {
				return Record{}, err
			}
		}
		if err := change(&r); errors.Is(err, Keep) {
			return r, nil
		} else if err != nil {
			return r, err
		}
		data, err := message.Marshal(r)
		if err != nil {
			return Record{}, err
		}
		ttl := time.Duration(0)
		if r.Gone {
			ttl = goneTTL
		}
		_, err = b.Put(ctx, key, data, ttl, it.Seq)
		switch {
		case err == nil:
			return r, nil
		case !errors.Is(err, jet.ErrRevision):
			return Record{}, err
		case try == updateTries:
			return Record{}, errcode.New(errcode.Unavailable, "too many write %s at the same time", key)
		}
		select {
		case <-ctx.Done():
			return Record{}, ctx.Err()
		case <-time.After(rand.N(time.Millisecond << min(try, 5))):
		}
	}
}

func decode(it Item) (Record, error) {
	var r Record
	if err := json.Unmarshal(it.Data, &r); err != nil {
		return r, errcode.Wrap(errcode.Internal, err, "the record %s is unreadable: %v", it.Key, err)
	}
	return r, nil
}
