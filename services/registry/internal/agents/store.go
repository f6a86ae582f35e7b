package agents

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/registry/internal/kv"
)

// markerTTL is how long a removed agent's marker stays; whoever read it before
// misses the compare-and-set after, and reads again.
const markerTTL = 24 * time.Hour

// Store is safe for concurrent use, by any number of processes.
type Store struct {
	js     jetstream.JetStream
	bucket *kv.Bucket
}

// Open creates or updates the bucket.
func Open(ctx context.Context, js jetstream.JetStream, replicas int) (*Store, error) {
	cfg := jet.BucketStream(subject.BucketAgents, replicas)
	cfg.Description = "Toolbus: configuration of agents"
	cfg.RePublish = &jetstream.RePublish{
		Source:      jet.KVSubject(subject.BucketAgents, ">"),
		Destination: subject.Prefix + subject.FamilyChanges + ".agent.>",
		HeadersOnly: true, // settings may hold what only the worker should read
	}
	b, err := kv.Open(ctx, js, subject.BucketAgents, cfg)
	if err != nil {
		return nil, err
	}
	return &Store{js: js, bucket: b}, nil
}

// Get returns an agent with its tenant's shared settings; not_found when the
// tenant has no such agent.
func (s *Store) Get(ctx context.Context, tenant, agent string) (message.AgentEntry, error) {
	e, ok, err := s.bucket.Get(ctx, subject.AgentKey(tenant, agent))
	if err != nil {
		return message.AgentEntry{}, err
	}
	if !ok || e.Deleted {
		return message.AgentEntry{}, errcode.New(errcode.NotFound, "no agent %q", agent)
	}
	out, err := entry(e)
	if err != nil {
		return message.AgentEntry{}, err
	}
	if out.Tenant, err = s.Tenant(ctx, tenant); err != nil {
		return message.AgentEntry{}, err
	}
	return out, nil
}

// Tenant returns what a tenant's agents share; nil when nothing is configured.
func (s *Store) Tenant(ctx context.Context, tenant string) (*message.TenantConfig, error) {
	e, ok, err := s.bucket.Get(ctx, tenant)
	if err != nil || !ok || e.Deleted {
		return nil, err
	}
	out := &message.TenantConfig{}
	if err := json.Unmarshal(e.Data, out); err != nil {
		return nil, errcode.New(errcode.Internal, "the stored settings of the tenant are unreadable")
	}
	return out, nil
}

// List returns a tenant's agents, ordered by agentId: all, or from cursor on at
// most limit of them that together stay under maxBytes.
func (s *Store) List(ctx context.Context, tenant string, req message.RegistryList, maxBytes int64) (message.RegistryListing, error) {
	out := message.RegistryListing{Agents: []message.AgentEntry{}}
	keys, err := s.bucket.Keys(ctx, subject.AgentKey(tenant, "*"))
	if err != nil {
		return out, err
	}
	if req.Cursor != "" {
		after := subject.AgentKey(tenant, req.Cursor)
		for len(keys) > 0 && keys[0] <= after {
			keys = keys[1:]
		}
	}
	step := len(keys)
	if req.Limit > 0 {
		step = req.Limit
	}
	var size int64
	for len(keys) > 0 {
		part := keys[:min(step, len(keys))]
		found, err := s.bucket.GetAll(ctx, part)
		if err != nil {
			return out, err
		}
		for _, k := range part {
			e, ok := found[k]
			if !ok || e.Deleted {
				continue
			}
			a, err := entry(e)
			if err != nil {
				return out, err
			}
			size += int64(len(e.Data)) + 256
			if req.Limit > 0 && len(out.Agents) > 0 && (len(out.Agents) == req.Limit || size > maxBytes) {
				out.Cursor = out.Agents[len(out.Agents)-1].Config.AgentID
				return out, nil
			}
			out.Agents = append(out.Agents, a)
		}
		keys = keys[len(part):]
	}
	return out, nil
}

// Delete removes an agent; false when there was none.
func (s *Store) Delete(ctx context.Context, tenant, agent string) (bool, error) {
	key := subject.AgentKey(tenant, agent)
	tried := false // a removal whose outcome is unknown
	var deleted bool
	err := s.retry(ctx, func() error {
		e, ok, err := s.bucket.Get(ctx, key)
		if err != nil {
			return err
		}
		if !ok || e.Deleted {
			deleted = tried
			return nil
		}
		_, err = jet.Put(ctx, s.js, s.bucket.DeleteMsg(key, markerTTL), e.Revision)
		tried = tried || unknown(err)
		deleted = err == nil
		return err
	})
	return deleted, err
}

// Tenants lists the tenants that have an agent, in order.
func (s *Store) Tenants(ctx context.Context) ([]string, error) {
	keys, err := s.bucket.Keys(ctx, "*.*")
	if err != nil {
		return nil, err
	}
	// One live agent is enough: read each tenant's first, and go on only where
	// that is a marker.
	byTenant := map[string][]string{}
	order := []string{}
	for _, k := range keys {
		tenant, _, _ := strings.Cut(k, ".")
		if byTenant[tenant] == nil {
			order = append(order, tenant)
		}
		byTenant[tenant] = append(byTenant[tenant], k)
	}
	live := map[string]bool{}
	for len(byTenant) > 0 {
		var ask []string
		for tenant, ks := range byTenant {
			if len(ks) == 0 {
				delete(byTenant, tenant)
				continue
			}
			ask = append(ask, ks[0])
			byTenant[tenant] = ks[1:]
		}
		found, err := s.bucket.GetAll(ctx, ask)
		if err != nil {
			return nil, err
		}
		for k, e := range found {
			if tenant, _, _ := strings.Cut(k, "."); !e.Deleted {
				live[tenant] = true
				delete(byTenant, tenant)
			}
		}
	}
	out := []string{}
	for _, t := range order {
		if live[t] {
			out = append(out, t)
		}
	}
	return out, nil
}

func entry(e kv.Entry) (message.AgentEntry, error) {
	out := message.AgentEntry{Revision: e.Revision, Modified: e.Time.UTC().Format(time.RFC3339Nano)}
	if err := json.Unmarshal(e.Data, &out.Config); err != nil {
		return out, errcode.New(errcode.Internal, "the stored configuration %s is unreadable", e.Key)
	}
	return out, nil
}
