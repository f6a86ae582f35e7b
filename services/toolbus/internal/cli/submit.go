package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
)

// submitReply is what submit prints with -o json.
type submitReply struct {
	CallID string `json:"callId"`
}

func (a *app) submit() *cobra.Command {
	var id string
	var wait, wake bool
	cmd := &cobra.Command{
		Use:   "submit TOOL [JSON|-|@FILE]",
		Short: "Hand over a call that must survive, and print its id",
		Long: `Hand over a call and print its id as soon as the call is stored: it runs also when
no worker hosts the tool yet, and again when its worker dies. Arguments are those
of call. "toolbus result" tells how it ended; --wait waits for that, and prints it
as call does, at most for --timeout.
A submit that ends as unavailable may be sent again with the same --call-id.`,
		Example: `  toolbus submit archiveReport '{"name":"2026","megabytes":10}' -t acme -a club
  toolbus submit archiveReport @report.json -t acme -a club --wait --timeout 5m`,
		Args: args(1, "tool", "arguments"),
	}
	cmd.Flags().StringVar(&id, "call-id", "", "`id` of the call; one is made otherwise")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the call's end")
	a.progressFlag(cmd)
	a.keyFlag(cmd)
	cmd.Flags().BoolVar(&wake, "wake-on-done", false, "wake the agent when the call has ended")
	cmd.AddCommand(a.redrive())
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		tool, arguments, opts, err := a.toolCall(args)
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("call-id") {
			if err := subject.CheckName("callId", id); err != nil {
				return err
			}
			opts = append(opts, agent.CallID(id))
		}
		if wake {
			opts = append(opts, agent.WakeOnDone())
		}
		return a.withAgent(ctx, func(client *agent.Client) error {
			id, err := client.Submit(ctx, tool, arguments, opts...)
			switch {
			case errors.Is(err, errcode.Unavailable):
				return fmt.Errorf("call %s: %w", id, err) // for another try
			case err != nil:
				return err
			case !wait:
				return a.print(submitReply{id}, func(w io.Writer) { line(w, id) })
			}
			reply, err := client.Wait(ctx, id, opts...)
			switch {
			case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
				return errcode.New(errcode.Timeout, "call %s has not ended within %s; it goes on, and toolbus result tells how it ends", id, a.flags.timeout)
			case err != nil:
				return fmt.Errorf("call %s: %w", id, err)
			}
			return a.printReply(reply)
		})
	})
	return cmd
}

func (a *app) result() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "result CALLID",
		Short: "Print how a submitted call ended",
		Long: `Print how a submitted call ended: its content as call does, or with -o json all that
is known. One that has not ended within --wait exits with 1, as does a call whose
tool failed or that could not be served.`,
		Example: `  toolbus result "$(toolbus submit addCode '{"code":"1"}' -t acme -a support -c chat1)" -t acme -a support --wait 10s`,
		Args:    args(1, "callId"),
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait this `duration` for the call's end")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		if wait < 0 {
			return &usageError{errcode.Field("wait", "must not be negative")}
		}
		if err := subject.CheckName("callId", args[0]); err != nil {
			return err
		}
		return a.withAgent(ctx, func(client *agent.Client) error {
			r, err := client.Result(ctx, args[0], wait)
			if err != nil {
				return err
			}
			if a.flags.output == outputJSON {
				if err := a.print(r, nil); err != nil {
					return err
				}
				return ending(r)
			}
			if err := ending(r); err != nil {
				return err
			}
			return a.printReply(*r.Reply)
		})
	})
	return cmd
}

// ending is nil for a call that has ended well, and else says how it stands.
func ending(r message.ResultReply) error {
	switch {
	case r.State != message.ResultDone:
		return errcode.New(errcode.Timeout, "no end of call %s is known: it waits, runs, or was never submitted", r.CallID)
	case len(r.Error) > 0:
		var e *errcode.Error
		if err := json.Unmarshal(r.Error, &e); err != nil || e == nil || e.Code == "" {
			return errcode.New(errcode.Internal, "call %s ended with an unreadable error", r.CallID)
		}
		return e
	case r.Reply == nil:
		return errcode.New(errcode.Internal, "call %s has ended and its result says nothing", r.CallID)
	case !r.Reply.Success:
		return failed(*r.Reply)
	}
	return nil
}

func (a *app) cancel() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel CALLID",
		Short: "End a call of the agent that runs, called or submitted",
		Long: `Tell the worker that runs a call, called or submitted, to stop; the call then ends as
cancelled. One that has ended, or waits for a worker, is not changed.`,
		Example: `  toolbus cancel 3f0c2f86-6f0e-4a0e-b0a0-d3b2b1f4c7aa -t acme -a club`,
		Args:    args(1, "callId"),
		RunE: a.do(func(ctx context.Context, args []string) error {
			if err := subject.CheckName("callId", args[0]); err != nil {
				return err
			}
			return a.withAgent(ctx, func(client *agent.Client) error {
				if err := client.Cancel(ctx, args[0]); err != nil {
					return err
				}
				return a.print(submitReply{args[0]}, func(w io.Writer) { line(w, "told to stop, if it runs") })
			})
		}),
	}
}

func (a *app) redrive() *cobra.Command {
	return &cobra.Command{
		Use: "redrive CALLID", Short: "Run a submitted call again that could not be served",
		Example: `  toolbus get submits --dead -t acme
  toolbus submit redrive 0b4c7e5e-3a0f-4b5e-9d1f-5d1f6e1f2a3b -t acme -a support`,
		Args: args(1, "callId"),
		RunE: a.do(func(ctx context.Context, args []string) error {
			tenant, err := a.tenant()
			if err != nil {
				return err
			}
			name, err := a.agent()
			if err != nil {
				return err
			}
			var reply message.SubmitRedriven
			if err := a.ask(ctx, subject.Submits(tenant, "redrive"), message.SubmitRef{AgentID: name, CallID: args[0]}, &reply); err != nil {
				return err
			}
			return a.print(reply, func(w io.Writer) { line(w, reply.CallID) })
		}),
	}
}

func (a *app) getSubmits() *cobra.Command {
	var dead bool
	cmd := &cobra.Command{
		Use: "submits", Aliases: []string{"submit"}, Short: "Show the tenant's submitted calls that have not ended, or with --dead those that could not be served",
		Args: args(0),
	}
	cmd.Flags().BoolVar(&dead, "dead", false, "those that could not be served")
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
		req := message.SubmitList{State: message.SubmitsWaiting}
		if dead {
			req.State = message.SubmitsDead
		}
		if a.given("agent") {
			if req.AgentID, err = a.agent(); err != nil {
				return err
			}
		}
		all := message.SubmitListing{Submits: []message.SubmitEntry{}}
		for {
			var page message.SubmitListing
			if err := bus.Retry(ctx, nc, subject.Submits(tenant, "list"), req, &page); err != nil {
				return err
			}
			all.Submits = append(all.Submits, page.Submits...)
			if page.Cursor == "" {
				break
			}
			if page.Cursor == req.Cursor {
				return errcode.New(errcode.Internal, "the list of submits does not move on")
			}
			req.Cursor = page.Cursor
		}
		return a.print(all, func(w io.Writer) {
			var lines [][]any
			for _, s := range all.Submits {
				if dead {
					var e errcode.Error
					_ = json.Unmarshal(s.Error, &e)
					lines = append(lines, []any{s.CallID, s.AgentID, s.Tool, s.Tries, toSecond(s.EndedAt), string(e.Code) + ": " + firstLine(e.Message)})
				} else {
					lines = append(lines, []any{s.CallID, s.AgentID, s.Tool, toSecond(s.SubmittedAt)})
				}
			}
			if dead {
				rows(w, "CALL AGENT TOOL RUNS ENDED ERROR", lines)
			} else {
				rows(w, "CALL AGENT TOOL SUBMITTED", lines)
			}
		})
	})
	return cmd
}
