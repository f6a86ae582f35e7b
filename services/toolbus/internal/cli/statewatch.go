package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

func (s *stateVerbs) watchVerb() *cobra.Command {
	var count int
	var current bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print the changes of documents; --chat and --namespace narrow it",
		Long: `Print each change of the tenant's documents, until SIGINT or --count changes: written, cleared
or expired. --chat and --namespace narrow it. With -o json each change is one JSON document on a
line of its own.

After a lost connection it goes on by itself, and prints what became of the documents meanwhile:
the last state of each that was written, and which are gone.`,
		Example: `  toolbus state watch -t acme
  toolbus state watch -t acme -c chat1 -n relabeling --current --count 1 -o json --timeout 1m`,
		Args: args(0),
	}
	cmd.Flags().IntVar(&count, "count", 0, "end after this `number` of changes; 0 for no end")
	cmd.Flags().BoolVar(&current, "current", false, "print the documents that are there first, as written")
	cmd.RunE = s.do(func(ctx context.Context, _ []string) error {
		if count < 0 {
			return &usageError{errcode.Field("count", "must not be negative")}
		}
		return s.watch(ctx, count, current)
	})
	return cmd
}

func (s *stateVerbs) watch(ctx context.Context, count int, current bool) error {
	tenant, err := s.tenant()
	if err != nil {
		return err
	}
	scope := toolstate.Scope{Namespace: s.namespace}
	if s.given("chat") {
		if scope.ChatID, err = s.chat(); err != nil {
			return err
		}
	}
	nc, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	var opts []toolstate.WatchOption
	if current {
		opts = append(opts, toolstate.Current())
	}
	w, err := toolstate.New(nc, tenant).Watch(ctx, scope, opts...)
	if err != nil {
		return err
	}
	defer w.Stop()
	for ch := range w.Changes() {
		if err := s.show(ch); err != nil {
			return err
		}
		if count--; count == 0 {
			return nil
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errcode.New(errcode.Timeout, "no more changes within %s", s.flags.timeout)
	}
	return w.Err()
}

func (s *stateVerbs) show(ch toolstate.Change) error {
	if s.flags.output == outputJSON {
		b, err := message.Marshal(ch)
		if err != nil {
			return err
		}
		return s.app.write(append(b, '\n'))
	}
	text := fmt.Sprintf("%-7s  %s  %s", ch.Kind, ch.Namespace, printable(ch.ChatID))
	if ch.Kind == toolstate.Written {
		data, err := message.Marshal(ch.Data)
		if err != nil {
			return err
		}
		text += fmt.Sprintf("  revision %d, expires %s  %s", ch.Revision, ch.ExpiresAt, printable(string(data)))
	}
	return s.app.write([]byte(text + "\n"))
}
