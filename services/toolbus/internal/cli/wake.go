package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
)

func (a *app) wake() *cobra.Command {
	cmd := &cobra.Command{Use: "wake", Short: "Wake an agent, or see what wakes it", RunE: needsVerb}
	cmd.AddCommand(a.wakeSend(), a.wakeWatch())
	return cmd
}

func (a *app) wakeSend() *cobra.Command {
	var mode, at string
	var in, expires time.Duration
	cmd := &cobra.Command{
		Use:   "send MESSAGE|-",
		Short: "Wake an agent, now or later, and print the wake's id",
		Long: `Wake an agent with a message ("-" reads stdin), now or later, and print the wake's id.
It is kept until the agent has accepted it; "toolbus get wakes" shows it from when it
is due. With --mode chat, the default, the agent
goes on in the conversation that --chat names; a stateless wake has none.`,
		Example: `  toolbus wake send 'The parcel has arrived.' -t acme -a support -c chat1
  toolbus wake send 'Write the report.' -t acme -a support --mode stateless --in 2h --expires-after 1h`,
		Args: args(1, "message"),
	}
	cmd.Flags().StringVar(&mode, "mode", message.WakeChat, "`mode`: chat or stateless")
	cmd.Flags().StringVar(&at, "at", "", "when, as a `time` such as 2026-03-02T08:00:00Z")
	cmd.Flags().DurationVar(&in, "in", 0, "when, as a `duration` from now")
	cmd.Flags().DurationVar(&expires, "expires-after", 0, "`duration` after which, from when it is due, it is no longer delivered")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		tenant, err := a.tenant()
		if err != nil {
			return err
		}
		req := message.SchedulerWake{Mode: mode, Message: args[0], At: at, OpID: bus.NewOpID()}
		if req.AgentID, err = a.agent(); err != nil {
			return err
		}
		given := cmd.Flags().Changed
		switch {
		case mode != message.WakeChat && mode != message.WakeStateless:
			return &usageError{errcode.Field("mode", "%q must be chat or stateless", mode)}
		case given("at") && given("in"):
			return &usageError{errcode.Field("at", "must not be given together with --in")}
		case given("at") && at == "":
			return &usageError{errcode.Field("at", "is empty")}
		}
		if given("in") {
			req.In = in.String()
		}
		if given("expires-after") {
			req.ExpiresAfter = expires.String()
		}
		if mode == message.WakeChat && a.given("chat") {
			if req.ChatID, err = a.chat(); err != nil {
				return err
			}
		}
		if args[0] == "-" {
			text, err := a.readInput("message", "-")
			if err != nil {
				return err
			}
			req.Message = strings.TrimRight(string(text), "\n")
		}
		var reply message.SchedulerWakeSent
		if err := a.ask(ctx, subject.Scheduler(tenant, "wake"), req, &reply); err != nil {
			return err
		}
		return a.print(reply, func(w io.Writer) { line(w, reply.WakeID) })
	})
	return cmd
}

func (a *app) wakeWatch() *cobra.Command {
	var count int
	var accept bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Be an agent: print each wake and accept it",
		Long: `Listen as an agent, print each wake, and accept it, until SIGINT or --count wakes.
With -o json each wake is one JSON document on a line of its own.

An agent's processes share its wakes: what is accepted here does not reach another.
With --accept=false nothing is accepted: each wake is shown once and stays in the
mailbox. Of each chat only the first wake is out at a time, so no other is seen.`,
		Example: `  toolbus wake watch -t acme -a support
  toolbus wake watch -t acme -a support --count 1 -o json --timeout 1m`,
		Args: args(0),
	}
	cmd.Flags().IntVar(&count, "count", 0, "end after this `number` of wakes; 0 for no end")
	cmd.Flags().BoolVar(&accept, "accept", true, "accept what is shown")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		if count < 0 {
			return &usageError{errcode.Field("count", "must not be negative")}
		}
		return a.withAgent(ctx, func(client *agent.Client) error {
			if _, err := client.Tools(ctx); errors.Is(err, errcode.NotFound) {
				return err // there is no such agent: nothing would ever come
			}
			w := &watcher{app: a, count: count, accept: accept, shown: map[string]bool{}, done: make(chan struct{})}
			return w.watch(ctx, client)
		})
	})
	return cmd
}

const (
	seenAgain  = 2 * time.Second // until a wake that was only looked at comes again
	seenEnough = time.Second     // the same, for one that came too late to be shown
	leaveTime  = 5 * time.Second // for the last answers
)

// watcher shows wakes. Its handler runs once at a time.
type watcher struct {
	*app
	count  int // 0 for no end
	accept bool

	shown map[string]bool
	err   error         // why nothing can be shown; set before done is closed
	done  chan struct{} // closed when it has seen enough
	ended bool
}

func (w *watcher) watch(ctx context.Context, client *agent.Client) error {
	wakes, err := client.Wakes(ctx, w.handle, agent.Concurrency(1))
	if err != nil {
		return err
	}
	var late error
	select {
	case <-w.done:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			late = errcode.New(errcode.Timeout, "no more wakes within %s", w.flags.timeout)
		}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	if err := wakes.Stop(stop); err != nil {
		return err
	}
	if w.err != nil { // the handler does not run any more
		return w.err
	}
	return late
}

// handle accepts a wake only after it has been shown.
func (w *watcher) handle(_ context.Context, wake *agent.Wake) error {
	if w.ended {
		return agent.Busy(seenEnough)
	}
	if !w.shown[wake.WakeID] {
		if err := w.show(wake); err != nil {
			w.err = err
			w.end()
			return err
		}
		if !w.accept {
			w.shown[wake.WakeID] = true
		}
		if w.count--; w.count == 0 {
			w.end()
		}
	}
	if !w.accept {
		return agent.Busy(seenAgain)
	}
	return nil
}

func (w *watcher) end() {
	w.ended = true
	close(w.done)
}

func (w *watcher) show(wake *agent.Wake) error {
	if w.flags.output == outputJSON {
		b, err := message.Marshal(wake)
		if err != nil {
			return err
		}
		return w.write(append(b, '\n'))
	}
	var b strings.Builder
	chat := ""
	if wake.ChatID != "" {
		chat = " " + printable(wake.ChatID)
	}
	fmt.Fprintf(&b, "%s  %s%s  from %s\n", printable(wake.WakeID), printable(wake.Mode), chat, source(wake.Source))
	for l := range strings.SplitSeq(strings.TrimRight(wake.Message, "\n"), "\n") {
		b.WriteString("    " + printable(l) + "\n")
	}
	return w.write([]byte(b.String()))
}

// source is what caused a wake, in words.
func source(s message.WakeSource) string {
	text := s.Kind + " " + s.ID
	if s.Tool != "" {
		text += " of " + s.Tool
	}
	return printable(text)
}

// getWakes lists what waits in mailboxes, or was given up.
func (a *app) getWakes() *cobra.Command {
	var dead bool
	cmd := &cobra.Command{
		Use: "wakes", Aliases: []string{"wake"},
		Short: "Show wakes that wait for their agent or their time, or with --dead those given up; --agent narrows it",
		Args:  args(0),
	}
	cmd.Flags().BoolVar(&dead, "dead", false, "show wakes that were given up after too many tries")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		tenant, err := a.tenant()
		if err != nil {
			return err
		}
		req := message.SchedulerWakes{State: message.WakesPending}
		if dead {
			req.State = message.WakesDead
		}
		if a.given("agent") {
			if req.AgentID, err = a.agent(); err != nil {
				return err
			}
		}
		reply := message.SchedulerWakeList{Wakes: []message.PendingWake{}}
		err = askAll(ctx, a, subject.Scheduler(tenant, "wakes"), &req, &req.Cursor, func(page message.SchedulerWakeList) string {
			reply.Wakes = append(reply.Wakes, page.Wakes...)
			return page.Cursor
		})
		if err != nil {
			return err
		}
		return a.print(reply, func(w io.Writer) {
			var lines [][]any
			for _, p := range reply.Wakes {
				lines = append(lines, []any{p.AgentID, p.Wake.WakeID, p.Wake.Mode, p.Wake.ChatID, p.Wake.CreatedAt, dash(p.Due), source(p.Wake.Source), firstLine(p.Wake.Message)})
			}
			rows(w, "AGENT WAKE MODE CHAT CREATED DUE SOURCE MESSAGE", lines)
		})
	})
	return cmd
}

// dash stands for what there is none of.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
