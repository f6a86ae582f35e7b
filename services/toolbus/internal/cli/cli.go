package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Streams are a command's standard streams.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Main runs the command line and returns the exit code. lookup reads the
// environment.
func Main(args []string, std Streams, lookup func(string) (string, bool)) int {
	a := &app{std: std, lookup: lookup}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitDone
	}
	if !a.running {
		err = &usageError{err} // cobra refused flags or arguments
	}
	return report(std.Err, cmd.CommandPath(), err)
}

// app is one run of the command line.
type app struct {
	std     Streams
	lookup  func(string) (string, bool)
	flags   globals
	global  *pflag.FlagSet // where they stand
	running bool           // flags and arguments were fine

	progress bool   // call, submit: show it
	key      string // call, submit: the idempotency key
}

// globals are the flags of every verb.
type globals struct {
	server  string
	creds   string
	tenant  string
	agent   string
	chat    string
	output  string
	timeout time.Duration
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "toolbus",
		Short: "The tool runtime for LLM agents",
		Long: `The tool runtime for LLM agents, on NATS.

Every global flag may also be set in the environment: TOOLBUS_SERVER (or
NATS_URL), TOOLBUS_TENANT, TOOLBUS_AGENT, TOOLBUS_CHAT, TOOLBUS_OUTPUT, ….
Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          needsVerb,
	}
	f := root.PersistentFlags()
	a.global = f
	f.StringVarP(&a.flags.server, "server", "s", bus.DefaultServer, "NATS server `URL`(s), comma-separated")
	f.StringVar(&a.flags.creds, "creds", "", "NATS credentials `file`")
	f.StringVarP(&a.flags.tenant, "tenant", "t", "", "`tenant`")
	f.StringVarP(&a.flags.agent, "agent", "a", "", "`agent`")
	f.StringVarP(&a.flags.chat, "chat", "c", "", "`chat` id")
	f.StringVarP(&a.flags.output, "output", "o", outputTable, "output `format`: json or table")
	f.DurationVar(&a.flags.timeout, "timeout", 0, "give up after this `duration` (default: 10s a request; a tool's own limit for call)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) }
	root.AddCommand(a.up(), a.apply(), a.get(), a.call(), a.submit(), a.result(), a.cancel(),
		a.job(), a.wake(), a.state(), a.store(), a.files(), a.sync(), a.events(), a.version())
	return root
}

// formatsOf is the annotation of a command with its own output formats.
const formatsOf = "formats"

// prepare completes the flags from the environment and checks those that
// every verb has.
func (a *app) prepare(cmd *cobra.Command) error {
	if err := a.fromEnv(a.global); err != nil {
		return err
	}
	formats := append([]string{outputJSON, outputTable}, strings.Fields(cmd.Annotations[formatsOf])...)
	if o := a.flags.output; !slices.Contains(formats, o) {
		last := len(formats) - 1
		return errcode.Field("output", "%q must be %s or %s", o, strings.Join(formats[:last], ", "), formats[last])
	}
	if a.flags.server == "" { // "$UNSET" must not mean the default server
		return errcode.Field("server", "is empty")
	}
	if a.flags.timeout < 0 {
		return errcode.Field("timeout", "must not be negative")
	}
	return nil
}

// fromEnv gives every flag that was not given its value from TOOLBUS_<FLAG>;
// the server's also from NATS_URL. An empty variable counts as unset: it never
// stands for a tenant.
func (a *app) fromEnv(flags *pflag.FlagSet) error {
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		names := []string{"TOOLBUS_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))}
		if f.Name == "server" {
			names = append(names, "NATS_URL")
		}
		for _, n := range names {
			v, _ := a.lookup(n)
			if v == "" {
				continue
			}
			if err := flags.Set(f.Name, v); err != nil && first == nil {
				first = errcode.Field(n, "%s", flagText(f, v, err))
			}
			return
		}
	})
	return first
}

// do makes a verb's RunE: from its call on, errors are failures, not usage.
// Interrupts end ctx.
func (a *app) do(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.running = true
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if a.flags.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, a.flags.timeout)
			defer cancel()
		}
		return run(ctx, args)
	}
}

// tenant is the checked --tenant.
func (a *app) tenant() (string, error) {
	if !a.given("tenant") {
		return "", missing("tenant", "--tenant/-t or TOOLBUS_TENANT")
	}
	return a.flags.tenant, subject.CheckTenant(a.flags.tenant)
}

// agent is the checked --agent.
func (a *app) agent() (string, error) {
	if !a.given("agent") {
		return "", missing("agent", "--agent/-a or TOOLBUS_AGENT")
	}
	return a.flags.agent, subject.CheckName("agent", a.flags.agent)
}

// chat is the checked --chat.
func (a *app) chat() (string, error) {
	if !a.given("chat") {
		return "", missing("chatId", "--chat/-c or TOOLBUS_CHAT")
	}
	return a.flags.chat, subject.CheckFree("chatId", a.flags.chat)
}

// given tells an empty value, which is refused by name, from one left out.
func (a *app) given(flag string) bool { return a.global.Changed(flag) }
