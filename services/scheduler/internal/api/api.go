// Package api answers scheduler.<tenant>.<op>: it reads requests, asks the
// scheduler's parts and puts the answers together.
package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/scheduler/internal/configs"
	"github.com/toolbus/toolbus/services/scheduler/internal/entry"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
	"github.com/toolbus/toolbus/services/scheduler/internal/mailbox"
	"github.com/toolbus/toolbus/services/scheduler/internal/plan"
	"github.com/toolbus/toolbus/services/scheduler/internal/timers"
)

const (
	requestTimeout = 9 * time.Second      // a client gives up after ten
	farthest       = 366 * 24 * time.Hour // ahead of which a wake may be sent
)

// API is the scheduler's handlers.
type API struct {
	nc      *nats.Conn
	configs *configs.Configs
	jobs    *jobs.Bucket
	planner *plan.Planner
	timers  *timers.Stream
	mail    *mailbox.Store
}

// New makes the handlers.
func New(nc *nats.Conn, c *configs.Configs, j *jobs.Bucket, p *plan.Planner, t *timers.Stream, m *mailbox.Store) *API {
	return &API{nc: nc, configs: c, jobs: j, planner: p, timers: t, mail: m}
}

// Endpoints is every subject the scheduler answers.
func (a *API) Endpoints() []bus.Endpoint {
	return []bus.Endpoint{
		endpoint("list", a.list),
		endpoint("trigger", a.trigger),
		endpoint("pause", a.pause),
		endpoint("resume", a.resume),
		endpoint("history", a.history),
		endpoint("wake", a.wake),
		endpoint("wakes", a.wakes),
	}
}

// endpoint takes the tenant from the subject and the request from the body.
func endpoint[In, Out any](op string, f func(ctx context.Context, tenant string, in In) (Out, error)) bus.Endpoint {
	return bus.Endpoint{Name: op, Subject: subject.Scheduler("*", op), Handler: func(ctx context.Context, msg *bus.Incoming) (any, error) {
		tenant, _, err := subject.ParseTenantOp(subject.FamilyScheduler, msg.Subject, false)
		if err != nil {
			return nil, err
		}
		var in In
		if err := msg.Decode(&in); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		out, err := f(ctx, tenant, in)
		if err != nil {
			return nil, err
		}
		return out, nil
	}}
}

func (a *API) list(ctx context.Context, tenant string, in message.SchedulerList) (message.SchedulerEntries, error) {
	out := message.SchedulerEntries{Entries: []message.SchedulerEntry{}}
	var agents []configs.Agent
	if in.AgentID == "" {
		var err error
		if agents, err = a.configs.Agents(ctx, tenant); err != nil {
			return out, err
		}
	} else {
		agent, err := a.agent(ctx, tenant, in.AgentID)
		if err != nil {
			return out, err
		}
		agents = []configs.Agent{agent}
	}
	records, err := a.jobs.Records(ctx, tenant, in.AgentID)
	if err != nil {
		return out, err
	}
	for _, agent := range agents {
		for _, e := range agent.Entries {
			out.Entries = append(out.Entries, plan.Entry(e, records[plan.Key(e)]))
		}
	}
	slices.SortFunc(out.Entries, func(x, y message.SchedulerEntry) int {
		if c := strings.Compare(x.AgentID, y.AgentID); c != 0 {
			return c
		}
		return strings.Compare(x.EntryID, y.EntryID)
	})
	return page(out.Entries, in.Cursor, int(bus.MaxBody(a.nc)/2))
}

// page is as many entries behind a cursor as have limit bytes; one at least.
func page(list []message.SchedulerEntry, cursor string, limit int) (message.SchedulerEntries, error) {
	name := func(e message.SchedulerEntry) string { return e.AgentID + "." + e.EntryID }
	out := message.SchedulerEntries{Entries: []message.SchedulerEntry{}}
	size := 0
	for _, e := range list {
		if cursor != "" && !after(name(e), cursor) {
			continue
		}
		data, err := message.Marshal(e)
		if err != nil {
			return out, err
		}
		if size += len(data) + 1; size > limit && len(out.Entries) > 0 {
			out.Cursor = name(out.Entries[len(out.Entries)-1])
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// after tells whether an entry's name comes after a cursor's in the order of lists.
func after(name, cursor string) bool {
	agent, entry, _ := strings.Cut(name, ".")
	thanAgent, thanEntry, _ := strings.Cut(cursor, ".")
	if c := strings.Compare(agent, thanAgent); c != 0 {
		return c > 0
	}
	return entry > thanEntry
}

// agent is an agent as it is now; not_found when there is none.
func (a *API) agent(ctx context.Context, tenant, name string) (configs.Agent, error) {
	if err := subject.CheckName("agentId", name); err != nil {
		return configs.Agent{}, err
	}
	agent, err := a.configs.Fresh(ctx, configs.Ref{Tenant: tenant, Agent: name})
	if err == nil && agent.Revision == 0 {
		err = errcode.New(errcode.NotFound, "no agent %q", name)
	}
	return agent, err
}

// entry is an entry as it is now, and its record.
func (a *API) entry(ctx context.Context, tenant string, ref message.SchedulerEntryRef) (entry.Entry, jobs.Record, error) {
	if err := subject.CheckName("entryId", ref.EntryID); err != nil {
		return entry.Entry{}, jobs.Record{}, err
	}
	agent, err := a.agent(ctx, tenant, ref.AgentID)
	if err != nil {
		return entry.Entry{}, jobs.Record{}, err
	}
	e, ok := entry.Find(agent.Entries, ref.EntryID)
	if !ok {
		return e, jobs.Record{}, errcode.New(errcode.NotFound, "agent %q has no schedule or job %q", ref.AgentID, ref.EntryID)
	}
	rec, _, err := a.jobs.Record(ctx, plan.Key(e))
	if err != nil {
		return e, rec, err
	}
	rec, stale, err := a.planner.Adopt(ctx, e, agent.Revision, rec)
	if err == nil && stale {
		err = errcode.New(errcode.Unavailable, "the agent's configuration is being changed; try again")
	}
	return e, rec, err
}

// trigger runs an entry now, be it enabled or not, unless it runs already.
func (a *API) trigger(ctx context.Context, tenant string, ref message.SchedulerEntryRef) (message.SchedulerTriggered, error) {
	e, rec, err := a.entry(ctx, tenant, ref)
	if err != nil {
		return message.SchedulerTriggered{}, err
	}
	running := errcode.New(errcode.Conflict, "%s of agent %q runs already", ref.EntryID, ref.AgentID)
	if rec.Running(time.Now()) {
		return message.SchedulerTriggered{}, running
	}
	now := a.planner.Now()
	body, err := message.Marshal(timers.Body{Cause: timers.CauseTrigger, At: now.UnixMilli()})
	if err != nil {
		return message.SchedulerTriggered{}, err
	}
	// There is one such tick at a time: it stands until its run has ended.
	fresh, err := a.timers.Fire(ctx, plan.Parts(e, timers.CauseTrigger), body)
	if err == nil && !fresh {
		err = running
	}
	if err != nil {
		return message.SchedulerTriggered{}, err
	}
	return message.SchedulerTriggered{TickID: timers.TriggerID(e, now)}, nil
}

func (a *API) pause(ctx context.Context, tenant string, ref message.SchedulerEntryRef) (message.SchedulerPaused, error) {
	e, _, err := a.entry(ctx, tenant, ref)
	if err != nil {
		return message.SchedulerPaused{}, err
	}
	_, err = a.jobs.Update(ctx, plan.Key(e), func(r *jobs.Record) error {
		if r.Paused {
			return jobs.Keep
		}
		r.Paused = true
		return nil
	})
	if err == nil {
		err = a.timers.Disarm(ctx, e.Tenant, e.Agent, e.ID, e.Revision)
	}
	return message.SchedulerPaused{Paused: true}, err
}

func (a *API) resume(ctx context.Context, tenant string, ref message.SchedulerEntryRef) (message.SchedulerPaused, error) {
	e, _, err := a.entry(ctx, tenant, ref)
	if err != nil {
		return message.SchedulerPaused{}, err
	}
	rec, err := a.jobs.Update(ctx, plan.Key(e), func(r *jobs.Record) error {
		if !r.Paused {
			return jobs.Keep
		}
		now := a.planner.Now()
		if r.Enabled {
			plan.Passed(r, e, now.Add(time.Millisecond), now, message.SlotSkipped)
		}
		r.Paused = false
		r.Pass(now)
		return nil
	})
	if err == nil && rec.Revision == e.Revision {
		err = a.planner.Arm(ctx, e, rec)
	}
	return message.SchedulerPaused{}, err
}

func (a *API) history(ctx context.Context, tenant string, ref message.SchedulerEntryRef) (message.SchedulerHistory, error) {
	_, rec, err := a.entry(ctx, tenant, ref)
	out := message.SchedulerHistory{Slots: []message.SlotEntry{}}
	out.Slots = append(out.Slots, rec.History...)
	slices.Reverse(out.Slots)
	return out, err
}

// wake sends a wake, now or later.
func (a *API) wake(ctx context.Context, tenant string, in message.SchedulerWake) (message.SchedulerWakeSent, error) {
	now := time.Now()
	due, w, err := readWake(in, now)
	if err != nil {
		return message.SchedulerWakeSent{}, err
	}
	if data, err := message.Marshal(w); err != nil {
		return message.SchedulerWakeSent{}, err
	} else if limit, n := bus.MaxBody(a.nc)/2, int64(len(data)); n > limit { // a timer's body holds it too
		return message.SchedulerWakeSent{}, errcode.OverLimit(errcode.TooLarge, limit, n, "the wake has %d bytes, at most %d are allowed", n, limit)
	}
	if _, err := a.agent(ctx, tenant, in.AgentID); err != nil {
		return message.SchedulerWakeSent{}, err
	}
	op := in.OpID
	if op == "" {
		op = bus.NewOpID()
	}
	sum := sha256.Sum256([]byte(tenant + "." + in.AgentID + "." + op))
	id := hex.EncodeToString(sum[:12])
	w.WakeID = tenant + "." + in.AgentID + "." + id
	w.Source = message.WakeSource{Kind: message.SourceAPI, ID: id}
	if s := in.Source; s != nil {
		w.Source = *s
	}
	out := message.SchedulerWakeSent{WakeID: w.WakeID}
	if !due.After(now) {
		return out, a.mail.Put(ctx, tenant, in.AgentID, w)
	}
	w.ScheduledAt = due.UTC().Format(time.RFC3339)
	data, err := message.Marshal(w)
	if err != nil {
		return message.SchedulerWakeSent{}, err
	}
	body, err := message.Marshal(timers.Body{Cause: timers.CauseWake, At: due.UnixMilli(), Wake: data})
	if err != nil {
		return message.SchedulerWakeSent{}, err
	}
	return out, a.timers.Arm(ctx, subject.TickParts{
		Tenant: tenant, Agent: in.AgentID, Entry: timers.EntryWake, Revision: timers.RevisionWake, Slot: id,
	}, due, body)
}

// readWake checks a request for a wake and returns when it is due.
func readWake(in message.SchedulerWake, now time.Time) (due time.Time, w message.Wake, err error) {
	var faults []errcode.FieldFault
	bad := func(field, text string) { faults = append(faults, errcode.FieldFault{Field: field, Message: text}) }
	check := func(err error) {
		if e := errcode.From(err); e != nil && e.Details != nil {
			faults = append(faults, e.Details.Fields...)
		}
	}
	check(subject.CheckName("agentId", in.AgentID))
	w = message.Wake{Mode: in.Mode, Message: in.Message, ChatID: in.ChatID, CreatedAt: now.UTC().Format(time.RFC3339)}
	switch in.Mode {
	case "":
		w.Mode = message.WakeChat
	case message.WakeChat, message.WakeStateless:
	default:
		bad("mode", `must be "chat" or "stateless"`)
	}
	if strings.TrimSpace(in.Message) == "" {
		bad("message", "is required")
	}
	if in.ChatID != "" {
		check(subject.CheckFree("chatId", in.ChatID))
	}
	if in.OpID != "" {
		check(subject.CheckFree("opId", in.OpID))
	}
	if s := in.Source; s != nil {
		if s.Kind != message.SourceCall {
			bad("source.kind", `must be "call"`)
		}
		check(subject.CheckName("source.id", s.ID))
		check(subject.CheckName("source.tool", s.Tool))
	}
	due = now
	switch {
	case in.At != "" && in.In != "":
		bad("in", "cannot stand beside at")
	case in.At != "":
		if due, err = time.Parse(time.RFC3339, in.At); err != nil {
			bad("at", "must be a time such as 2026-03-02T08:00:00Z (RFC 3339)")
		}
	case in.In != "":
		d, err := time.ParseDuration(in.In)
		if err != nil || d < 0 {
			bad("in", "must be a duration such as 90s or 2h")
		}
		due = now.Add(d)
	}
	if due.Sub(now) > farthest {
		field := "at"
		if in.In != "" {
			field = "in"
		}
		bad(field, "is more than a year ahead")
	}
	if in.ExpiresAfter != "" {
		d, err := time.ParseDuration(in.ExpiresAfter)
		if err != nil || d <= 0 {
			bad("expiresAfter", "must be a duration such as 90s or 2h")
		}
		from := due
		if from.Before(now) {
			from = now
		}
		w.ExpiresAt = from.Add(d).UTC().Format(time.RFC3339Nano) // a second cut off may be all there is
	}
	if len(faults) > 0 {
		return due, w, errcode.Fields(errcode.InvalidRequest, faults...)
	}
	return due, w, nil
}
