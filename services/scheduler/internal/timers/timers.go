// Package timers is the stream TOOLBUS_TIMERS: timers that JetStream keeps, and
// the ticks they become when they are due.
package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/scheduler/internal/entry"
)

const (
	durable   = "scheduler"
	ioTimeout = 5 * time.Second
)

// Stream keeps timers and ticks. It is safe for concurrent use, by any number of
// processes.
type Stream struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	wait   time.Duration
	armed  prometheus.Counter

	mu      sync.Mutex
	endPull context.CancelFunc // of the last pull request
}

// Open creates or updates the stream and its consumer: a replica that is not
// heard of for wait after it took a tick loses it to another. armed counts timers.
func Open(ctx context.Context, js jetstream.JetStream, replicas int, wait time.Duration, armed prometheus.Counter) (*Stream, error) {
	st, err := jet.Ensure(ctx, js, jetstream.StreamConfig{
		Name:        subject.StreamTimers,
		Description: "Toolbus: timers of schedules and jobs, and the ticks they become",
		Subjects: []string{
			subject.Prefix + subject.FamilyTimer + ".>",
			subject.Prefix + subject.FamilyTick + ".>",
		},
		Retention:         jetstream.WorkQueuePolicy,
		Storage:           jetstream.FileStorage,
		Replicas:          replicas,
		AllowDirect:       true,
		AllowMsgSchedules: true,
		Duplicates:        time.Second, // no publish carries a message id
	})
	if err != nil {
		return nil, err
	}
	s := &Stream{js: js, stream: st, wait: wait, armed: armed}
	if _, err := s.makeConsumer(ctx); err != nil {
		return nil, fmt.Errorf("consumer %s of %s: %w", durable, subject.StreamTimers, err)
	}
	return s, nil
}

// Arm sets a timer: at the given time, or at once when that is past, body comes
// as a tick to one replica. A timer or tick of the same parts that stands already
// is left as it is. The parts of one timer are never used again: one that has
// fired would fire again.
func (s *Stream) Arm(ctx context.Context, p subject.TickParts, at time.Time, body []byte) error {
	m := nats.NewMsg(subject.Timer(p.Tenant, p.Agent, p.Entry, p.Revision, p.Slot))
	m.Header.Set("Nats-Schedule", "@at "+at.UTC().Format(time.RFC3339Nano))
	m.Header.Set("Nats-Schedule-Target", subject.Tick(p.Tenant, p.Agent, p.Entry, p.Revision, p.Slot))
	m.Data = body
	fresh, err := s.putOnce(ctx, m)
	if fresh {
		s.armed.Inc()
	}
	return err
}

// Fire makes a tick at once. fresh is false when one of the same parts waits, or
// is being acted on; then that stands.
func (s *Stream) Fire(ctx context.Context, p subject.TickParts, body []byte) (fresh bool, err error) {
	m := nats.NewMsg(subject.Tick(p.Tenant, p.Agent, p.Entry, p.Revision, p.Slot))
	m.Data = body
	return s.putOnce(ctx, m)
}

func (s *Stream) putOnce(ctx context.Context, m *nats.Msg) (fresh bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	_, err = jet.Put(ctx, s.js, m, 0)
	if errors.Is(err, jet.ErrRevision) {
		return false, nil
	}
	return err == nil, err
}

// Standing lists the timers and ticks of a tenant, or with agent of one agent.
func (s *Stream) Standing(ctx context.Context, tenant, agent string) ([]subject.TickParts, error) {
	filter := subject.Prefix + "*." + tenant + ".>"
	if agent != "" {
		filter = subject.Prefix + "*." + tenant + "." + agent + ".>"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*ioTimeout)
	defer cancel()
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	list := make([]subject.TickParts, 0, len(info.State.Subjects))
	for subj := range info.State.Subjects {
		if p, err := subject.ParseTick(subj); err == nil {
			list = append(list, p)
		}
	}
	return list, nil
}

// Disarm removes the timers of one revision of an entry. Ticks stay: whoever gets
// them drops them.
func (s *Stream) Disarm(ctx context.Context, tenant, agent, entry, revision string) error {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(subject.Timer(tenant, agent, entry, revision, "*")))
	if err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	return nil
}

// makeConsumer makes the replicas' common consumer of ticks.
func (s *Stream) makeConsumer(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	return s.stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:       durable,
		Description:   "hands each tick to one scheduler",
		FilterSubject: subject.Prefix + subject.FamilyTick + ".>",
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       s.wait,
		MaxAckPending: -1, // ticks that wait for another run of their job count as pending
		MaxDeliver:    -1,
	})
}

// Body is what a timer carries.
type Body struct {
	// Cause is why it ticks, and At the scheduled time in Unix milliseconds.
	Cause string `json:"cause"`
	At    int64  `json:"at"`
	// Wake is set for CauseWake: a message.Wake.
	Wake json.RawMessage `json:"wake,omitempty"`
}

// EntryWake and RevisionWake stand in the subjects of wakes sent for later. No
// entry's revision is RevisionWake.
const (
	EntryWake    = "_wake"
	RevisionWake = "wake"
)

// TriggerID is the tick id of a run that an operator triggered at t.
func TriggerID(e entry.Entry, t time.Time) string {
	return e.TickID(CauseTrigger + "-" + entry.Slot(t))
}

// Causes of a tick.
const (
	CauseSlot    = "slot"    // the entry's cron expression
	CauseTrigger = "trigger" // an operator
	CauseStart   = "start"   // runOnStart
	CauseWake    = "wake"    // a wake sent for later; no entry
)
