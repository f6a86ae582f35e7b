package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

func (a *app) state() *cobra.Command {
	s := &stateVerbs{app: a}
	cmd := &cobra.Command{Use: "state", Short: "Read and write ToolState, the scratch pads of chats", RunE: needsVerb}
	cmd.PersistentFlags().StringVarP(&s.namespace, "namespace", "n", "", "`namespace` of the scratch pad")
	set := &cobra.Command{Use: "set KEY JSON|-|@FILE", Short: "Write one key", Args: args(2, "key", "value"), RunE: a.do(s.set)}
	set.Flags().StringVar(&s.ttl, "ttl", "", "the whole document's `life` from now on (default 24h)")
	cmd.AddCommand(
		&cobra.Command{Use: "get KEY", Short: "Print one key's value; not_found when it is missing", Args: args(1, "key"), RunE: a.do(s.get)},
		&cobra.Command{Use: "all", Short: "Print the whole document; {} when there is none", Args: args(0), RunE: a.do(s.all)},
		&cobra.Command{Use: "list", Short: "List the tenant's documents; --chat and --namespace narrow it", Args: args(0), RunE: a.do(s.list)},
		set,
		&cobra.Command{Use: "delete KEY", Short: "Remove one key", Args: args(1, "key"), RunE: a.do(s.delete)},
		&cobra.Command{Use: "clear", Short: "Remove the whole document", Args: args(0), RunE: a.do(s.clear)},
	)
	return cmd
}

type stateVerbs struct {
	*app
	namespace string
	ttl       string
}

// document is the tenant and document that the flags name.
func (s *stateVerbs) document() (tenant string, ref message.ToolStateRef, err error) {
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
	return tenant, message.ToolStateRef{ChatID: chat, Namespace: s.namespace}, err
}

func (s *stateVerbs) get(ctx context.Context, args []string) error {
	tenant, ref, err := s.document()
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
	nc, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	docs, err := listDocuments(ctx, nc, tenant, req)
	if err != nil {
		return err
	}
	return s.print(message.ToolStateListing{Documents: docs}, func(w io.Writer) {
		var lines [][]any
		for _, d := range docs {
			lines = append(lines, []any{d.Namespace, d.ChatID, d.Keys, d.Revision, d.ExpiresAt})
		}
		rows(w, "NAMESPACE CHAT KEYS REVISION EXPIRES", lines)
	})
}

func (s *stateVerbs) set(ctx context.Context, args []string) error {
	tenant, ref, err := s.document()
	if err != nil {
		return err
	}
	text, err := s.argument("value", args[1])
	if err != nil {
		return err
	}
	value, err := checkJSON(errcode.InvalidRequest, "value", text)
	if err != nil {
		return err
	}
	var reply message.ToolStateWritten
	req := message.ToolStateSet{ToolStateRef: ref, Key: args[0], Value: value, TTL: s.ttl, OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "set"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { fmt.Fprintf(w, "revision %d, expires %s\n", reply.Revision, reply.ExpiresAt) })
}

func (s *stateVerbs) delete(ctx context.Context, args []string) error {
	tenant, ref, err := s.document()
	if err != nil {
		return err
	}
	var reply message.ToolStateDeleted
	req := message.ToolStateDelete{ToolStateRef: ref, Key: args[0], OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "delete"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, done(reply.Deleted, "deleted")) })
}

func (s *stateVerbs) clear(ctx context.Context, _ []string) error {
	tenant, ref, err := s.document()
	if err != nil {
		return err
	}
	var reply message.ToolStateCleared
	if err := s.ask(ctx, subject.ToolState(tenant, "clear"), message.ToolStateClear{ToolStateRef: ref, OpID: bus.NewOpID()}, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, done(reply.Cleared, "cleared")) })
}

// done is a word for what happened, or that there was nothing to do.
func done(did bool, word string) string {
	if did {
		return word
	}
	return "there was nothing"
}

func indented(v json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Indent(&b, v, "", "  "); err != nil {
		return string(v)
	}
	return b.String()
}
