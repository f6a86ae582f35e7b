// Package entry is what an agent's configuration says the scheduler shall do: its
// entries, checked and ready to compute with. It knows nothing of NATS.
package entry

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/internal/cronexpr"
)

// Kinds of entries, as message.SchedulerEntry has them.
const (
	KindSchedule = message.SourceSchedule // wakes the agent
	KindToolJob  = message.SourceToolJob  // runs a tool's check
)

// Entry is one schedule or tool job.
type Entry struct {
	Tenant, Agent, ID string
	Kind              string

	Cron     cronexpr.Schedule
	Location *time.Location
	Timezone string // Location's name

	Enabled    bool
	RunOnStart bool
	SkipMissed bool // times that passed while nothing ran are not made up for
	Jitter     time.Duration
	Expires    time.Duration // of its wakes; 0: never

	Mode    string // of its wakes; "" for a tool job: its check decides
	ChatID  string
	Message string // of a schedule
	Tool    string // of a tool job
	JobType string

	// Revision identifies what the entry does and when, Timing only when. Both
	// are names: 12 hex digits.
	Revision string
	Timing   string
}

// spec is what both kinds have.
type spec struct {
	Kind, Cron, Timezone, Mode, ChatID, Message, Tool, JobType, Missed, Jitter, Expires string
	RunOnStart                                                                          bool
}

// Of lists an agent's entries in the order of its configuration. An entry that
// cannot be understood is left out and named in the error; the registry lets none
// through that its own version would not understand.
func Of(tenant string, c message.AgentConfig) ([]Entry, error) {
	var list []Entry
	var errs []error
	add := func(id string, enabled *bool, s spec) {
		s.Cron = cronexpr.Normalize(s.Cron)
		if s.Timezone == "" {
			s.Timezone = c.Timezone
		}
		if s.Timezone == "" {
			s.Timezone = "UTC"
		}
		e, err := s.entry()
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %s of agent %s: %w", id, c.AgentID, err))
			return
		}
		e.Tenant, e.Agent, e.ID = tenant, c.AgentID, id
		e.Enabled = enabled == nil || *enabled
		list = append(list, e)
	}
	for _, x := range c.Scheduler {
		mode := x.WakeMode
		if mode == "" {
			mode = message.WakeChat
		}
		add(x.ID, x.Enabled, spec{Kind: KindSchedule, Cron: x.Cron, Timezone: x.Timezone, Mode: mode, ChatID: x.ChatID,
			Message: x.TaskMessage, Missed: x.Missed, Jitter: x.Jitter, Expires: x.ExpiresAfter, RunOnStart: x.RunOnStart})
	}
	for _, x := range c.ToolJobs {
		add(x.JobID, x.Enabled, spec{Kind: KindToolJob, Cron: x.Cron, Timezone: x.Timezone, Mode: x.WakeMode, ChatID: x.ChatID,
			Tool: x.ToolName, JobType: x.JobTypeID, Missed: x.Missed, Jitter: x.Jitter, Expires: x.ExpiresAfter, RunOnStart: x.RunOnStart})
	}
	return list, errors.Join(errs...)
}

// Find returns the entry with an id.
func Find(list []Entry, id string) (Entry, bool) {
	for _, e := range list {
		if e.ID == id {
			return e, true
		}
	}
	return Entry{}, false
}

func (s spec) entry() (Entry, error) {
	e := Entry{Kind: s.Kind, Timezone: s.Timezone, RunOnStart: s.RunOnStart, SkipMissed: s.Missed == "skip",
		Mode: s.Mode, ChatID: s.ChatID, Message: s.Message, Tool: s.Tool, JobType: s.JobType}
	var err error
	if e.Cron, err = cronexpr.Parse(s.Cron); err != nil {
		return Entry{}, fmt.Errorf("cron %q %w", s.Cron, err)
	}
	if e.Location, err = time.LoadLocation(s.Timezone); err != nil {
		return Entry{}, fmt.Errorf("timezone %q: %w", s.Timezone, err)
	}
	if e.Jitter, err = duration(s.Jitter); err != nil {
		return Entry{}, fmt.Errorf("jitter: %w", err)
	}
	if e.Expires, err = duration(s.Expires); err != nil {
		return Entry{}, fmt.Errorf("expiresAfter: %w", err)
	}
	e.Revision = digest(s)
	e.Timing = digest([]string{s.Cron, s.Timezone})
	return e, nil
}

func duration(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	return time.ParseDuration(s)
}

// digest names a value: 12 hex digits.
func digest(v any) string {
	b, _ := json.Marshal(v) // strings and booleans always have a JSON form
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

// TickID identifies one run of the entry: slot is the scheduled time in Unix
// milliseconds, or another name for a run apart from the slots.
func (e Entry) TickID(slot string) string { return e.ID + "." + slot }

// WakeID is the id of the wake that a tick leads to, the same each time the tick
// is tried, and no other tick's of any agent.
func (e Entry) WakeID(tickID string) string {
	return strings.Join([]string{e.Tenant, e.Agent, tickID}, ".")
}

// Slot writes a scheduled time as a subject's token.
func Slot(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// Due is when the slot fires: the scheduled time, and up to Jitter later; the
// same for whoever computes it.
func (e Entry) Due(slot time.Time) time.Time {
	if e.Jitter <= 0 {
		return slot
	}
	sum := sha256.Sum256([]byte(e.WakeID(e.TickID(Slot(slot)))))
	return slot.Add(time.Duration(binary.BigEndian.Uint64(sum[:8]) % uint64(e.Jitter)).Truncate(time.Millisecond))
}
