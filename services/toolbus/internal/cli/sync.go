package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/services/toolbus/internal/mirror"
)

func (a *app) sync() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Mirror the tenant's files and ToolState to a local folder, read-only",
		Long: `Mirror the tenant's files to DIR/config/tenants/TENANT/files and its ToolState to
DIR/config/tenants/TENANT/tmp/state. The mirror is read-only: what is changed or
removed in it comes back with the next sync, and nothing is sent.`,
		Args: args(0),
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "`folder` to mirror into")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		tenant, err := a.tenant()
		if err != nil {
			return err
		}
		nc, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer nc.Close()
		sum, err := mirror.Sync(ctx, dir, tenant, remote{nc, tenant})
		for _, w := range sum.Warnings {
			fmt.Fprintf(a.std.Err, "toolbus: warning: %s\n", printable(w))
		}
		if err != nil {
			return err
		}
		return a.print(sum, func(w io.Writer) {
			fmt.Fprintf(w, "%s: %d written, %d removed, %d unchanged\n", sum.Dir, sum.Written, sum.Removed, sum.Unchanged)
		})
	})
	return cmd
}
