package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

func (a *app) job() *cobra.Command {
	cmd := &cobra.Command{
		Use: "job", Short: "Run, pause and look into an agent's schedules and jobs", RunE: needsVerb,
		Long: `Run, pause and look into an agent's schedules and jobs. ENTRY is the id of either, as
"toolbus get jobs" lists them.`,
		Example: `  toolbus job trigger inbox-watch -t acme -a support
  toolbus job history inbox-watch -t acme -a support`,
	}
	cmd.AddCommand(
		&cobra.Command{Use: "trigger ENTRY", Short: "Run it now, be it enabled or not, and print the run's tick id; conflict while it runs", Args: args(1, "entryId"), RunE: a.do(a.jobTrigger)},
		&cobra.Command{Use: "pause ENTRY", Short: "Let its times pass until resumed", Args: args(1, "entryId"), RunE: a.do(a.jobPause("pause"))},
		&cobra.Command{Use: "resume ENTRY", Short: "Run it on time again", Args: args(1, "entryId"), RunE: a.do(a.jobPause("resume"))},
		&cobra.Command{Use: "history ENTRY", Short: "Show how its last times ended, the newest first", Args: args(1, "entryId"), RunE: a.do(a.jobHistory)},
	)
	return cmd
}

// entry is the tenant and the entry that flags and arguments name.
func (a *app) entry(args []string) (tenant string, ref message.SchedulerEntryRef, err error) {
	if tenant, err = a.tenant(); err != nil {
		return "", ref, err
	}
	agent, err := a.agent()
	if err != nil {
		return "", ref, err
	}
	return tenant, message.SchedulerEntryRef{AgentID: agent, EntryID: args[0]}, subject.CheckName("entryId", args[0])
}

// jobTrigger asks once: a second try could run the entry twice.
func (a *app) jobTrigger(ctx context.Context, args []string) error {
	tenant, ref, err := a.entry(args)
	if err != nil {
		return err
	}
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	var reply message.SchedulerTriggered
	if err := bus.Request(ctx, nc, subject.Scheduler(tenant, "trigger"), ref, &reply); err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) { line(w, reply.TickID) })
}

func (a *app) jobPause(op string) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) error {
		tenant, ref, err := a.entry(args)
		if err != nil {
			return err
		}
		var reply message.SchedulerPaused
		if err := a.ask(ctx, subject.Scheduler(tenant, op), ref, &reply); err != nil {
			return err
		}
		return a.print(reply, func(w io.Writer) { line(w, map[bool]string{true: "paused", false: "resumed"}[reply.Paused]) })
	}
}

func (a *app) jobHistory(ctx context.Context, args []string) error {
	tenant, ref, err := a.entry(args)
	if err != nil {
		return err
	}
	var reply message.SchedulerHistory
	if err := a.ask(ctx, subject.Scheduler(tenant, "history"), ref, &reply); err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) {
		var lines [][]any
		for _, s := range reply.Slots {
			lines = append(lines, []any{s.ScheduledAt, s.EndedAt, slotOutcome(s), s.Attempt, firstLine(s.Summary + s.Error)})
		}
		rows(w, "SCHEDULED ENDED OUTCOME ATTEMPT SUMMARY", lines)
	})
}

// slotOutcome is how a slot ended, in a word or two.
func slotOutcome(s message.SlotEntry) string {
	switch {
	case s.Slots > 1:
		return fmt.Sprintf("%s (%d times)", s.Outcome, s.Slots)
	case s.Outcome == message.SlotRan && s.Action != "":
		return s.Outcome + " (" + s.Action + ")"
	}
	return s.Outcome
}

// check is which check of which tool a job runs.
func check(e message.SchedulerEntry) string {
	if e.Tool == "" {
		return "-"
	}
	return e.Tool + "/" + e.JobType
}

// getJobs lists schedules and jobs: of the tenant, or with --agent of one agent.
func (a *app) getJobs(ctx context.Context, _ []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	var req message.SchedulerList
	if a.given("agent") {
		if req.AgentID, err = a.agent(); err != nil {
			return err
		}
	}
	reply := message.SchedulerEntries{Entries: []message.SchedulerEntry{}}
	err = askAll(ctx, a, subject.Scheduler(tenant, "list"), &req, &req.Cursor, func(page message.SchedulerEntries) string {
		reply.Entries = append(reply.Entries, page.Entries...)
		return page.Cursor
	})
	if err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) {
		var lines [][]any
		for _, e := range reply.Entries {
			next, last := e.Next, "-"
			switch {
			case !e.Enabled:
				next = "disabled"
			case e.Paused:
				next = "paused"
			case next == "":
				next = "never"
			}
			if e.Last != nil {
				last = strings.TrimSpace(inZone(e.Last.EndedAt, e.Timezone) + " " + slotOutcome(*e.Last))
			}
			lines = append(lines, []any{e.AgentID, e.EntryID, e.Kind, check(e), e.Cron, e.Timezone, next, last})
		}
		rows(w, "AGENT ENTRY KIND CHECK CRON TIMEZONE NEXT LAST", lines)
	})
}
