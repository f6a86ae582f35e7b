package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

func (a *app) events() *cobra.Command {
	var kind string
	var since time.Duration
	var follow bool
	var count int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print the tenant's audit trail, oldest event first",
		Long: `Print who did what: calls and submitted calls that ended, background checks, accepted wakes
and applied configurations. --agent and --kind narrow it. With --follow it goes on with
what happens, until SIGINT or --count events. With -o json each event is one JSON
document on a line of its own.`,
		Example: `  toolbus events -t acme --since 10m
  toolbus events -t acme -a support --kind call --follow -o json`,
		Args: args(0),
	}
	cmd.Flags().StringVar(&kind, "kind", "", "only this `kind`: "+strings.Join(message.EventKinds, ", "))
	cmd.Flags().DurationVar(&since, "since", time.Hour, "how far back, as a `duration`; 0 for all that is kept, and with --follow for nothing of it")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with what happens from now on")
	cmd.Flags().IntVar(&count, "count", 0, "end after this `number` of events; 0 for no end")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		tenant, err := a.tenant()
		if err != nil {
			return err
		}
		req := message.EventsList{Kind: kind}
		if a.given("agent") {
			if req.AgentID, err = a.agent(); err != nil {
				return err
			}
		}
		switch {
		case count < 0:
			return &usageError{errcode.Field("count", "must not be negative")}
		case since < 0:
			return &usageError{errcode.Field("since", "must not be negative")}
		case kind != "" && !slices.Contains(message.EventKinds, kind):
			return &usageError{errcode.Field("kind", "%q must be %s", kind, strings.Join(message.EventKinds, ", "))}
		}
		if since > 0 {
			req.Since = time.Now().Add(-since).UTC().Format(time.RFC3339Nano)
		}
		t := &trail{app: a, left: count}
		err = t.print(ctx, tenant, req, since > 0 || !follow, follow)
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	})
	return cmd
}

// errEnough ends a trail that has shown as many events as it should.
var errEnough = errors.New("enough")

// followClock is how far this machine's clock may be off the servers' for an event
// not to be shown twice.
const followClock = time.Minute

// trail shows events.
type trail struct {
	*app
	left int // 0 for no end
}

func (t *trail) print(ctx context.Context, tenant string, req message.EventsList, past, follow bool) error {
	nc, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	var news *nats.Subscription
	if follow { // before the past is asked for, so that nothing falls between
		agent, kind := "*", "*"
		if req.AgentID != "" {
			agent = req.AgentID
		}
		if req.Kind != "" {
			kind = req.Kind
		}
		if news, err = nc.SubscribeSync(subject.Event(tenant, agent, kind)); err != nil {
			return err
		}
		if err := nc.FlushWithContext(ctx); err != nil {
			return err
		}
	}
	begun := time.Now().Add(-followClock)
	shown := map[string]bool{} // what may come again as news
	for past {
		var page message.EventListing
		if err := bus.Retry(ctx, nc, subject.Events(tenant, "list"), req, &page); err != nil {
			return err
		}
		for _, e := range page.Events {
			if at, err := time.Parse(time.RFC3339, e.Time); follow && err == nil && at.After(begun) {
				shown[key(e)] = true
			}
			if err := t.show(e); err != nil {
				return err
			}
		}
		if page.Cursor == req.Cursor && page.Cursor != "" {
			return errcode.New(errcode.Internal, "the list does not move on")
		}
		req.Cursor, past = page.Cursor, page.Cursor != ""
	}
	for follow {
		m, err := news.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case errors.Is(err, context.DeadlineExceeded):
			return errcode.New(errcode.Timeout, "no more events within %s", t.flags.timeout)
		case err != nil:
			return errcode.Wrap(errcode.Unavailable, err, "follow events: %v", err)
		}
		var e message.Event
		if json.Unmarshal(m.Data, &e) != nil {
			continue
		}
		for _, e := range e.All() {
			if shown[key(e)] {
				delete(shown, key(e))
			} else if err := t.show(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// key tells events apart.
func key(e message.Event) string {
	return strings.Join([]string{e.Kind, e.Time, e.AgentID, e.CallID, e.JobID, e.WakeID, e.WorkerID}, " ")
}

func (t *trail) show(e message.Event) error {
	if err := t.showLine(e); err != nil {
		return err
	}
	if t.left--; t.left == 0 {
		return errEnough
	}
	return nil
}

func (t *trail) showLine(e message.Event) error {
	if t.flags.output == outputJSON {
		b, err := message.Marshal(e)
		if err != nil {
			return err
		}
		return t.write(append(b, '\n'))
	}
	text := fmt.Sprintf("%s  %-8s  %s  %s", toSecond(e.Time), e.Kind, e.AgentID, e.Outcome)
	for _, f := range []struct{ name, value string }{
		{"tool", e.Tool}, {"call", e.CallID}, {"chat", e.ChatID}, {"job", e.JobID}, {"wake", e.WakeID}, {"worker", e.WorkerID}, {"arguments", string(e.Arguments)},
	} {
		if f.value != "" {
			text += "  " + f.name + " " + f.value
		}
	}
	if e.CallID != "" || e.JobID != "" {
		text += fmt.Sprintf("  %d ms", e.DurationMs)
	}
	return t.write([]byte(printable(text) + "\n"))
}
