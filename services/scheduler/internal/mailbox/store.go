// Package mailbox keeps wakes until their agent has accepted them, and delivers
// them.
package mailbox

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/scheduler/internal/jobs"
)

const (
	ioTimeout = 5 * time.Second
	pastTTL   = 24 * time.Hour      // how long what became of a wake is remembered
	deadTTL   = 30 * 24 * time.Hour // how long a wake that was given up is kept
	window    = 2 * time.Minute     // in which the stream itself refuses a wake's repeat
)

// Store is the stream TOOLBUS_WAKES. Only the scheduler writes to it.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	bucket *jobs.Bucket
}

// Stored is a wake in a mailbox.
type Stored struct {
	Seq           uint64
	Tenant, Agent string
	Wake          message.Wake
	Size          int   // bytes, as it is stored
	Unreadable    error // why it is no wake; nil when it is one
}

// Open creates or updates the stream.
func Open(ctx context.Context, js jetstream.JetStream, replicas int, b *jobs.Bucket) (*Store, error) {
	st, err := jet.Ensure(ctx, js, jetstream.StreamConfig{
		Name:        subject.StreamWakes,
		Description: "Toolbus: wakes that their agents have not accepted",
		Subjects:    []string{subject.Mailbox("*", "*"), subject.DeadMailbox("*", "*")},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Replicas:    replicas,
		AllowDirect: true,
		AllowMsgTTL: true,
		Duplicates:  window,
		RePublish: &jetstream.RePublish{
			Source:      subject.Mailbox("*", "*"),
			Destination: subject.ChangesMailbox("{{wildcard(1)}}", "{{wildcard(2)}}"),
			HeadersOnly: true,
		},
	})
	if err != nil {
		return nil, err
	}
	return &Store{js: js, stream: st, bucket: b}, nil
}

// Put puts a wake into its agent's mailbox. One that is there already, or that
// was accepted or given up within a day, is left out: putting it again has no
// effect. A wake's id is the agent's own: what another agent's wakes are called
// makes no difference, so whoever may choose an id reaches his own wakes only.
func (s *Store) Put(ctx context.Context, tenant, agent string, w message.Wake) error {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	if past, err := s.past(ctx, Ref{tenant, agent}, w.WakeID); err != nil || past.over() {
		return err
	}
	data, err := message.Marshal(w)
	if err != nil {
		return err
	}
	m := nats.NewMsg(subject.Mailbox(tenant, agent))
	m.Data = data
	if _, err := s.js.PublishMsg(ctx, m, jetstream.WithMsgID(ownID(Ref{tenant, agent}, w.WakeID)), jetstream.WithRetryAttempts(1)); err != nil {
		return jet.PublishError(err)
	}
	return nil
}

// ownID is a wake's id, which begins with its agent's name as the scheduler makes
// them; any other is made to.
func ownID(r Ref, wakeID string) string {
	own := r.Tenant + "." + r.Agent + "."
	if strings.HasPrefix(wakeID, own) {
		return wakeID
	}
	return own + wakeID
}

func pastKey(r Ref, wakeID string) string { return "_wake." + subject.Escape(ownID(r, wakeID)) }

// past is what has become of a wake so far. The zero value is that of a new one.
type past struct {
	Accepted bool `json:"accepted,omitempty"`
	Dead     bool `json:"dead,omitempty"`  // given up
	Tries    int  `json:"tries,omitempty"` // deliveries that have failed
	seq      uint64
}

// over tells whether the wake is not to be delivered any more.
func (p past) over() bool { return p.Accepted || p.Dead }

func (s *Store) past(ctx context.Context, r Ref, wakeID string) (past, error) {
	it, err := s.bucket.Get(ctx, pastKey(r, wakeID))
	if err != nil || it.Seq == 0 {
		return past{}, err
	}
	p := past{seq: it.Seq}
	if err := json.Unmarshal(it.Data, &p); err != nil {
		return p, errcode.Wrap(errcode.Internal, err, "what became of wake %s is unreadable: %v", wakeID, err)
	}
	return p, nil
}

// end remembers how a wake ended.
func (s *Store) end(ctx context.Context, w Stored, p past) error {
	data, err := message.Marshal(p)
	if err != nil {
		return err
	}
	return s.bucket.Set(ctx, pastKey(Ref{w.Tenant, w.Agent}, w.Wake.WakeID), data, pastTTL)
}

// failed remembers how often a wake has failed, unless it has ended.
func (s *Store) failed(ctx context.Context, r Ref, wakeID string, tries int) error {
	p, err := s.past(ctx, r, wakeID)
	if err != nil || p.over() {
		return err
	}
	data, err := message.Marshal(past{Tries: max(tries, p.Tries)})
	if err != nil {
		return err
	}
	_, err = s.bucket.Put(ctx, pastKey(r, wakeID), data, pastTTL, p.seq)
	return err
}

// accept remembers a wake as accepted, then takes it off the mailbox. When only
// the first succeeds, whoever comes to the wake next does the rest.
func (s *Store) accept(ctx context.Context, w Stored) error {
	if err := s.end(ctx, w, past{Accepted: true}); err != nil {
		return err
	}
	return s.remove(ctx, w.Seq)
}

func (s *Store) remove(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	err := s.stream.DeleteMsg(ctx, seq)
	var api *jetstream.APIError
	if errors.As(err, &api) && jet.Gone(api.ErrorCode, api.Description) {
		return nil
	}
	if err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	return nil
}

// bury keeps a wake among the dead and takes it off the mailbox.
func (s *Store) bury(ctx context.Context, w Stored) error {
	data, err := message.Marshal(w.Wake)
	if err != nil {
		return err
	}
	m := nats.NewMsg(subject.DeadMailbox(w.Tenant, w.Agent))
	m.Data = data
	m.Header.Set(jetstream.MsgTTLHeader, deadTTL.String())
	put, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	if _, err := s.js.PublishMsg(put, m, jetstream.WithMsgID("dead."+ownID(Ref{w.Tenant, w.Agent}, w.Wake.WakeID)), jetstream.WithRetryAttempts(1)); err != nil {
		return jet.PublishError(err)
	}
	if err := s.end(ctx, w, past{Dead: true}); err != nil {
		return err
	}
	return s.remove(ctx, w.Seq)
}

// get reads one wake; found is false when it is off the mailbox.
func (s *Store) get(ctx context.Context, seq uint64) (w Stored, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	m, err := s.stream.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return w, false, nil
	case err != nil:
		return w, false, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	w = stored(m.Subject, m.Sequence, m.Data)
	return w, true, w.Unreadable
}

// stored reads a message of the stream.
func stored(subj string, seq uint64, data []byte) Stored {
	w := Stored{Seq: seq, Size: len(data)}
	if w.Tenant, w.Agent, w.Unreadable = subject.ParseMailbox(subj); w.Unreadable != nil {
		w.Tenant, w.Agent, w.Unreadable = subject.ParseDeadMailbox(subj)
	}
	if w.Unreadable == nil {
		w.Unreadable = json.Unmarshal(data, &w.Wake)
	}
	if w.Unreadable == nil && w.Wake.WakeID == "" {
		w.Unreadable = errors.New("it has no wakeId")
	}
	return w
}

// next reads up to n wakes of a mailbox in order, from seq on. more is false when
// there are no others behind them.
func (s *Store) next(ctx context.Context, subj string, seq uint64, n int) (list []Stored, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	msgs, err := jetstreamext.GetBatch(ctx, s.js, subject.StreamWakes, n,
		jetstreamext.GetBatchSubject(subj), jetstreamext.GetBatchSeq(max(seq, 1)))
	if err != nil {
		return nil, true, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	for m, err := range msgs {
		if errors.Is(err, jetstreamext.ErrNoMessages) {
			break
		}
		if err != nil {
			return nil, true, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
		}
		list = append(list, stored(m.Subject, m.Sequence, m.Data))
	}
	return list, len(list) == n, nil
}

// listedExtra is what a listing says of a wake beside the wake.
const listedExtra = 128

// List returns wakes that wait, or with dead those given up, of a tenant or one
// of its agents, oldest first, from a sequence on, until their size reaches limit
// bytes; there is always one if there is any. next is where to go on, 0 at the end.
func (s *Store) List(ctx context.Context, tenant, agent string, dead bool, seq uint64, limit int) (out []Stored, next uint64, err error) {
	if agent == "" {
		agent = "*"
	}
	subj := subject.Mailbox(tenant, agent)
	if dead {
		subj = subject.DeadMailbox(tenant, agent)
	}
	size := 0
	for more := true; more; {
		var list []Stored
		if list, more, err = s.next(ctx, subj, seq, 100); err != nil {
			return nil, 0, err
		}
		for _, w := range list {
			if seq = w.Seq + 1; w.Unreadable != nil {
				continue
			}
			if size += w.Size + listedExtra; size > limit && len(out) > 0 {
				return out, w.Seq, nil
			}
			out = append(out, w)
		}
	}
	return out, 0, nil
}

// waiting lists the agents that have wakes.
func (s *Store) waiting(ctx context.Context) ([]Ref, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*ioTimeout)
	defer cancel()
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(subject.Mailbox("*", "*")))
	if err != nil {
		return nil, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
	}
	list := make([]Ref, 0, len(info.State.Subjects))
	for subj := range info.State.Subjects {
		if tenant, agent, err := subject.ParseMailbox(subj); err == nil {
			list = append(list, Ref{tenant, agent})
		}
	}
	return list, nil
}

// Ref names an agent.
type Ref struct{ Tenant, Agent string }
