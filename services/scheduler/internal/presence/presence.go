// Package presence is how the replicas of the scheduler know of each other, with
// nothing but keys of toolbus_jobs that go unless they are renewed: which
// replicas live, since when the system runs, and which of them delivers the
// wakes of which agents.
package presence

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
)

// Partitions is into how many parts the agents are divided, each of which one
// replica serves. All replicas must agree on it.
const Partitions = 16

const (
	keyEpoch   = "_start"
	keyReplica = "_replica."
	keyLease   = "_lease."
)

// Presence is this replica's.
type Presence struct {
	bucket *jobs.Bucket
	ttl    time.Duration
	log    telemetry.Logger
	self   string
	epoch  string

	mu     sync.Mutex
	leases map[int]*lease
}

// lease is a partition this replica serves.
type lease struct {
	seq    uint64
	until  time.Time // by this process's clock; from then on it may be another's
	cancel context.CancelFunc
	done   chan struct{} // closed when what served it has ended
}

type holder struct {
	Owner string `json:"owner"` // "": free
}

type start struct {
	Epoch string `json:"epoch"`
	At    string `json:"at"`
}

// Join makes this replica known. When no other lives, the system starts: it gets
// a new epoch. A replica that ends without leaving counts for another ttl (whole
// seconds), so a system that is killed and started again within that goes on in
// its epoch.
func Join(ctx context.Context, b *jobs.Bucket, ttl time.Duration, log telemetry.Logger) (*Presence, error) {
	p := &Presence{bucket: b, ttl: ttl, log: log, self: uuid.NewString(), leases: map[int]*lease{}}
	// In this order: whoever sees the epoch that another replica has made sees
	// that replica too.
	for {
		it, err := b.Get(ctx, keyEpoch)
		if err != nil {
			return nil, err
		}
		others, err := p.replicas(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.Set(ctx, keyReplica+p.self, []byte("{}"), ttl); err != nil {
			return nil, err
		}
		var s start
		if it.Seq != 0 && json.Unmarshal(it.Data, &s) == nil && s.Epoch != "" && others > 0 {
			p.epoch = s.Epoch
			return p, nil
		}
		s = start{Epoch: uuid.NewString()[:8], At: time.Now().UTC().Format(time.RFC3339)}
		data, err := message.Marshal(s)
		if err != nil {
			return nil, err
		}
		_, err = b.Put(ctx, keyEpoch, data, 0, it.Seq)
		switch {
		case err == nil:
			log.Info("the system starts", "epoch", s.Epoch)
			p.epoch = s.Epoch
			return p, nil
		case !errors.Is(err, jet.ErrRevision):
			return nil, err
		}
	}
}

// Epoch names the system's present start, the same for every replica. It is a
// name.
func (p *Presence) Epoch() string { return p.epoch }

// Self is this replica's id.
func (p *Presence) Self() string { return p.self }

// replicas counts the other replicas that live.
func (p *Presence) replicas(ctx context.Context) (int, error) {
	items, err := p.bucket.All(ctx, keyReplica+"*")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, it := range items {
		if it.Key != keyReplica+p.self && string(it.Data) != left {
			n++
		}
	}
	return n, nil
}

// left stands where a replica was that has left.
const left = ""

// Run renews what is this replica's and takes its share of the partitions, until
// ctx ends; then it gives all back and leaves. serve is called for each partition
// taken, with a context that ends when the partition is lost or given back; until
// it has returned, the partition is not given back.
func (p *Presence) Run(ctx context.Context, serve func(ctx context.Context, partition int)) {
	defer p.leave(context.WithoutCancel(ctx))
	tick := time.NewTicker(p.ttl / 3)
	defer tick.Stop()
	for {
		p.round(ctx, serve)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *Presence) round(ctx context.Context, serve func(context.Context, int)) {
	if err := p.bucket.Set(ctx, keyReplica+p.self, []byte("{}"), p.ttl); err != nil && ctx.Err() == nil {
		p.log.Warn("presence not renewed", "err", err)
	}
	p.renew(ctx)
	others, err := p.replicas(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.log.Warn("replicas not counted", "err", err)
		}
		return
	}
	share := (Partitions + others) / (others + 1) // rounded up
	items, err := p.bucket.All(ctx, keyLease+"*")
	if err != nil {
		return
	}
	stands := map[string]jobs.Item{}
	for _, it := range items {
		stands[it.Key] = it
	}
	mine := p.held()
	for n := range Partitions {
		if len(mine) >= share {
			break
		}
		it := stands[leaseKey(n)]
		var h holder
		if it.Seq != 0 && json.Unmarshal(it.Data, &h) == nil && h.Owner != "" || mine[n] {
			continue
		}
		if p.take(ctx, n, it.Seq, serve) {
			mine[n] = true
		}
	}
	// Give back what is more than the share, one a round, so that a replica
	// that comes and goes moves little.
	if len(mine) > share {
		for n := range mine {
			p.giveBack(ctx, n)
			break
		}
	}
}

func leaseKey(n int) string { return keyLease + strconv.Itoa(n) }

func (p *Presence) held() map[int]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := make(map[int]bool, len(p.leases))
	for n := range p.leases {
		m[n] = true
	}
	return m
}

func (p *Presence) take(ctx context.Context, n int, expect uint64, serve func(context.Context, int)) bool {
	began := time.Now()
	data, err := message.Marshal(holder{Owner: p.self})
	if err != nil {
		return false
	}
	seq, err := p.bucket.Put(ctx, leaseKey(n), data, p.ttl, expect)
	if err != nil {
		return false // another replica was faster, or the next round will tell
	}
	lctx, cancel := context.WithCancel(ctx)
	l := &lease{seq: seq, until: began.Add(p.ttl), cancel: cancel, done: make(chan struct{})}
	p.mu.Lock()
	p.leases[n] = l
	p.mu.Unlock()
	go func() {
		defer close(l.done)
		serve(lctx, n)
	}()
	return true
}

// renew keeps every lease this replica has, and ends serving those it lost.
func (p *Presence) renew(ctx context.Context) {
	var wg sync.WaitGroup
	for n := range p.held() {
		wg.Go(func() {
			if err := p.renewOne(ctx, n); err != nil {
				p.log.Warn("lease lost", "partition", n, "err", err)
				p.drop(n)
			}
		})
	}
	wg.Wait()
}

// renewOne returns an error when the lease is another's, or may soon be.
func (p *Presence) renewOne(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, p.ttl/3)
	defer cancel()
	p.mu.Lock()
	l := p.leases[n]
	p.mu.Unlock()
	data, err := message.Marshal(holder{Owner: p.self})
	if err != nil {
		return err
	}
	for {
		began := time.Now()
		seq, err := p.bucket.Put(ctx, leaseKey(n), data, p.ttl, l.seq)
		if err == nil {
			l.seq, l.until = seq, began.Add(p.ttl)
			return nil
		}
		if errors.Is(err, jet.ErrRevision) {
			// Perhaps by an earlier try of ours whose acknowledgement was lost.
			it, gerr := p.bucket.Get(ctx, leaseKey(n))
			var h holder
			if gerr == nil && it.Seq != l.seq && json.Unmarshal(it.Data, &h) == nil && h.Owner == p.self {
				l.seq = it.Seq
				continue
			}
			if gerr == nil {
				return err
			}
		}
		if time.Now().After(l.until.Add(-p.ttl / 3)) {
			return err
		}
		return nil // the next round may do better
	}
}

// drop ends serving a partition.
func (p *Presence) drop(n int) {
	p.mu.Lock()
	l := p.leases[n]
	delete(p.leases, n)
	p.mu.Unlock()
	l.cancel()
	<-l.done
}

// giveBack ends serving a partition and lets another replica have it at once.
func (p *Presence) giveBack(ctx context.Context, n int) {
	p.mu.Lock()
	seq := p.leases[n].seq
	p.mu.Unlock()
	p.drop(n)
	data, err := message.Marshal(holder{})
	if err == nil {
		_, err = p.bucket.Put(ctx, leaseKey(n), data, time.Second, seq)
	}
	if err != nil && !errors.Is(err, jet.ErrRevision) {
		p.log.Warn("lease not given back", "partition", n, "err", err)
	}
}

func (p *Presence) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for n := range p.held() {
		wg.Go(func() { p.giveBack(ctx, n) })
	}
	wg.Wait()
	if err := p.bucket.Set(ctx, keyReplica+p.self, []byte(left), time.Second); err != nil {
		p.log.Warn("not signed off", "err", err)
	}
}
