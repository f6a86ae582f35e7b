// Package api answers the registry's subjects: it reads requests, asks the
// agents' store and the catalogue, and puts the answers together.
package api

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/registry/internal/agents"
	"github.com/toolbus/toolbus/services/registry/internal/catalogue"
	"github.com/toolbus/toolbus/services/registry/internal/config"
	"github.com/toolbus/toolbus/services/registry/internal/events"
)

const (
	requestTimeout = 9 * time.Second // a client gives up after ten
	maxWarnings    = 100             // in one answer
)

// API is the registry's handlers.
type API struct {
	nc        *nats.Conn
	agents    *agents.Store
	catalogue *catalogue.Catalogue
	trail     *events.Trail
	parser    *config.Parser
	log       telemetry.Logger
}

// New makes the handlers.
func New(nc *nats.Conn, a *agents.Store, c *catalogue.Catalogue, t *events.Trail, p *config.Parser, log telemetry.Logger) *API {
	return &API{nc: nc, agents: a, catalogue: c, trail: t, parser: p, log: log}
}

// Endpoints is every subject the registry answers.
func (a *API) Endpoints() []bus.Endpoint {
	list := []bus.Endpoint{
		{Name: "apply", Subject: subject.Registry("*", "apply"), Handler: tenantOp(a.apply)},
		{Name: "get", Subject: subject.Registry("*", "get"), Handler: tenantOp(a.get)},
		{Name: "tenant", Subject: subject.Registry("*", "tenant"), Handler: tenantOp(a.tenant)},
		{Name: "list", Subject: subject.Registry("*", "list"), Handler: tenantOp(a.list)},
		{Name: "delete", Subject: subject.Registry("*", "delete"), Handler: tenantOp(a.delete)},
		{Name: "tenants", Subject: subject.Registry(subject.AllTenants, "tenants"), Handler: a.tenants},
		{Name: "agent-tools", Subject: subject.AgentTools("*", "*"), Handler: a.agentTools},
		{Name: "events", Subject: subject.Events("*", "list"), Handler: a.events},
		{Name: "catalogue-tools", Subject: subject.Catalogue("tools"), Handler: a.tools},
		{Name: "catalogue-announce", Subject: subject.Catalogue("announce"), Handler: a.announce},
	}
	for i, e := range list {
		list[i].Handler = func(ctx context.Context, in *bus.Incoming) (any, error) {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			return e.Handler(ctx, in)
		}
	}
	return list
}

// tenantOp takes the tenant from the subject and the request from the body.
func tenantOp[In any](f func(ctx context.Context, tenant string, in In) (any, error)) bus.Handler {
	return func(ctx context.Context, msg *bus.Incoming) (any, error) {
		tenant, _, err := subject.ParseTenantOp(subject.FamilyRegistry, msg.Subject, false)
		if err != nil {
			return nil, err
		}
		var in In
		if err := msg.Decode(&in); err != nil {
			return nil, err
		}
		return f(ctx, tenant, in)
	}
}

func (a *API) apply(ctx context.Context, tenant string, in message.RegistryApply) (any, error) {
	cfg, err := a.parser.Parse(in.Config)
	if err != nil {
		return nil, err
	}
	v, unread := a.catalogue.View(ctx)
	if unread == nil {
		if err := checkTools(v, cfg); err != nil {
			return nil, err
		}
	}
	out, err := a.agents.Apply(ctx, tenant, cfg, agents.Options{DryRun: in.DryRun, Prune: in.Prune})
	if err != nil {
		return nil, err
	}
	if !in.DryRun {
		changed := 0
		for _, r := range out.Agents {
			if r.Changed {
				changed++
			}
		}
		a.log.Info("configuration applied", "tenant", tenant, "agents", len(out.Agents), "changed", changed, "removed", len(out.Removed))
		a.applied(tenant, out)
	}
	out.Warnings = append(out.Warnings, warnings(v, unread, cfg)...)
	return out, nil
}

// applied tells the audit trail of the agents that changed.
func (a *API) applied(tenant string, out message.RegistryApplied) {
	for _, r := range out.Agents {
		if r.Changed {
			a.trail.Publish(tenant, message.Event{Kind: message.EventConfig, AgentID: r.AgentID, Outcome: message.OutcomeApplied, Revision: r.Revision})
		}
	}
	for _, id := range out.Removed {
		a.trail.Publish(tenant, message.Event{Kind: message.EventConfig, AgentID: id, Outcome: message.OutcomeRemoved})
	}
}

func (a *API) events(ctx context.Context, in *bus.Incoming) (any, error) {
	tenant, _, err := subject.ParseTenantOp(subject.FamilyEvents, in.Subject, false)
	if err != nil {
		return nil, err
	}
	var req message.EventsList
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	return reply(a.trail.List(ctx, tenant, req, bus.MaxBody(a.nc)))
}

// warnings names what is no fault but will not work now. The configuration is
// applied, so nothing here may fail the request.
func warnings(v *catalogue.View, unread error, cfg config.Parsed) []string {
	if unread != nil {
		return []string{"the tool catalogue could not be read: whether workers host the tools is not known"}
	}
	var out []string
	for i, agent := range cfg.Agents {
		for _, t := range slices.Sorted(slices.Values(agent.Tools)) {
			if _, hosted := v.Find(t); !hosted {
				out = append(out, cfg.ToolPath(i, t)+": no worker hosts it now")
			}
		}
		for j, job := range agent.Jobs {
			if def, hosted := v.Find(job.ToolName); hosted && !offers(def, job.JobTypeID) {
				out = append(out, fmt.Sprintf("%s: %s offers %s now, not %q", cfg.JobPath(i, j), def.Name, checks(def), job.JobTypeID))
			}
		}
	}
	if n := len(out); n > maxWarnings {
		out = append(out[:maxWarnings], fmt.Sprintf("and %d more tools or checks that no worker hosts now", n-maxWarnings))
	}
	return out
}

func offers(def message.ToolDefinition, jobTypeID string) bool {
	return slices.ContainsFunc(def.Jobs, func(j message.JobDefinition) bool { return j.ID == jobTypeID })
}

// checks names a tool's checks, for people.
func checks(def message.ToolDefinition) string {
	var ids []string
	for _, j := range def.Jobs {
		ids = append(ids, strconv.Quote(j.ID))
	}
	if ids == nil {
		return "no check"
	}
	return strings.Join(ids, ", ")
}

func (a *API) get(ctx context.Context, tenant string, in message.RegistryGet) (any, error) {
	if err := subject.CheckName("agentId", in.AgentID); err != nil {
		return nil, err
	}
	return reply(a.agents.Get(ctx, tenant, in.AgentID))
}

func (a *API) tenant(ctx context.Context, tenant string, _ struct{}) (any, error) {
	cfg, err := a.agents.Tenant(ctx, tenant)
	return reply(message.RegistryTenantConfig{Tenant: cfg}, err)
}

func (a *API) list(ctx context.Context, tenant string, in message.RegistryList) (any, error) {
	if in.Limit < 0 {
		return nil, errcode.Field("limit", "must not be negative")
	}
	if in.Cursor != "" {
		if err := subject.CheckName("cursor", in.Cursor); err != nil {
			return nil, err
		}
	}
	return reply(a.agents.List(ctx, tenant, in, bus.MaxBody(a.nc)))
}

func (a *API) delete(ctx context.Context, tenant string, in message.RegistryDelete) (any, error) {
	if err := subject.CheckName("agentId", in.AgentID); err != nil {
		return nil, err
	}
	deleted, err := a.agents.Delete(ctx, tenant, in.AgentID)
	if err == nil && deleted {
		a.log.Info("configuration deleted", "tenant", tenant, "agent", in.AgentID)
		a.applied(tenant, message.RegistryApplied{Removed: []string{in.AgentID}})
	}
	return reply(message.RegistryDeleted{Deleted: deleted}, err)
}

func (a *API) tenants(ctx context.Context, _ *bus.Incoming) (any, error) {
	list, err := a.agents.Tenants(ctx)
	return reply(message.RegistryTenants{Tenants: list}, err)
}

func (a *API) agentTools(ctx context.Context, in *bus.Incoming) (any, error) {
	s, err := subject.ParseAgent(in.Subject)
	if err != nil {
		return nil, err
	}
	e, err := a.agents.Get(ctx, s.Tenant, s.Agent)
	if err != nil {
		return nil, err
	}
	v, err := a.catalogue.View(ctx)
	if err != nil {
		return nil, err
	}
	out := message.AgentToolsReply{Tools: []message.ToolDefinition{}}
	for name, raw := range e.Config.Tools {
		if d, ok := v.Find(name); ok {
			out.Tools = append(out.Tools, visible(d, raw))
		} else {
			out.Unavailable = append(out.Unavailable, name)
		}
	}
	slices.SortFunc(out.Tools, func(x, y message.ToolDefinition) int { return strings.Compare(x.Name, y.Name) })
	slices.Sort(out.Unavailable)
	return out, nil
}

func (a *API) tools(ctx context.Context, _ *bus.Incoming) (any, error) {
	v, err := a.catalogue.View(ctx)
	if err != nil {
		return nil, err
	}
	return message.CatalogueTools{Tools: v.Tools}, nil
}

func (a *API) announce(ctx context.Context, in *bus.Incoming) (any, error) {
	var req message.CatalogueAnnounce
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	return reply(a.catalogue.Announce(ctx, req))
}

// reply keeps a zero answer from going out beside an error.
func reply[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
