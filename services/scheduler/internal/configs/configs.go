// Package configs asks the registry what the agents' configurations are.
package configs

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/cache"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/scheduler/internal/entry"
)

const (
	maxAge   = 5 * time.Second // change events are at most once
	pageSize = 100             // agents of one answer
)

// Ref names an agent.
type Ref struct{ Tenant, Agent string }

// Agent is an agent's entries as of a revision of its configuration; 0 and none
// when there is no such agent.
type Agent struct {
	Ref
	Revision uint64
	Entries  []entry.Entry
}

// Configs is safe for concurrent use.
type Configs struct {
	nc     *nats.Conn
	log    telemetry.Logger
	agents *cache.Cache[Ref, Agent]
}

// New makes a Configs.
func New(nc *nats.Conn, log telemetry.Logger) *Configs {
	c := &Configs{nc: nc, log: log}
	c.agents = cache.New(maxAge, c.load)
	return c
}

// Watch calls changed for each agent whose configuration changes, until nc
// closes.
func (c *Configs) Watch(changed func(Ref)) error {
	_, err := c.nc.Subscribe(subject.ChangesAgents(), func(m *nats.Msg) {
		tenant, agent, err := subject.ParseChangesAgent(m.Subject)
		if err != nil || agent == "" { // a tenant's shared settings: nothing of ours
			return
		}
		r := Ref{tenant, agent}
		c.agents.DropKey(r)
		changed(r)
	})
	return err
}

// Drop forgets everything kept.
func (c *Configs) Drop() { c.agents.Drop() }

// Agent returns an agent as known, at most a few seconds old.
func (c *Configs) Agent(ctx context.Context, r Ref) (Agent, error) { return c.agents.Get(ctx, r) }

// Fresh returns an agent as the registry has it now.
func (c *Configs) Fresh(ctx context.Context, r Ref) (Agent, error) { return c.agents.Fresh(ctx, r) }

func (c *Configs) load(ctx context.Context, r Ref) (Agent, error) {
	var e message.AgentEntry
	err := bus.Retry(ctx, c.nc, subject.Registry(r.Tenant, "get"), message.RegistryGet{AgentID: r.Agent}, &e)
	if errors.Is(err, errcode.NotFound) {
		return Agent{Ref: r}, nil
	}
	if err != nil {
		return Agent{}, err
	}
	return c.agent(r.Tenant, e), nil
}

func (c *Configs) agent(tenant string, e message.AgentEntry) Agent {
	list, err := entry.Of(tenant, e.Config)
	if err != nil {
		c.log.Error("configuration not understood", "tenant", tenant, "agent", e.Config.AgentID, "err", err)
	}
	return Agent{Ref: Ref{tenant, e.Config.AgentID}, Revision: e.Revision, Entries: list}
}

// Tenants lists every tenant that has an agent.
func (c *Configs) Tenants(ctx context.Context) ([]string, error) {
	var out message.RegistryTenants
	err := bus.Retry(ctx, c.nc, subject.Registry(subject.AllTenants, "tenants"), nil, &out)
	return out.Tenants, err
}

// Agents lists a tenant's agents, ordered by name.
func (c *Configs) Agents(ctx context.Context, tenant string) ([]Agent, error) {
	var all []Agent
	for req := (message.RegistryList{Limit: pageSize}); ; {
		var out message.RegistryListing
		if err := bus.Retry(ctx, c.nc, subject.Registry(tenant, "list"), req, &out); err != nil {
			return nil, err
		}
		for _, e := range out.Agents {
			all = append(all, c.agent(tenant, e))
		}
		if req.Cursor = out.Cursor; req.Cursor == "" {
			return all, nil
		}
	}
}
