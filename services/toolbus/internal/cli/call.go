package cli

import (
	"context"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
)

func (a *app) call() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "call TOOL [JSON|-|@FILE]",
		Short: "Call a tool as an agent and print its content",
		Long: `Call a tool as an agent and print its content; with -o json the whole reply.
The arguments are a JSON object ("-" reads stdin, "@FILE" a file), {} by default.
A tool that ran and failed prints its message on stderr and exits with 1.`,
		Example: `  toolbus call addCode '{"code":"8806096235386"}' -t acme -a support -c chat1`,
		Args:    args(1, "tool", "arguments"),
		RunE:    a.do(a.runCall),
	}
	a.progressFlag(cmd)
	a.keyFlag(cmd)
	return cmd
}

// keyFlag is that of call and submit for calls that happen once.
func (a *app) keyFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.key, "idempotency-key", "", "`key` of what the call is to do: calls with the same key do it once and get the first one's result")
}

func (a *app) progressFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.progress, "progress", false, "print on stderr how far the tool says it is, one JSON value a line")
}

func (a *app) runCall(ctx context.Context, args []string) error {
	tool, arguments, opts, err := a.toolCall(args)
	if err != nil {
		return err
	}
	return a.withAgent(ctx, func(client *agent.Client) error {
		reply, err := client.Call(ctx, tool, arguments, opts...)
		if err != nil {
			return err
		}
		return a.printReply(reply)
	})
}

// toolCall is what the arguments and flags of call and submit say.
func (a *app) toolCall(args []string) (tool string, arguments json.RawMessage, opts []agent.Option, err error) {
	if _, err = a.tenant(); err != nil {
		return "", nil, nil, err
	}
	if _, err = a.agent(); err != nil {
		return "", nil, nil, err
	}
	if err = subject.CheckName("tool", args[0]); err != nil {
		return "", nil, nil, err
	}
	if a.given("chat") {
		chat, err := a.chat()
		if err != nil {
			return "", nil, nil, err
		}
		opts = append(opts, agent.Chat(chat))
	}
	if a.key != "" {
		opts = append(opts, agent.IdempotencyKey(a.key))
	}
	if a.progress {
		opts = append(opts, agent.OnProgress(func(p json.RawMessage) { line(a.std.Err, printable(string(p))) }))
	}
	text := []byte("{}")
	if len(args) == 2 {
		if text, err = a.argument("arguments", args[1]); err != nil {
			return "", nil, nil, err
		}
	}
	arguments, err = checkJSON(errcode.InvalidArguments, "arguments", text)
	return args[0], arguments, opts, err
}

// withAgent connects as the agent that the flags name.
func (a *app) withAgent(ctx context.Context, use func(*agent.Client) error) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	name, err := a.agent()
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
	return use(client)
}

// printReply prints the end of a call whose tool ran.
func (a *app) printReply(reply message.CallReply) error {
	if reply.Success {
		return a.print(reply, func(w io.Writer) { line(w, reply.Content) })
	}
	if a.flags.output == outputJSON {
		if err := a.print(reply, nil); err != nil {
			return err
		}
	}
	return failed(reply)
}

// failed is a reply of a tool that ran and failed.
func failed(reply message.CallReply) error {
	if reply.ErrorMessage == "" {
		return &toolError{message: "the tool failed and does not say why"}
	}
	return &toolError{message: reply.ErrorMessage}
}
