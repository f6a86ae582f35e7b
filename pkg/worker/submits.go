package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/results"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

const (
	// workingEvery is how often a submitted call that waits or runs shows that
	// it does; the consumer delivers it to another worker after 10 s without.
	workingEvery = 2 * time.Second
	// maxDeliveries is how often a submitted call may fail to begin.
	maxDeliveries = 5
	// renewEvery is how often a running call's claim is renewed, which stands for
	// 8 s.
	renewEvery = 2 * time.Second
	// runningPause is the rest before an earlier run is looked for again.
	runningPause = time.Second
	// pullPause is the rest after a pull that failed.
	pullPause = 250 * time.Millisecond
	// recordTimeout limits one try to record an end.
	recordTimeout = 10 * time.Second
	// stopGrace is how long cancelled calls have to end.
	stopGrace = time.Second
)

var errStopping = errcode.New(errcode.Unavailable, "the worker is stopping")

// submits runs the submitted calls of the hosted tools. Each tool's are pulled
// one by one, as long as the tool has a free slot, so that no message waits here
// while another worker could run it.
//
// The end of a call is recorded before its message is acknowledged, and that it begins
// before it does: a message that comes again, since its worker died, runs again only
// when the call has not begun or its tool is idempotent. A claim keeps a call that was
// submitted twice from running twice at a time.
type submits struct {
	w *Worker

	base    context.Context // of the running calls
	cancel  context.CancelCauseFunc
	pulling context.Context // of the pulls; ends first
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu    sync.Mutex
	round context.Context // ends at the next reconnect
	next  context.CancelFunc
}

func startSubmits(w *Worker) *submits {
	s := &submits{w: w}
	s.base, s.cancel = context.WithCancelCause(context.Background())
	s.pulling, s.stop = context.WithCancel(context.Background())
	s.round, s.next = context.WithCancel(s.pulling)
	for _, name := range w.names() {
		s.work.Go(func() { s.serve(w.tools[name]) })
	}
	return s
}

// reconnected makes every pull ask anew: the server has forgotten the requests.
func (s *submits) reconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next()
	s.round, s.next = context.WithCancel(s.pulling)
}

func (s *submits) untilReconnect() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.round
}

// close pulls no more and waits for the calls that run until ctx ends; then
// they are cancelled, and left to other workers.
func (s *submits) close(ctx context.Context) error {
	s.stop()
	defer s.cancel(nil)
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.cancel(errStopping)
	select {
	case <-done:
		return nil
	case <-time.After(stopGrace):
		return errors.New("submitted calls still run")
	}
}

// serve runs a tool's submitted calls until close.
func (s *submits) serve(h *hosted) {
	for s.pulling.Err() == nil {
		c, err := s.consumer(h)
		if err == nil {
			err = s.pull(h, c)
		}
		if err != nil {
			s.w.log.Debug("submitted calls are not pulled now", "tool", h.def.Name, "err", err)
		}
		s.rest(pullPause)
	}
}

// consumer asks for the durable consumer of a tool, which is made when it is not
// there.
func (s *submits) consumer(h *hosted) (message.SubmitsConsumer, error) {
	ctx, cancel := context.WithTimeout(s.untilReconnect(), recordTimeout)
	defer cancel()
	var c message.SubmitsConsumer
	err := bus.Request(ctx, s.w.nc, subject.SubmitsConsumer(h.def.Name), nil, &c)
	if err == nil && (c.Stream == "" || c.Durable == "") {
		err = errcode.New(errcode.Internal, "the consumer of %s has no name", h.def.Name)
	}
	return c, err
}

// pull takes messages until close, or until the consumer is gone.
func (s *submits) pull(h *hosted, c message.SubmitsConsumer) error {
	p, err := newPuller(s.w.nc, c)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
		defer cancel()
		p.close(ctx)
	}()
	for {
		// A call needs a slot too and must not wait for this pull: the slot
		// is only looked for, and taken when there is a message for it.
		free := claim{tool: h.slots}
		if s.w.slots.acquire(s.pulling, free, time.Time{}) != nil {
			return nil
		}
		s.w.slots.release(free, 0)
		m, what := p.next(s.untilReconnect())
		switch {
		case what == received:
			s.take(h, m)
		case s.pulling.Err() != nil:
			return nil
		case what == gone:
			return errors.New("the consumer is gone")
		case what == trouble:
			s.rest(pullPause)
		}
	}
}

func (s *submits) rest(d time.Duration) {
	select {
	case <-s.pulling.Done():
	case <-time.After(d/2 + rand.N(d)):
	}
}

// take starts a message's call as soon as there is a slot for it.
func (s *submits) take(h *hosted, m *nats.Msg) {
	idle := s.working(m)
	slot := claim{tool: h.slots}
	if who, err := subject.ParseAgent(m.Subject); err == nil {
		slot.tenant, slot.agent = who.Tenant, who.Agent
	}
	if s.w.slots.acquire(s.pulling, slot, time.Time{}) != nil {
		idle()
		s.answer(m, nak(0)) // not begun: another worker's
		return
	}
	s.work.Go(func() {
		defer idle()
		answer := s.run(h, m, slot)
		s.answer(m, answer)
	})
}

// working extends the time that the consumer gives a message, until stopped:
// every two seconds, and as soon as NATS is back after an outage.
func (s *submits) working(m *nats.Msg) (stop func()) {
	done := make(chan struct{})
	var once sync.Once
	go func() {
		t := time.NewTicker(workingEvery)
		defer t.Stop()
		round := s.untilReconnect()
		for {
			select {
			case <-t.C:
			case <-round.Done():
				if round = s.untilReconnect(); round.Err() != nil { // the worker stops
					round = context.Background()
				}
			case <-done:
				return
			}
			s.answer(m, ackWorking)
		}
	}()
	return func() { once.Do(func() { close(done) }) }
}

// answer is best effort: a message whose answer is lost comes again.
func (s *submits) answer(m *nats.Msg, with []byte) {
	if err := s.w.nc.Publish(m.Reply, with); err != nil {
		s.w.log.Debug("submitted call not answered", "subject", m.Subject, "err", err)
	}
}

// submitted is a submitted call as it was read.
type submitted struct {
	who   subject.Agent
	req   message.CallRequest
	depth int
	tries int // deliveries, this one included
	body  json.RawMessage
}

// run runs a message's call, in a slot that is taken, and records its end. It
// returns the answer to the consumer.
func (s *submits) run(h *hosted, m *nats.Msg, slot claim) (answer []byte) {
	start := time.Now()
	ran := false
	defer func() {
		if !ran {
			s.w.slots.release(slot, 0)
		}
	}()
	ctx := bus.WithTrace(s.base, m.Header.Get(message.HeaderTrace))
	c, err := s.read(ctx, h, m)
	if c.req.CallID == "" {
		// There is nobody to tell.
		s.w.log.Warn("submitted call dropped", "subject", m.Subject, "err", err)
		return ackNever
	}
	log := s.w.log.With("tool", h.def.Name, "tenant", c.who.Tenant, "agent", c.who.Agent, "call", c.req.CallID)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	waiting := entry{key: keyOf(c.who, c.req.CallID), cancel: cancel}
	if err := s.w.running.enter(&waiting); err != nil {
		cancel(err)
	}
	defer s.w.running.leave(&waiting)
	run := &hold{to: results.NewRecorder(s.w.nc, c.who.Tenant, c.who.Agent), claim: message.ResultClaim{
		CallID: c.req.CallID, RunID: uuid.NewString(), Submit: sequence(m), Tool: h.def.Name, Idempotent: h.def.Idempotent,
	}}
	state, failed := s.claim(log, run)
	settle := func() []byte {
		if err := s.settle(run.to, c, h.def.Name); err != nil {
			log.Debug("submitted call not settled yet", "err", err)
			return nak(backoff(c.tries))
		}
		return ackDone
	}
	switch state {
	case message.ClaimGranted:
		run.keep(func() { cancel(run.lost()) })
		defer run.stop()
	case message.ClaimDone:
		if failed || c.req.WakeOnDone {
			return settle()
		}
		return ackDone
	case message.ClaimDuplicate:
		log.Info("submitted twice: the other one runs")
		return ackDone
	default:
		return nak(0) // this worker stops
	}
	if ctx.Err() != nil {
		err = ended(ctx) // cancelled before it began
	}
	end := message.ResultComplete{CallID: c.req.CallID, Tool: h.def.Name, Fence: run.claim.Fence}
	begun := false
	if err == nil {
		ran = true // call gives the slot back
		id := c.who.Tenant + "\x00" + c.who.Agent + "\x00\x00" + c.req.CallID
		ctx = bus.WithEffects(ctx, bus.NewEffects(id, run.first, run.lost))
		var reply message.CallReply
		if reply, begun, err = s.w.call(ctx, h, c.who, c.req, c.depth, slot); err == nil {
			end.Reply = &reply
		}
	}
	stopping := err != nil && errors.Is(context.Cause(s.base), errStopping)
	switch {
	case err == nil:
	case !begun && (stopping || errcode.From(err).Retryable && c.tries < maxDeliveries):
		log.Debug("submitted call put off", "err", err)
		run.release(true, nil)
		if stopping {
			return nak(0)
		}
		return nak(backoff(c.tries))
	case begun && h.def.Idempotent && errcode.From(err).Retryable && run.tries < message.MaxSubmitTries:
		log.Debug("submitted call is to run again", "tries", run.tries, "err", err)
		run.release(false, err)
		if stopping {
			return nak(0)
		}
		return nak(backoff(run.tries))
	}
	if err := s.record(ctx, run.to, end, err); err != nil {
		log.Error("end of a submitted call not recorded", "err", err)
		return nak(backoff(c.tries))
	}
	run.release(false, nil)
	success, size := false, 0
	if r := end.Reply; r != nil {
		success, size = r.Success, len(r.Content)+len(r.Data)+len(r.ErrorMessage)
	}
	s.w.audit(c.who, h, called(c.who, c.req, success, size, err, start), c.req.Arguments)
	if err != nil || c.req.WakeOnDone {
		return settle()
	}
	return ackDone
}

// settle has what follows the call's end happen.
func (s *submits) settle(to *results.Recorder, c submitted, tool string) error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	return to.Settle(ctx, message.ResultSettle{
		CallID: c.req.CallID, Tool: tool, ChatID: c.req.ChatID, WakeOnDone: c.req.WakeOnDone, Request: c.body,
	})
}

// backoff is how long a call that could not begin rests.
func backoff(tries int) time.Duration { return time.Second << min(max(tries, 1), 5) }

// read reads a message. When the call id is readable it is set also with an
// error: that error is the call's end.
func (s *submits) read(ctx context.Context, h *hosted, m *nats.Msg) (submitted, error) {
	c := submitted{tries: delivered(m)}
	var err error
	if c.who, err = subject.ParseAgent(m.Subject); err != nil {
		return c, err
	}
	if c.who.Verb != subject.VerbSubmit || c.who.ID != h.def.Name {
		return c, errcode.New(errcode.Internal, "the consumer of %s delivered %s", h.def.Name, m.Subject)
	}
	ctx, cancel := context.WithTimeout(ctx, spillTimeout)
	defer cancel()
	body, err := s.w.spill(c.who).In(ctx, s.w.nc, m.Header, m.Data)
	if err != nil {
		c.req.CallID = headerID(m.Header)
		return c, fmt.Errorf("fetch the arguments: %w", err)
	}
	if json.Valid(body) {
		c.body = body
	}
	req, depth, err := readCall(body, m.Header)
	id := submittedID(body)
	if id == "" {
		c.req.CallID = headerID(m.Header)
		return c, cmp.Or[error](err, errcode.Field("callId", "is required"))
	}
	c.req, c.depth = req, depth
	c.req.CallID = id
	return c, err
}

// headerID is the call id that a message's header names, for a body that cannot
// be had or read; "" when there is no valid one.
func headerID(h nats.Header) string {
	if id := h.Get(message.HeaderCallID); subject.CheckName("callId", id) == nil {
		return id
	}
	return ""
}

// submittedID is the call id of a body, however broken the rest; "" when there
// is no valid one.
func submittedID(body []byte) string {
	var b struct {
		CallID string `json:"callId"`
	}
	_ = json.Unmarshal(body, &b) // a fault elsewhere leaves what was read
	if subject.CheckName("callId", b.CallID) != nil {
		return ""
	}
	return b.CallID
}

// claim asks for the right to run a call until it gets it, or a reason not to
// run it: ClaimDone or ClaimDuplicate; "" when this worker stops first. As long
// as nobody answers no worker could begin the call, and giving it back would
// count as a try; so it would while an earlier run of the message goes on.
func (s *submits) claim(log telemetry.Logger, run *hold) (state string, failed bool) {
	for s.pulling.Err() == nil {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(s.pulling, recordTimeout)
		c, err := run.to.Claim(ctx, run.claim)
		cancel()
		switch {
		case err == nil && c.State != message.ClaimRunning:
			if c.State == message.ClaimGranted {
				run.granted(c, asked)
			}
			return c.State, c.Failed
		case err == nil:
			s.rest(runningPause)
		default:
			log.Debug("submitted call not begun yet", "err", err)
			s.rest(pullPause)
		}
	}
	return "", false
}

// record keeps trying until the end is recorded, or this worker stops.
func (s *submits) record(ctx context.Context, to *results.Recorder, end message.ResultComplete, failed error) error {
	if failed != nil {
		end.Error = errorBody(errcode.From(failed))
	}
	for {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		_, err := to.Complete(try, end)
		cancel()
		switch {
		case err == nil:
			return nil
		case end.Reply != nil && !errcode.From(err).Retryable:
			// For one, a reply over the limit: that is then the call's end.
			failed, end.Reply, end.Error = err, nil, errorBody(errcode.From(err))
		case errors.Is(err, errcode.TooLarge) && failed != nil:
			// An error over the limit loses what makes it large, never its code.
			end.Error, failed = errorBody(brief(errcode.From(failed))), nil
		case !errcode.From(err).Retryable || s.pulling.Err() != nil:
			return err
		default:
			s.rest(pullPause)
		}
	}
}

func errorBody(e *errcode.Error) json.RawMessage {
	b, err := message.Marshal(e)
	if err != nil { // its details have no JSON form
		b, _ = message.Marshal(brief(e))
	}
	return b
}

// briefText is how much of a text an error keeps that is too large, in bytes.
const briefText = 1 << 10

// brief is e without its details, and with the beginning of its text.
func brief(e *errcode.Error) *errcode.Error {
	text := e.Message
	if len(text) > briefText {
		text = strings.ToValidUTF8(text[:briefText], "") + "…"
	}
	short := errcode.New(e.Code, "%s", text)
	short.Retryable = e.Retryable
	return short
}
