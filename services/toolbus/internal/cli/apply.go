package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/toolbus/internal/configfile"
)

func (a *app) apply() *cobra.Command {
	var named []string
	var dryRun, prune bool
	cmd := &cobra.Command{
		Use:   "apply FILE…|-",
		Short: "Apply agent configuration, all of it or nothing",
		Long: `Apply agent configuration (JSON or YAML; "-" reads stdin): all of it or nothing.
Agents that no file names stay as they are, unless --prune is given.`,
		Example: `  toolbus apply agents.yaml -t acme
  echo '{"agents":[{"agentId":"support","tools":{"addCode":{}}}]}' | toolbus apply - -t acme`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args)+len(named) == 0 {
				return errcode.Field("file", "is required")
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVarP(&named, "filename", "f", nil, "configuration `file` (as an argument is)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check and compare only")
	cmd.Flags().BoolVar(&prune, "prune", false, "remove the tenant's agents that no file names")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		tenant, err := a.tenant()
		if err != nil {
			return err
		}
		cfg, err := a.loadConfig(append(args, named...))
		if err != nil {
			return err
		}
		var reply message.RegistryApplied
		err = a.ask(ctx, subject.Registry(tenant, "apply"), message.RegistryApply{Config: cfg.JSON, DryRun: dryRun, Prune: prune}, &reply)
		if err != nil {
			return locate(err, cfg)
		}
		for _, w := range reply.Warnings {
			fmt.Fprintf(a.std.Err, "toolbus: warning: %s\n", printable(w))
		}
		return a.print(reply, func(w io.Writer) { applied(w, reply, cfg.HasTenant(), dryRun) })
	})
	return cmd
}

func (a *app) loadConfig(names []string) (configfile.Config, error) {
	sources := make([]configfile.Source, len(names))
	for i, name := range names {
		data, err := a.readInput("file", name)
		if err != nil {
			return configfile.Config{}, err
		}
		if name == "-" {
			name = "stdin"
		}
		sources[i] = configfile.Source{Name: name, Data: data}
	}
	return configfile.Load(sources...)
}

// locate makes the registry's faults name the files.
func locate(err error, cfg configfile.Config) error {
	var e *errcode.Error
	if !errors.As(err, &e) || e.Details == nil || len(e.Details.Fields) == 0 {
		return err
	}
	return errcode.Fields(e.Code, cfg.Locate(e.Details.Fields)...)
}

// applied tells what became of each agent, and, as the reply does not, that the
// tenant's own configuration was part of it.
func applied(w io.Writer, reply message.RegistryApplied, tenant, dryRun bool) {
	changed, removed, whole := "changed", "removed", "applied"
	if dryRun {
		changed, removed, whole = "would change", "would be removed", "would be applied"
	}
	var lines [][]any
	for _, ag := range reply.Agents {
		what := "unchanged"
		if ag.Changed {
			what = changed
		}
		lines = append(lines, []any{ag.AgentID, ag.Revision, what})
	}
	for _, id := range reply.Removed {
		lines = append(lines, []any{id, "-", removed})
	}
	rows(w, "AGENT REVISION RESULT", lines)
	if tenant {
		line(w, "the tenant's own configuration: "+whole)
	}
}
