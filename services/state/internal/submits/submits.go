// Package submits owns TOOLBUS_SUBMITS: the stream in which submitted calls wait
// until a worker has run them, and one durable consumer of it per tool, through
// which all workers that host the tool pull.
package submits

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// Limits bound what waits.
type Limits struct {
	Bytes      int64 // of all submitted calls, which NATS reserves; more are refused
	PerSubject int64 // submitted calls of one agent to one tool; more are refused
	MsgSize    int32 // bytes of one, headers included: what a message can be
}

// Of the durable consumers.
const (
	ackWait       = 10 * time.Second // a worker at work extends it every two seconds
	maxAckPending = 10_000           // calls of one tool running at once, in all workers
	maxWaiting    = 4096             // pulls of one tool waiting at once: one per free slot of all workers
)

// Submits is the stream.
type Submits struct {
	js     jetstream.JetStream
	stream jetstream.Stream
}

// StreamConfig is the stream. Clients publish to it, with whatever headers they
// like: rollup, per-message expiry, schedules, batches and counters are off, so
// that the server refuses such a message, and a foreign message id swallows
// another's for no longer than the shortest duplicate window there is.
func StreamConfig(replicas int, limits Limits) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 subject.StreamSubmits,
		Description:          "Submitted calls that wait for a worker",
		Subjects:             []string{subject.AgentSubmit("*", "*", "*")},
		Retention:            jetstream.WorkQueuePolicy,
		Storage:              jetstream.FileStorage,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		Replicas:             max(replicas, 1),
		MaxBytes:             limits.Bytes,
		MaxMsgsPerSubject:    limits.PerSubject,
		MaxMsgs:              -1,
		MaxMsgSize:           limits.MsgSize,
		MaxConsumers:         -1,
		Duplicates:           100 * time.Millisecond,
		AllowDirect:          true, // for lists
	}
}

// Open makes the stream, or updates it.
func Open(ctx context.Context, js jetstream.JetStream, replicas int, limits Limits) (*Submits, error) {
	st, err := jet.Ensure(ctx, js, StreamConfig(replicas, limits))
	if err != nil {
		return nil, err
	}
	return &Submits{js: js, stream: st}, nil
}

const (
	askTimeout = 3 * time.Second
	askPause   = 50 * time.Millisecond
)

// Consumer makes the durable consumer of a tool, or finds it as it should be.
// Several replicas may do so at once. It stays when nobody pulls from it: it
// knows how often each call that waits was delivered.
func (s *Submits) Consumer(ctx context.Context, tool string) (message.SubmitsConsumer, error) {
	out := message.SubmitsConsumer{Stream: subject.StreamSubmits, Durable: subject.SubmitsDurable(tool)}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for {
		_, err := s.stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable:       out.Durable,
			Description:   "Submitted calls of " + tool,
			FilterSubject: subject.AgentSubmit("*", "*", tool),
			DeliverPolicy: jetstream.DeliverAllPolicy,
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       ackWait,
			MaxDeliver:    -1,
			MaxAckPending: maxAckPending,
			MaxWaiting:    maxWaiting,
		})
		if err == nil {
			return out, nil
		}
		// Another replica may have been faster.
		select {
		case <-ctx.Done():
			return out, errcode.Wrap(errcode.Unavailable, err, "the consumer of %s: %v", tool, err)
		case <-time.After(askPause):
		}
	}
}

// Waiting tells whether an agent has submitted calls that have not ended. It
// asks the stream's leader, after which a call whose submit was acknowledged
// before is either counted or has a result.
func (s *Submits) Waiting(ctx context.Context, tenant, agent string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(subject.AgentSubmit(tenant, agent, "*")))
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return false, err
		}
		return false, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	return len(info.State.Subjects) > 0, nil
}

// page is how many messages are asked for at once.
const page = 256

// Walk hands the submitted calls of a tenant that have not ended to visit, oldest first,
// from a sequence of the stream on, until it returns false. agent may be "*". Replicas
// may answer a little behind the leader.
func (s *Submits) Walk(ctx context.Context, tenant, agent string, from uint64, visit func(*jetstream.RawStreamMsg) bool) error {
	for seq := max(from, 1); ; {
		msgs, err := jetstreamext.GetBatch(ctx, s.js, subject.StreamSubmits, page,
			jetstreamext.GetBatchSubject(subject.AgentSubmit(tenant, agent, "*")), jetstreamext.GetBatchSeq(seq))
		if err != nil {
			return err
		}
		n := 0
		for m, err := range msgs {
			if errors.Is(err, jetstreamext.ErrNoMessages) {
				return nil
			}
			if err != nil {
				return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
			}
			seq = m.Sequence + 1
			if n++; !visit(m) {
				return nil
			}
		}
		if n < page {
			return nil
		}
	}
}

// Submit stores a call again.
func (s *Submits) Submit(ctx context.Context, tenant, agent, tool, callID string, body []byte) error {
	m := nats.NewMsg(subject.AgentSubmit(tenant, agent, tool))
	m.Header.Set(message.HeaderCallID, callID)
	m.Data = body
	if _, err := s.js.PublishMsg(ctx, m); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	return nil
}
