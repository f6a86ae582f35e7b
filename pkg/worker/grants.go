package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/cache"
	"github.com/toolbus/toolbus/pkg/tool"
)

const (
	// maxConfigAge is how long a configuration is believed without asking:
	// change events are at most once.
	maxConfigAge = 5 * time.Second
	// askAgainEvery is how often one agent's refusals ask the registry at most.
	askAgainEvery = 200 * time.Millisecond
)

type agentKey struct{ tenant, agent string }

// grants knows what the registry grants to each agent.
type grants struct {
	configs *cache.Cache[agentKey, *agentConfig]

	mu     sync.Mutex
	asked  map[agentKey]time.Time // when a refusal last asked the registry
	rounds map[agentKey]*round    // waiting for their turn to ask
}

// round is one question to the registry that the refusals of an agent share. All
// of them were there before it is asked.
type round struct {
	done   chan struct{}
	config *agentConfig
	err    error
}

func newGrants(nc *nats.Conn) (*grants, error) {
	g := &grants{asked: map[agentKey]time.Time{}, rounds: map[agentKey]*round{}}
	g.configs = cache.New(maxConfigAge, func(ctx context.Context, k agentKey) (*agentConfig, error) {
		var e message.AgentEntry
		if err := bus.Retry(ctx, nc, subject.Registry(k.tenant, "get"), message.RegistryGet{AgentID: k.agent}, &e); err != nil {
			return nil, err
		}
		return newAgentConfig(e), nil
	})
	_, err := nc.Subscribe(subject.ChangesAgents(), func(m *nats.Msg) {
		switch tenant, agent, err := subject.ParseChangesAgent(m.Subject); {
		case err != nil:
		case agent == "": // rare: the tenant's settings, which every agent's configuration carries
			g.configs.Drop()
		default:
			g.configs.DropKey(agentKey{tenant, agent})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe configuration changes: %w", err)
	}
	return g, nil
}

func (g *grants) drop() { g.configs.Drop() }

// agentConfig is an agent's configuration, its tools' entries read.
type agentConfig struct {
	tools  map[string]grantedTool
	tenant *message.TenantConfig // nil: nothing is configured
}

type grantedTool struct {
	message.ToolEntry
	fault error // why the entry is none
}

func newAgentConfig(e message.AgentEntry) *agentConfig {
	c := &agentConfig{tools: make(map[string]grantedTool, len(e.Config.Tools)), tenant: e.Tenant}
	for name, raw := range e.Config.Tools {
		t, err := message.ParseToolEntry(raw)
		c.tools[name] = grantedTool{t, err}
	}
	return c
}

// noEntry is that of an internal tool that the configuration does not name.
var noEntry = message.ToolEntry{Settings: json.RawMessage("{}")}

// entry returns what an agent's configuration says of a tool, or why it may not be
// called: not_found for an unknown agent, not_allowed for a tool not granted.
func (g *grants) entry(ctx context.Context, who subject.Agent, def tool.Definition) (message.ToolEntry, error) {
	k := agentKey{who.Tenant, who.Agent}
	config, err := g.configs.Get(ctx, k)
	s, err := grant(who, def, config, err)
	refused := errors.Is(err, errcode.NotAllowed) || errors.Is(err, errcode.NotFound)
	if !refused {
		return s, err
	}
	// The refusal may rest on a configuration that has just changed.
	config, err = g.askAgain(ctx, k)
	return grant(who, def, config, err)
}

func grant(who subject.Agent, def tool.Definition, config *agentConfig, err error) (message.ToolEntry, error) {
	if errors.Is(err, errcode.NotFound) {
		return noEntry, errcode.New(errcode.NotFound, "no agent %q in tenant %q", who.Agent, who.Tenant)
	}
	if err != nil {
		return noEntry, fmt.Errorf("configuration of agent %s: %w", who.Agent, err)
	}
	t, listed := config.tools[def.Name]
	switch {
	case listed && t.fault != nil:
		return noEntry, fmt.Errorf("configuration of agent %s, tool %s: %w", who.Agent, def.Name, t.fault)
	case listed:
		return t.ToolEntry, nil
	case who.Family == subject.FamilyWorker && def.Internal:
		return noEntry, nil
	}
	return noEntry, errcode.New(errcode.NotAllowed, "agent %q has no tool %q", who.Agent, def.Name)
}

// askAgain asks the registry after the call has come in, so that a grant counts
// as soon as apply has answered; a call too soon after another refusal waits for
// its turn, at most askAgainEvery.
func (g *grants) askAgain(ctx context.Context, k agentKey) (*agentConfig, error) {
	g.mu.Lock()
	r := g.rounds[k]
	if r == nil {
		r = &round{done: make(chan struct{})}
		g.rounds[k] = r
		time.AfterFunc(askAgainEvery-time.Since(g.asked[k]), func() { g.ask(k, r) })
	}
	g.mu.Unlock()
	select {
	case <-r.done:
		return r.config, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *grants) ask(k agentKey, r *round) {
	g.mu.Lock()
	delete(g.rounds, k)        // who comes from now on may know of a later change
	if len(g.asked) > 10_000 { // foreign names must not fill the memory
		clear(g.asked)
	}
	g.asked[k] = time.Now()
	g.mu.Unlock()
	r.config, r.err = g.configs.Fresh(context.Background(), k) // a load has a limit of its own
	close(r.done)
}
