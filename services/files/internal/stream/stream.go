// Package stream reads one JetStream stream without a consumer: the last
// message of a subject, a message by sequence, and the messages of a subject in
// order.
//
// Clients publish into our streams and choose the headers of what they store.
// What the server adds to a stored message when it hands it out comes last, so
// the last value of a Nats- header is the server's word; the first may be forged.
// A status, too, is the server's only where no stored message is: on a chunk
// without data a client may have set one, which nats.go takes for the server's.
package stream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

var (
	// ErrNone is that the stream has no such message.
	ErrNone = errors.New("no such message")
	// ErrNoStream is that there is no such stream: the server said so. A stream
	// that only does not answer is unavailable instead.
	ErrNoStream = errors.New("no such stream")
)

// requestTimeout limits one request to the server.
const requestTimeout = 5 * time.Second

// Codes of the JetStream API.
const (
	codeNoMessage = 10037
	codeNoStream  = 10059
)

// Reader reads one stream; it is a value.
type Reader struct {
	Conn *nats.Conn
	Name string // of the stream
	// Replicated streams answer direct gets from followers too, which may be
	// behind; Last then asks the leader.
	Replicated bool
}

// Msg is a stored message.
type Msg struct {
	Subject string
	Seq     uint64
	Time    time.Time // when it was stored, by the server's clock
	Header  nats.Header
	Data    []byte
}

// Chunk is the number that whoever published a chunk gave it; false when it has
// none.
func (m Msg) Chunk() (int, bool) {
	n, err := strconv.Atoi(m.Header.Get(message.HeaderChunk))
	return n, err == nil && n >= 0
}

// Last returns the last message of subject; it sees every write that was
// acknowledged before. ErrNone, ErrNoStream or an error with a code.
func (r Reader) Last(ctx context.Context, subject string) (Msg, error) {
	if r.Replicated {
		return r.leader(ctx, msgGet{LastFor: subject})
	}
	return r.DirectLast(ctx, subject)
}

// DirectLast is Last from any replica, which may be behind.
func (r Reader) DirectLast(ctx context.Context, subject string) (Msg, error) {
	return r.direct(ctx, "$JS.API.DIRECT.GET."+r.Name+"."+subject, nil, msgGet{LastFor: subject})
}

// At returns the message with a sequence, from any replica.
func (r Reader) At(ctx context.Context, seq uint64) (Msg, error) {
	return r.direct(ctx, "$JS.API.DIRECT.GET."+r.Name, fmt.Appendf(nil, `{"seq":%d}`, seq), msgGet{Seq: seq})
}

// Surely is At for a message that is known to have been stored: what a replica
// does not have yet the leader has. ErrNone then is that it was removed.
func (r Reader) Surely(ctx context.Context, seq uint64) (Msg, error) {
	m, err := r.At(ctx, seq)
	if r.Replicated && errors.Is(err, ErrNone) {
		return r.leader(ctx, msgGet{Seq: seq})
	}
	return m, err
}

// direct asks any replica. Nobody answering may be a forged status: the leader's
// answer, in which a message cannot pose as a status, decides.
func (r Reader) direct(ctx context.Context, to string, body []byte, get msgGet) (Msg, error) {
	try, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := r.Conn.RequestWithContext(try, to, body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return r.leader(ctx, get)
	case err != nil:
		return Msg{}, requestError(err)
	}
	return decode(m)
}

// msgGet names a message to the stream's leader.
type msgGet struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
}

func (r Reader) leader(ctx context.Context, get msgGet) (Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := json.Marshal(get)
	if err != nil {
		return Msg{}, err
	}
	m, err := r.Conn.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+r.Name, body)
	if err != nil {
		return Msg{}, requestError(err)
	}
	var reply struct {
		Error   *apiError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  string    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return Msg{}, errcode.Wrap(errcode.Internal, err, "unreadable answer of JetStream")
	}
	if err := reply.Error.err(); err != nil {
		return Msg{}, err
	}
	out := Msg{Subject: reply.Message.Subject, Seq: reply.Message.Seq, Time: reply.Message.Time, Data: reply.Message.Data}
	if reply.Message.Header != "" {
		raw, err := base64.StdEncoding.DecodeString(reply.Message.Header)
		if err == nil {
			out.Header, err = nats.DecodeHeadersMsg(raw)
		}
		if err != nil {
			return Msg{}, errcode.Wrap(errcode.Internal, err, "unreadable headers in %s", r.Name)
		}
	}
	return out, nil
}

// State is what the server knows of a stream.
type State struct {
	Bytes       uint64            `json:"bytes"` // all that is stored, headers and superseded messages too
	NumSubjects uint64            `json:"num_subjects"`
	Subjects    map[string]uint64 `json:"subjects"`
}

// Info asks for the stream's state, with the number of messages of each
// subject that matches filter when it is not "".
func (r Reader) Info(ctx context.Context, filter string) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all := State{Subjects: map[string]uint64{}}
	for {
		body, err := json.Marshal(struct {
			Filter string `json:"subjects_filter,omitempty"`
			Offset int    `json:"offset,omitempty"`
		}{filter, len(all.Subjects)})
		if err != nil {
			return State{}, err
		}
		m, err := r.Conn.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+r.Name, body)
		if err != nil {
			return State{}, requestError(err)
		}
		var reply struct {
			Error *apiError `json:"error"`
			State State     `json:"state"`
			Total int       `json:"total"`
		}
		if err := json.Unmarshal(m.Data, &reply); err != nil {
			return State{}, errcode.Wrap(errcode.Internal, err, "unreadable answer of JetStream")
		}
		if err := reply.Error.err(); err != nil {
			return State{}, err
		}
		all.Bytes, all.NumSubjects = reply.State.Bytes, reply.State.NumSubjects
		for s, n := range reply.State.Subjects {
			all.Subjects[s] = n
		}
		if len(reply.State.Subjects) == 0 || len(all.Subjects) >= reply.Total {
			return all, nil
		}
	}
}

// absent tells a missing stream from one that does not answer.
func (r Reader) absent(ctx context.Context) error {
	if _, err := r.Info(ctx, ""); err != nil {
		return err
	}
	return errcode.Wrap(errcode.Unavailable, nats.ErrNoResponders, "stream %s does not answer", r.Name)
}

func requestError(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return errcode.Wrap(errcode.Unavailable, err, "JetStream did not answer in time")
	}
	return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
}

type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) err() error {
	switch {
	case e == nil:
		return nil
	case e.ErrCode == codeNoMessage:
		return ErrNone
	case e.ErrCode == codeNoStream:
		return ErrNoStream
	}
	return errcode.New(errcode.Unavailable, "JetStream: %s", e.Description)
}

// decode reads what a direct get answers.
func decode(m *nats.Msg) (Msg, error) {
	seq := last(m.Header, "Nats-Sequence")
	if seq == "" {
		if m.Header.Get("Status") == "404" {
			return Msg{}, ErrNone
		}
		return Msg{}, errcode.New(errcode.Unavailable, "JetStream: %s %s", m.Header.Get("Status"), m.Header.Get("Description"))
	}
	out := Msg{Subject: last(m.Header, "Nats-Subject"), Header: m.Header, Data: m.Data}
	var err error
	if out.Seq, err = strconv.ParseUint(seq, 10, 64); err == nil {
		out.Time, err = time.Parse(time.RFC3339Nano, last(m.Header, "Nats-Time-Stamp"))
	}
	if err != nil {
		return Msg{}, errcode.Wrap(errcode.Internal, err, "unreadable answer of JetStream")
	}
	return out, nil
}

func last(h nats.Header, key string) string {
	if v := h.Values(key); len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}
