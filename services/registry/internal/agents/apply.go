package agents

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/registry/internal/config"
	"github.com/toolbus/toolbus/services/registry/internal/kv"
)

const (
	// MaxChanges is how many agents one configuration may change: the server
	// takes no larger atomic batch.
	MaxChanges = 1000

	tries        = 8                     // before giving up on a compare-and-set
	writeTimeout = 4 * time.Second       // of one try
	firstPause   = 10 * time.Millisecond // doubles with every try, jittered
)

// Options of an Apply.
type Options struct {
	DryRun bool // change nothing, say what would change
	Prune  bool // remove the tenant's agents that the configuration does not name
}

// Apply makes a checked configuration the tenant's: all of it or, with an
// error, nothing. An error that is retryable leaves open which of the two, and
// applying again settles it. Agents that are as configured already keep their
// revision. Warnings are the caller's to add.
func (s *Store) Apply(ctx context.Context, tenant string, cfg config.Parsed, opt Options) (message.RegistryApplied, error) {
	if n := len(cfg.Agents); n > MaxChanges {
		return message.RegistryApplied{}, errcode.OverLimit(errcode.TooLarge, MaxChanges, int64(n),
			"agents: %d agents, at most %d can change at once: split the configuration", n, MaxChanges)
	}
	var out message.RegistryApplied
	mine := map[string]bool{} // keys written with unknown outcome
	err := s.retry(ctx, func() error {
		p, err := s.plan(ctx, tenant, cfg, opt.Prune)
		if err != nil {
			return err
		}
		if out = p.result(mine); opt.DryRun || len(p.writes) == 0 {
			return nil
		}
		if n := len(p.writes); n > MaxChanges {
			return errcode.OverLimit(errcode.TooLarge, MaxChanges, int64(n),
				"%d changes, at most %d can be made at once: split the configuration", n, MaxChanges)
		}
		revisions, err := s.commit(ctx, p.writes)
		if unknown(err) {
			for _, w := range p.writes {
				mine[w.key] = true
			}
		}
		for i := range out.Agents {
			if r := revisions[subject.AgentKey(tenant, out.Agents[i].AgentID)]; r > 0 {
				out.Agents[i].Revision = r
			}
		}
		return err
	})
	if err != nil {
		return message.RegistryApplied{}, err
	}
	return out, nil
}

// plan is what has to be written to get from what stands to what is wanted.
type plan struct {
	agents  []message.AgentApplied
	keys    []string // of agents, the same order
	removed []string
	writes  []write
}

type write struct {
	key    string
	msg    *nats.Msg
	expect uint64 // the key's last sequence, a marker's too
}

func (s *Store) plan(ctx context.Context, tenant string, cfg config.Parsed, prune bool) (plan, error) {
	wanted := map[string]bool{}
	read := map[string]bool{}
	for _, a := range cfg.Agents {
		key := subject.AgentKey(tenant, a.ID)
		wanted[key], read[key] = true, true
	}
	if cfg.Tenant != nil {
		read[tenant] = true
	}
	if prune {
		keys, err := s.bucket.Keys(ctx, subject.AgentKey(tenant, "*"))
		if err != nil {
			return plan{}, err
		}
		for _, k := range keys {
			read[k] = true
		}
	}
	stands, err := s.bucket.GetAll(ctx, slices.Sorted(maps.Keys(read)))
	if err != nil {
		return plan{}, err
	}
	var p plan
	for _, a := range cfg.Agents {
		key := subject.AgentKey(tenant, a.ID)
		changed := p.put(s.bucket, stands[key], key, a.JSON)
		p.keys = append(p.keys, key)
		done := message.AgentApplied{AgentID: a.ID, Changed: changed}
		if e := stands[key]; !e.Deleted {
			done.Revision = e.Revision
		}
		p.agents = append(p.agents, done)
	}
	if cfg.Tenant != nil {
		p.put(s.bucket, stands[tenant], tenant, cfg.Tenant)
	}
	if prune {
		for _, key := range slices.Sorted(maps.Keys(stands)) {
			if e := stands[key]; key != tenant && !wanted[key] && !e.Deleted {
				p.writes = append(p.writes, write{key, s.bucket.DeleteMsg(key, markerTTL), e.Revision})
				p.removed = append(p.removed, strings.TrimPrefix(key, tenant+"."))
			}
		}
	}
	return p, nil
}

// put plans a write unless the same value stands; it tells whether it did.
func (p *plan) put(b *kv.Bucket, stands kv.Entry, key string, data []byte) bool {
	if !stands.Deleted && bytes.Equal(stands.Data, data) {
		return false
	}
	p.writes = append(p.writes, write{key, b.Msg(key, data), stands.Revision})
	return true
}

// result reports the plan. What stands as wanted because an earlier try of ours
// wrote it has changed too.
func (p plan) result(mine map[string]bool) message.RegistryApplied {
	for i := range p.agents {
		p.agents[i].Changed = p.agents[i].Changed || mine[p.keys[i]]
	}
	return message.RegistryApplied{Agents: append([]message.AgentApplied{}, p.agents...), Removed: p.removed, Warnings: []string{}}
}

// commit writes all or nothing and returns the new revisions by key.
func (s *Store) commit(ctx context.Context, writes []write) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if len(writes) == 1 {
		rev, err := jet.Put(ctx, s.js, writes[0].msg, writes[0].expect)
		return map[string]uint64{writes[0].key: rev}, err
	}
	msgs := make([]*nats.Msg, len(writes))
	for i, w := range writes {
		msgs[i] = w.msg
		msgs[i].Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(w.expect, 10))
	}
	ack, err := jetstreamext.PublishMsgBatch(ctx, s.js, msgs)
	if err != nil {
		return nil, batchError(err)
	}
	out := make(map[string]uint64, len(writes))
	for i, w := range writes { // a batch is stored in one piece
		out[w.key] = ack.Sequence - uint64(len(writes)-1-i)
	}
	return out, nil
}

// Error codes of the JetStream API that nats.go has no name for.
const (
	errWrongLastSequenceBusy = 10164 // another write of the same subject is under way
	errBatchesInFlight       = 10210
)

func batchError(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == errWrongLastSequenceBusy:
		return jet.ErrRevision
	case errors.As(err, &api) && api.ErrorCode == errBatchesInFlight:
		return errcode.Wrap(errcode.Overloaded, err, "too many configurations are being applied at once")
	}
	return jet.PublishError(err)
}

// unknown tells whether a write that failed so may yet have happened.
func unknown(err error) bool {
	return err != nil && !errors.Is(err, jet.ErrRevision) && errcode.From(err).Retryable
}

// retry runs f again while a compare-and-set misses or JetStream is away.
func (s *Store) retry(ctx context.Context, f func() error) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := f()
		if err == nil || !errors.Is(err, jet.ErrRevision) && !errcode.From(err).Retryable || ctx.Err() != nil {
			return err
		}
		if try == tries {
			if errors.Is(err, jet.ErrRevision) {
				return errcode.Wrap(errcode.Conflict, err, "the configuration keeps changing under this request")
			}
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause *= 2
	}
}
