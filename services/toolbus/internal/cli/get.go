package cli

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
)

// agentsPage is how many agents are asked for at once: configurations are a few
// KB, and a reply must fit one message.
const agentsPage = 50

func (a *app) get() *cobra.Command {
	cmd := &cobra.Command{Use: "get", Short: "Show agents, tools, jobs or wakes", RunE: needsVerb}
	cmd.AddCommand(&cobra.Command{
		Use: "agents [AGENT]", Aliases: []string{"agent"}, Short: "Show the tenant's agents, or one; -o json prints their configuration",
		Args: args(0, "agent"), RunE: a.do(a.getAgents),
	}, &cobra.Command{
		Use: "tools", Aliases: []string{"tool"}, Short: "Show every tool, or with --agent those of one agent; -o openai, anthropic or mcp for models",
		Args: args(0), RunE: a.do(a.getTools), Annotations: map[string]string{formatsOf: strings.Join(agent.Formats, " ")},
	}, &cobra.Command{
		Use: "jobs", Aliases: []string{"job"}, Short: "Show the schedules and jobs of the tenant's agents, or with --agent those of one",
		Args: args(0), RunE: a.do(a.getJobs),
	}, a.getWakes())
	return cmd
}

func (a *app) getAgents(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	if len(args) == 1 {
		return a.getAgent(ctx, tenant, args[0])
	}
	if a.given("agent") {
		return a.getAgent(ctx, tenant, a.flags.agent)
	}
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	reply := message.RegistryListing{Agents: []message.AgentEntry{}}
	for req := (message.RegistryList{Limit: agentsPage}); ; {
		var page message.RegistryListing
		if err := bus.Retry(ctx, nc, subject.Registry(tenant, "list"), req, &page); err != nil {
			return err
		}
		reply.Agents = append(reply.Agents, page.Agents...)
		if page.Cursor == "" {
			break
		}
		if page.Cursor == req.Cursor {
			return errcode.New(errcode.Internal, "the list of agents does not move on")
		}
		req.Cursor = page.Cursor
	}
	return a.print(reply, func(w io.Writer) { agentRows(w, reply.Agents...) })
}

func (a *app) getAgent(ctx context.Context, tenant, agent string) error {
	if err := subject.CheckName("agent", agent); err != nil {
		return err
	}
	var reply message.AgentEntry
	if err := a.ask(ctx, subject.Registry(tenant, "get"), message.RegistryGet{AgentID: agent}, &reply); err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) { agentRows(w, reply) })
}

func agentRows(w io.Writer, agents ...message.AgentEntry) {
	var lines [][]any
	for _, e := range agents {
		tools := strings.Join(slices.Sorted(maps.Keys(e.Config.Tools)), ",")
		lines = append(lines, []any{e.Config.AgentID, e.Revision, toSecond(e.Modified), len(e.Config.Scheduler), len(e.Config.ToolJobs), tools})
	}
	rows(w, "AGENT REVISION MODIFIED SCHEDULES JOBS TOOLS", lines)
}

func (a *app) getTools(ctx context.Context, _ []string) error {
	if a.given("agent") {
		return a.agentTools(ctx)
	}
	var reply message.CatalogueTools
	if err := a.ask(ctx, subject.Catalogue("tools"), struct{}{}, &reply); err != nil {
		return err
	}
	if a.forModels() {
		var public []message.ToolDefinition
		for _, t := range reply.Tools {
			if !t.Internal {
				public = append(public, t.ToolDefinition)
			}
		}
		return a.export(public)
	}
	return a.print(reply, func(w io.Writer) {
		var lines [][]any
		for _, t := range reply.Tools {
			lines = append(lines, []any{t.Name, strings.Join(t.Versions, ","), len(t.Workers), kind(t.Internal), firstLine(t.Description)})
		}
		rows(w, "TOOL VERSIONS WORKERS KIND DESCRIPTION", lines)
	})
}

func (a *app) agentTools(ctx context.Context) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	name, err := a.agent()
	if err != nil {
		return err
	}
	var reply message.AgentToolsReply
	if err := a.ask(ctx, subject.AgentTools(tenant, name), struct{}{}, &reply); err != nil {
		return err
	}
	if a.forModels() {
		return a.export(reply.Tools)
	}
	return a.print(reply, func(w io.Writer) {
		var lines [][]any
		for _, t := range reply.Tools {
			lines = append(lines, []any{t.Name, "available", kind(t.Internal), firstLine(t.Description)})
		}
		for _, name := range reply.Unavailable {
			lines = append(lines, []any{name, "unavailable", "", ""})
		}
		rows(w, "TOOL STATUS KIND DESCRIPTION", lines)
	})
}

// forModels tells whether the output is for a model's API.
func (a *app) forModels() bool { return slices.Contains(agent.Formats, a.flags.output) }

func (a *app) export(tools []message.ToolDefinition) error {
	b, err := agent.Export(a.flags.output, tools)
	if err != nil {
		return err
	}
	return a.write(append(b, '\n'))
}

func kind(internal bool) string {
	if internal {
		return "internal"
	}
	return "public"
}
