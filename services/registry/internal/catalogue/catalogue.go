package catalogue

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/cache"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/registry/internal/kv"
)

const (
	// MinTTL is the shortest lifetime of an offer: the server counts in whole
	// seconds.
	MinTTL = time.Second

	maxAge    = 2 * time.Second  // of the view, should a change event get lost
	markerTTL = 30 * time.Second // markers of expired and removed offers
	parallel  = 16               // writes of one announcement under way at once

	// headerRenewal marks a write that only lengthens an offer's life. It
	// travels with the change event, so that nobody drops anything for it.
	headerRenewal = "Toolbus-Renewal"
)

// Catalogue is safe for concurrent use, by any number of processes.
type Catalogue struct {
	js     jetstream.JetStream
	bucket *kv.Bucket
	ttl    time.Duration
	view   *cache.Cache[struct{}, *View]
}

// Open creates or updates the bucket. ttl is how long an offer stands, in whole
// seconds; fractions are rounded up.
func Open(ctx context.Context, js jetstream.JetStream, replicas int, ttl time.Duration) (*Catalogue, error) {
	cfg := jet.BucketStream(subject.BucketTools, replicas)
	cfg.Description = "Toolbus: tools that live workers host"
	cfg.SubjectDeleteMarkerTTL = markerTTL
	cfg.RePublish = &jetstream.RePublish{
		Source:      jet.KVSubject(subject.BucketTools, ">"),
		Destination: subject.Prefix + subject.FamilyChanges + ".tool.>",
		HeadersOnly: true,
	}
	b, err := kv.Open(ctx, js, subject.BucketTools, cfg)
	if err != nil {
		return nil, err
	}
	c := &Catalogue{js: js, bucket: b, ttl: max((ttl + time.Second - 1).Truncate(time.Second), MinTTL)}
	c.view = cache.New(maxAge, func(ctx context.Context, _ struct{}) (*View, error) {
		entries, err := c.read(ctx, "*.*")
		if err != nil {
			return nil, err
		}
		return newView(entries), nil
	})
	return c, nil
}

// Watch drops the view when an offer changes, until ctx's connection closes.
// Call Drop after a reconnect: events of the time between are lost.
func (c *Catalogue) Watch(nc *nats.Conn) (*nats.Subscription, error) {
	sub, err := nc.Subscribe(subject.ChangesTool("*", "*"), func(m *nats.Msg) {
		if m.Header.Get(headerRenewal) == "" {
			c.view.Drop()
		}
	})
	if err != nil {
		return nil, fmt.Errorf("watch the catalogue: %w", err)
	}
	return sub, nil
}

// Drop forgets the view: the next View reads again.
func (c *Catalogue) Drop() { c.view.Drop() }

// View is the catalogue now: what this replica was told of is in it, what
// another was told of within a change event's way, or at most two seconds.
func (c *Catalogue) View(ctx context.Context) (*View, error) { return c.view.Get(ctx, struct{}{}) }

// Announce records what a worker offers, in place of what it offered before.
// No tools means that it leaves. An offer that is young and unchanged is not
// written again.
func (c *Catalogue) Announce(ctx context.Context, a message.CatalogueAnnounce) (message.CatalogueAnnounced, error) {
	if err := check(a); err != nil {
		return message.CatalogueAnnounced{}, err
	}
	stands, err := c.read(ctx, "*."+a.WorkerID)
	if err != nil {
		return message.CatalogueAnnounced{}, err
	}
	now := time.Now()
	changed := false
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, d := range a.Tools {
		key := d.Name + "." + a.WorkerID
		m, renewal, err := c.offer(key, d, stands[key], now)
		if err != nil {
			return message.CatalogueAnnounced{}, err
		}
		delete(stands, key)
		if m == nil {
			continue
		}
		changed = changed || !renewal
		g.Go(func() error { return c.publish(gctx, m) })
	}
	for key, e := range stands {
		if e.Deleted {
			continue
		}
		changed = true
		g.Go(func() error { return c.publish(gctx, c.bucket.DeleteMsg(key, markerTTL)) })
	}
	err = g.Wait()
	if changed {
		c.view.Drop() // also after an error: some of it may be written
	}
	if err != nil {
		return message.CatalogueAnnounced{}, err
	}
	out := message.CatalogueAnnounced{TTLMs: c.ttl.Milliseconds()}
	if changed && len(a.Tools) > 0 { // a warning once, not with every renewal
		out.Warnings = c.warnings(ctx, a)
	}
	return out, nil
}

// offer is the message that writes an offer, nil when none is due yet; renewal
// when it only lengthens the offer's life.
func (c *Catalogue) offer(key string, d message.ToolDefinition, stands kv.Entry, now time.Time) (m *nats.Msg, renewal bool, err error) {
	o := offer{Definition: d, Since: now.UTC()}
	if old, ok := read(key, stands); ok && same(old.Definition, d) {
		// A negative age is a clock that disagrees with the server's: write.
		if age := now.Sub(stands.Time); age >= 0 && age < c.ttl/4 {
			return nil, true, nil
		}
		o.Since, renewal = old.Since, true
	}
	data, err := message.Marshal(o)
	if err != nil {
		return nil, false, err
	}
	m = c.bucket.Msg(key, data)
	m.Header.Set(jetstream.MsgTTLHeader, c.ttl.String())
	if renewal {
		m.Header.Set(headerRenewal, "1")
	}
	return m, renewal, nil
}

// publish writes without a compare-and-set: only the worker itself changes its
// offers, and it repeats them.
func (c *Catalogue) publish(ctx context.Context, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := c.js.PublishMsg(ctx, m); err != nil {
		return jet.PublishError(err)
	}
	return nil
}

func (c *Catalogue) warnings(ctx context.Context, a message.CatalogueAnnounce) []string {
	v, err := c.View(ctx)
	if err != nil {
		return nil // the offer stands; the next announcement will tell
	}
	var out []string
	for _, d := range a.Tools {
		if o, ok := v.others(a.WorkerID, d); ok {
			out = append(out, fmt.Sprintf("%s: worker %s hosts another definition of it (version %q, here %q); the one announced last counts",
				d.Name, o.worker, o.Definition.Version, d.Version))
		}
	}
	return out
}

func (c *Catalogue) read(ctx context.Context, pattern string) (map[string]kv.Entry, error) {
	keys, err := c.bucket.Keys(ctx, pattern)
	if err != nil {
		return nil, err
	}
	return c.bucket.GetAll(ctx, keys)
}
