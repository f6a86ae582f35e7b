package results

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
)

// lease is how long a claim stands that is not renewed: less than the consumer
// of submitted calls waits for a worker, so that a call that comes again because
// its worker is gone finds the claim gone too.
const lease = 8 * time.Second

// claimTries is how often a claim is tried that meets another's.
const claimTries = 5

// claims tell which run of a submitted call is under way, so that one that was
// submitted twice, or came again while it ran, does not run twice at a time.
//
// They are kept in memory: with the servers all claims are lost, and a call that
// comes again before its run has renewed its claim runs beside it. That is what
// at least once allows, and a write to the disk for each call costs more.
type claims struct {
	js  jetstream.JetStream
	cfg jetstream.StreamConfig

	mu     sync.Mutex
	bucket *bucket.Bucket
}

// claim is what is stored.
type claim struct {
	RunID  string `json:"runId"`
	Submit uint64 `json:"submit"`
}

func openClaims(ctx context.Context, js jetstream.JetStream, replicas int) (*claims, error) {
	cfg := jet.BucketStream(subject.BucketClaims, replicas)
	cfg.Description = "Submitted calls that run"
	cfg.Storage = jetstream.MemoryStorage
	cfg.Duplicates = time.Second // no publish carries a message id
	c := &claims{js: js, cfg: cfg}
	_, err := c.open(ctx)
	return c, err
}

// open makes the bucket, also when the servers have forgotten it.
func (c *claims) open(ctx context.Context) (*bucket.Bucket, error) {
	b, err := bucket.Open(ctx, c.js, subject.BucketClaims, c.cfg)
	if err == nil {
		c.mu.Lock()
		c.bucket = b
		c.mu.Unlock()
	}
	return b, err
}

// young tells whether claims may be missing that runs hold: the servers have made the
// bucket anew less than a lease ago.
func (c *claims) young(ctx context.Context) (bool, error) {
	st, err := c.js.Stream(ctx, c.cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return time.Since(st.CachedInfo().Created) < lease, nil
}

// take claims a call for a run, renews that run's claim, or gives it back. It
// returns a state of message.ResultClaimed; never ClaimDone.
func (c *claims) take(ctx context.Context, key string, req message.ResultClaim) (string, error) {
	body, err := json.Marshal(claim{req.RunID, req.Submit})
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	b := c.bucket
	c.mu.Unlock()
	if !req.Release { // most calls are claimed once
		if _, err := b.Put(ctx, key, nats.Header{}, body, lease, 0); err == nil {
			return message.ClaimGranted, nil
		}
	}
	for range claimTries {
		state, err := c.try(ctx, b, key, req, body)
		switch {
		case err == nil || ctx.Err() != nil:
			return state, err
		case !errors.Is(err, bucket.ErrRevision):
			if b, err = c.open(ctx); err != nil {
				return "", err
			}
		}
	}
	return "", errcode.New(errcode.Unavailable, "too many claims of one call at once")
}

func (c *claims) try(ctx context.Context, b *bucket.Bucket, key string, req message.ResultClaim, body []byte) (string, error) {
	m, err := b.Last(ctx, key)
	if err != nil {
		return "", err
	}
	var held claim
	if m.Seq != 0 && !m.Marker {
		_ = json.Unmarshal(m.Data, &held) // an unreadable claim is nobody's
	}
	switch mine := held.RunID == req.RunID; {
	case req.Release && !mine:
		return message.ClaimReleased, nil
	case req.Release:
		_, err = b.Remove(ctx, key, nats.Header{}, time.Second, m.Seq)
		return message.ClaimReleased, err
	case held.RunID == "" || mine:
		_, err = b.Put(ctx, key, nats.Header{}, body, lease, m.Seq)
		return message.ClaimGranted, err
	case held.Submit != req.Submit:
		return message.ClaimDuplicate, nil
	}
	return message.ClaimRunning, nil
}
