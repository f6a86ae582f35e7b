package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/toolbus/internal/mirror"
)

func (a *app) sync() *cobra.Command {
	var dir string
	var watch bool
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Mirror the tenant's files and ToolState to a local folder, read-only",
		Long: `Mirror the tenant's files to DIR/config/tenants/TENANT/files and its ToolState to
DIR/config/tenants/TENANT/tmp/state. The mirror is read-only: what is changed or
removed in it comes back with the next sync, and nothing is sent.

With --watch it goes on: it prints a line when the mirror is complete, then one for each
change, until SIGINT. With -o json each line is a JSON document; the first has kind "synced",
the others "written" or "removed" with the name in the tenant's folder. It waits for services
that are away, and within a minute repairs what was changed in the folder.`,
		Example: `  toolbus sync -t acme --dir mirror
  toolbus sync -t acme --dir mirror --watch -o json`,
		Args: args(0),
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "`folder` to mirror into")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on, and follow changes")
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
		if watch {
			return a.syncFollow(ctx, nc, tenant, dir)
		}
		sum, err := mirror.Sync(ctx, dir, tenant, remote{nc, tenant})
		for _, w := range sum.Warnings {
			a.warn(w)
		}
		if err != nil {
			return err
		}
		return a.print(sum, func(w io.Writer) { line(w, summary(sum)) })
	})
	return cmd
}

func summary(s mirror.Summary) string {
	return fmt.Sprintf("%s: %d written, %d removed, %d unchanged", s.Dir, s.Written, s.Removed, s.Unchanged)
}

func (a *app) warn(text string) { fmt.Fprintf(a.std.Err, "toolbus: warning: %s\n", printable(text)) }

// syncFollow mirrors and follows the changes, until ctx ends.
func (a *app) syncFollow(ctx context.Context, nc *nats.Conn, tenant, dir string) error {
	whole := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	// Both watches begin before the mirror is made, so that no change is between.
	docs, err := toolstate.New(nc, tenant).Watch(ctx, toolstate.Scope{})
	if err != nil {
		return err
	}
	defer docs.Stop()
	changed, err := files.New(nc, tenant).Watch(ctx)
	if err != nil {
		return err
	}
	defer changed.Stop()

	hints := make(chan mirror.Hint, 256)
	g.Go(func() error {
		for ch := range docs.Changes() {
			pass(ctx, hints, mirror.Hint{Namespace: ch.Namespace, ChatID: ch.ChatID})
		}
		return ended(ctx, docs.Err())
	})
	g.Go(func() error {
		for h := range changed.Hints() {
			pass(ctx, hints, mirror.Hint{File: h.Path})
		}
		return ended(ctx, nil)
	})
	g.Go(func() error {
		lines := &followed{app: a, failed: cancel}
		err := mirror.Follow(ctx, dir, tenant, remote{nc, tenant}, hints, mirror.Output{Synced: lines.synced, Changed: lines.changed, Warn: a.warn})
		return errors.Join(err, lines.err)
	})
	err = g.Wait()
	if err == nil && errors.Is(whole.Err(), context.DeadlineExceeded) {
		return errcode.New(errcode.Timeout, "the mirror was followed for %s", a.flags.timeout)
	}
	return err
}

func pass(ctx context.Context, hints chan<- mirror.Hint, h mirror.Hint) {
	select {
	case hints <- h:
	case <-ctx.Done():
	}
}

// ended is the error of a watch that is over.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		return errcode.New(errcode.Unavailable, "the connection is closed")
	}
	return err
}

// followed prints a line for each thing that happens.
type followed struct {
	*app
	failed func() // ends it all when a line cannot be printed
	err    error  // why
}

func (f *followed) synced(s mirror.Summary) {
	f.show(struct {
		Kind string `json:"kind"`
		mirror.Summary
	}{"synced", s}, "synced   "+summary(s))
}

func (f *followed) changed(e mirror.Event) {
	f.show(e, fmt.Sprintf("%-7s  %s", e.Kind, e.Name))
}

func (f *followed) show(v any, text string) {
	if f.err != nil {
		return
	}
	out := []byte(printable(text) + "\n")
	if f.flags.output == outputJSON {
		out, f.err = message.Marshal(v)
		out = append(out, '\n')
	}
	if f.err == nil {
		f.err = f.write(out)
	}
	if f.err != nil {
		f.failed()
	}
}
