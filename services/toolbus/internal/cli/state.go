package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

func (a *app) state() *cobra.Command {
	s := &stateVerbs{app: a}
	cmd := &cobra.Command{
		Use: "state", Short: "Read, write and watch ToolState, the scratch pads of chats", RunE: needsVerb,
		Long: `Read, write and watch ToolState: the scratch pads of chats, one JSON document per chat and
namespace, which expires. Every write gives the whole document a new life: 24 hours, or --ttl,
whatever it had before. A JSON value may also be "-", for stdin, or @FILE; a string has its
quotes, '"text"'.`,
		Example: `  toolbus state append codes '"8806096235386"' --unique -t acme -c chat1 -n relabeling
  toolbus state update '{"direction":"DHL->DPD"}' --delete draft -t acme -c chat1 -n relabeling
  toolbus state watch -t acme -n relabeling -o json`,
	}
	cmd.PersistentFlags().StringVarP(&s.namespace, "namespace", "n", "", "`namespace` of the scratch pad")
	verb := func(c *cobra.Command, run func(context.Context, []string) error, flags ...func(*cobra.Command)) {
		c.RunE = a.do(run)
		for _, f := range flags {
			f(c)
		}
		cmd.AddCommand(c)
	}
	ttl := func(c *cobra.Command) {
		c.Flags().StringVar(&s.ttl, "ttl", "", "the whole document's `life` from now on, such as 2h or \"+2 hours\" (default 24h)")
	}
	ifRevision := func(c *cobra.Command) {
		c.Flags().Var(&s.ifRevision, "if-revision", "write only if the document has this `revision`; 0: if there is none")
	}
	verb(&cobra.Command{Use: "get KEY", Short: "Print one key's value; not_found when it is missing", Args: args(1, "key")}, s.get)
	verb(&cobra.Command{Use: "all", Short: "Print the whole document; {} when there is none", Args: args(0)}, s.all)
	verb(&cobra.Command{Use: "list", Short: "List the tenant's documents; --chat and --namespace narrow it", Args: args(0)}, s.list, func(c *cobra.Command) {
		c.Flags().IntVar(&s.limit, "limit", 0, "list at most so `many`; when there are more, a cursor follows")
		c.Flags().StringVar(&s.cursor, "cursor", "", "go on after the list that ended with this `cursor`")
	})
	verb(&cobra.Command{Use: "set KEY JSON", Short: "Write one key", Args: args(2, "key", "value")}, s.set, ttl, ifRevision)
	verb(&cobra.Command{Use: "delete KEY", Short: "Remove one key", Args: args(1, "key"),
		Long: "Remove one key. The verb update, with --delete, removes several, and takes --ttl and --if-revision."}, s.delete)
	verb(&cobra.Command{Use: "clear", Short: "Remove the whole document", Args: args(0)}, s.clear)
	verb(&cobra.Command{Use: "append KEY JSON...", Short: "Add values to the end of an array, all in one step", Args: atLeast("key", "value")}, s.append, ttl, func(c *cobra.Command) {
		c.Flags().BoolVar(&s.unique, "unique", false, "leave out values that are there already")
	})
	verb(&cobra.Command{Use: "increment KEY", Short: "Add to a number, exactly", Args: args(1, "key")}, s.increment, ttl, func(c *cobra.Command) {
		c.Flags().StringVar(&s.by, "by", "1", "the `number` to add")
	})
	verb(&cobra.Command{
		Use: "update [JSON]", Short: "Set and delete several keys in one step", Args: args(0, "set"),
		Long: `Set the members of a JSON object, and delete the keys named with --delete, all in one step.
With neither, but --ttl, the document only gets a new life. A document that is left without
keys is removed.`,
	}, s.update, ttl, ifRevision, func(c *cobra.Command) {
		c.Flags().StringArrayVar(&s.drop, "delete", nil, "remove this `key`; may be given several times")
	})
	cmd.AddCommand(s.watchVerb())
	return cmd
}

type stateVerbs struct {
	*app
	namespace  string
	ttl        string
	ifRevision revision
	unique     bool
	by         string
	drop       []string
	limit      int
	cursor     string
}

// revision is a flag that tells 0 from one left out.
type revision struct{ at *uint64 }

func (r *revision) Type() string { return "revision" }

func (r *revision) String() string {
	if r.at == nil {
		return ""
	}
	return strconv.FormatUint(*r.at, 10)
}

func (r *revision) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return errcode.Field("ifRevision", "%q is not a revision", text)
	}
	r.at = &n
	return nil
}

// document is the tenant and document that the flags name; keys are checked
// too, as long as they are what was typed.
func (s *stateVerbs) document(keys ...string) (tenant string, ref message.ToolStateRef, err error) {
	if tenant, err = s.tenant(); err != nil {
		return "", ref, err
	}
	if s.namespace == "" {
		return "", ref, missing("namespace", "--namespace/-n")
	}
	if err = subject.CheckName("namespace", s.namespace); err != nil {
		return "", ref, err
	}
	chat, err := s.chat()
	if err != nil {
		return "", ref, err
	}
	for _, k := range keys {
		if err := subject.CheckFree("key", k); err != nil {
			return "", ref, err
		}
	}
	return tenant, message.ToolStateRef{ChatID: chat, Namespace: s.namespace}, nil
}

func (s *stateVerbs) get(ctx context.Context, args []string) error {
	tenant, ref, err := s.document(args[0])
	if err != nil {
		return err
	}
	var reply message.ToolStateValue
	if err := s.ask(ctx, subject.ToolState(tenant, "get"), message.ToolStateGet{ToolStateRef: ref, Key: args[0]}, &reply); err != nil {
		return err
	}
	if !reply.Found {
		return errcode.New(errcode.NotFound, "key %q is not in namespace %s of this chat", args[0], ref.Namespace)
	}
	return s.print(reply, func(w io.Writer) { line(w, indented(reply.Value)) })
}

func (s *stateVerbs) all(ctx context.Context, _ []string) error {
	tenant, ref, err := s.document()
	if err != nil {
		return err
	}
	var reply message.ToolStateData
	if err := s.ask(ctx, subject.ToolState(tenant, "all"), message.ToolStateAll{ToolStateRef: ref}, &reply); err != nil {
		return err
	}
	if reply.Data == nil {
		reply.Data = map[string]json.RawMessage{}
	}
	data, err := message.Marshal(reply.Data)
	if err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, indented(data)) })
}

func (s *stateVerbs) list(ctx context.Context, _ []string) error {
	tenant, err := s.tenant()
	if err != nil {
		return err
	}
	req := message.ToolStateList{Namespace: s.namespace}
	if s.namespace != "" {
		if err := subject.CheckName("namespace", s.namespace); err != nil {
			return err
		}
	}
	if s.given("chat") {
		if req.ChatID, err = s.chat(); err != nil {
			return err
		}
	}
	if s.limit < 0 {
		return &usageError{errcode.Field("limit", "must not be negative")}
	}
	req.Cursor = s.cursor
	nc, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	found, err := listSome(ctx, nc, tenant, req, s.limit)
	if err != nil {
		return err
	}
	docs := found.Documents
	return s.print(found, func(w io.Writer) {
		var lines [][]any
		for _, d := range docs {
			lines = append(lines, []any{d.Namespace, d.ChatID, d.Keys, d.Revision, d.ExpiresAt})
		}
		rows(w, "NAMESPACE CHAT KEYS REVISION EXPIRES", lines)
		if found.Cursor != "" {
			fmt.Fprintf(w, "there are more: go on with --cursor %s\n", found.Cursor)
		}
	})
}

func indented(v json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, v, "", "  "); err != nil {
		return string(v)
	}
	return b.String()
}
