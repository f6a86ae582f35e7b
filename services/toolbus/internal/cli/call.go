package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
)

func (a *app) call() *cobra.Command {
	return &cobra.Command{
		Use:   "call TOOL [JSON|-|@FILE]",
		Short: "Call a tool as an agent and print its content",
		Long: `Call a tool as an agent and print its content; with -o json the whole reply.
The arguments are a JSON object ("-" reads stdin, "@FILE" a file), {} by default.
A tool that ran and failed prints its message on stderr and exits with 1.`,
		Example: `  toolbus call addCode '{"code":"8806096235386"}' -t acme -a support -c chat1`,
		Args:    args(1, "tool", "arguments"),
		RunE:    a.do(a.runCall),
	}
}

func (a *app) runCall(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	name, err := a.agent()
	if err != nil {
		return err
	}
	if err := subject.CheckName("tool", args[0]); err != nil {
		return err
	}
	var opts []agent.Option
	if a.given("chat") {
		chat, err := a.chat()
		if err != nil {
			return err
		}
		opts = append(opts, agent.Chat(chat))
	}
	text := []byte("{}")
	if len(args) == 2 {
		if text, err = a.argument("arguments", args[1]); err != nil {
			return err
		}
	}
	arguments, err := checkJSON(errcode.InvalidArguments, "arguments", text)
	if err != nil {
		return err
	}
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	client, err := agent.New(nc, tenant, name)
	if err != nil {
		return err
	}
	defer client.Close()
	reply, err := client.Call(ctx, args[0], arguments, opts...)
	if err != nil {
		return err
	}
	if reply.Success {
		return a.print(reply, func(w io.Writer) { line(w, reply.Content) })
	}
	failed := &toolError{message: reply.ErrorMessage}
	if failed.message == "" {
		failed.message = "the tool failed and does not say why"
	}
	if a.flags.output == outputJSON {
		if err := a.print(reply, nil); err != nil {
			return err
		}
	}
	return failed
}
