package cli

import (
	"context"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/store"
)

func (a *app) store() *cobra.Command {
	s := &storeVerbs{app: a}
	cmd := &cobra.Command{
		Use: "store", Short: "Read and write the durable store of a tool", RunE: needsVerb,
		Long: `Read and write the durable store: text values of one tool of one agent, which never expire,
such as how far a job has read.`,
		Example: `  toolbus store list -t acme -a support --tool readInbox
  toolbus store delete inbox_offset -t acme -a support --tool readInbox`,
	}
	cmd.PersistentFlags().StringVar(&s.tool, "tool", "", "`tool` whose store it is")
	ifRevision := func(c *cobra.Command, text string) *cobra.Command {
		c.Flags().Var(&s.ifRevision, "if-revision", text)
		return c
	}
	cmd.AddCommand(
		&cobra.Command{Use: "get KEY", Short: "Print a value as it is; not_found when it is missing", Args: args(1, "key"), RunE: a.do(s.get)},
		&cobra.Command{Use: "list [PREFIX]", Short: "List the keys, those that start with PREFIX", Args: args(0, "prefix"), RunE: a.do(s.list)},
		ifRevision(&cobra.Command{Use: "set KEY VALUE|-|@FILE", Short: "Write a value", Args: args(2, "key", "value"), RunE: a.do(s.set)},
			"write only if the key has this `revision`; 0: if it does not exist"),
		ifRevision(&cobra.Command{Use: "delete KEY", Short: "Remove a key", Args: args(1, "key"), RunE: a.do(s.delete)},
			"remove only if the key has this `revision`"),
	)
	return cmd
}

type storeVerbs struct {
	*app
	tool       string
	ifRevision revision
}

// subject is where an op of the store that the flags name is asked for.
func (s *storeVerbs) subject(op string, keys ...string) (string, error) {
	tenant, err := s.tenant()
	if err != nil {
		return "", err
	}
	agent, err := s.agent()
	if err != nil {
		return "", err
	}
	if s.tool == "" {
		return "", missing("tool", "--tool")
	}
	if err := subject.CheckName("tool", s.tool); err != nil {
		return "", err
	}
	for _, k := range keys {
		if err := subject.CheckFree("key", k); err != nil {
			return "", err
		}
	}
	return subject.Store(tenant, agent, s.tool, op), nil
}

func (s *storeVerbs) get(ctx context.Context, args []string) error {
	to, err := s.subject("get", args[0])
	if err != nil {
		return err
	}
	var reply message.StoreValue
	if err := s.ask(ctx, to, message.StoreGet{Key: args[0]}, &reply); err != nil {
		return err
	}
	if !reply.Found {
		return errcode.New(errcode.NotFound, "key %q is not in the store of %s", args[0], s.tool)
	}
	return s.print(reply, func(w io.Writer) { line(w, reply.Value) })
}

func (s *storeVerbs) list(ctx context.Context, args []string) error {
	if _, err := s.subject("list"); err != nil {
		return err
	}
	prefix := ""
	if len(args) == 1 {
		prefix = args[0]
	}
	nc, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	keys, err := store.New(nc, s.flags.tenant, s.flags.agent, s.tool).List(ctx, prefix)
	if err != nil {
		return err
	}
	return s.print(message.StoreKeys{Keys: keys}, func(w io.Writer) {
		for _, k := range keys {
			line(w, printable(k))
		}
	})
}

func (s *storeVerbs) set(ctx context.Context, args []string) error {
	to, err := s.subject("set", args[0])
	if err != nil {
		return err
	}
	value, err := s.argument("value", args[1])
	if err != nil {
		return err
	}
	if !utf8.Valid(value) {
		return errcode.Field("value", "is not valid UTF-8")
	}
	var reply message.StoreWritten
	req := message.StoreSet{Key: args[0], Value: string(value), IfRevision: s.ifRevision.at, OpID: bus.NewOpID()}
	if err := s.ask(ctx, to, req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { fmt.Fprintf(w, "revision %d\n", reply.Revision) })
}

func (s *storeVerbs) delete(ctx context.Context, args []string) error {
	to, err := s.subject("delete", args[0])
	if err != nil {
		return err
	}
	if at := s.ifRevision.at; at != nil && *at == 0 {
		return &usageError{errcode.Field("ifRevision", "0 would delete what does not exist")}
	}
	var reply message.StoreDeleted
	req := message.StoreDelete{Key: args[0], IfRevision: s.ifRevision.at, OpID: bus.NewOpID()}
	if err := s.ask(ctx, to, req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, done(reply.Deleted, "deleted")) })
}
