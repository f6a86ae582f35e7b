package results

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
)

// dead is a submitted call that could not be served, as it is kept.
type dead struct {
	message.SubmitEntry
	Request json.RawMessage `json:"request,omitempty"` // its body; none when it was too large
}

const (
	settleTimeout = 9 * time.Second
	listPage      = 200
)

// settle has what follows a call's end happen. Its worker asks until it has: every step
// may be done again.
func (h *Handler) settle(ctx context.Context, tenant, agent string, in *bus.Incoming) (any, error) {
	var req message.ResultSettle
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	if err := errors.Join(subject.CheckName("callId", req.CallID), subject.CheckName("tool", req.Tool)); err != nil {
		return nil, errcode.From(err)
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	r, _, err := h.run(ctx, subject.ResultKey(tenant, agent, req.CallID))
	if err != nil {
		return nil, err
	}
	if !r.ended() {
		return nil, errcode.New(errcode.NotFound, "no end of %q is recorded", req.CallID)
	}
	if r.failed() {
		if err := h.bury(ctx, tenant, agent, r, req); err != nil {
			return nil, err
		}
	}
	if req.WakeOnDone {
		if err := h.wake(ctx, tenant, agent, r, req.ChatID); err != nil {
			return nil, err
		}
	}
	return message.ResultSettled{Settled: true}, nil
}

// failed tells whether a call could not be served, other than because somebody cancelled it.
func (r runRecord) failed() bool {
	if len(r.Error) == 0 {
		return false
	}
	var e errcode.Error
	return json.Unmarshal(r.Error, &e) != nil || e.Code != errcode.Cancelled
}

func (h *Handler) bury(ctx context.Context, tenant, agent string, r runRecord, req message.ResultSettle) error {
	d := dead{Request: req.Request, SubmitEntry: message.SubmitEntry{
		AgentID: agent, CallID: r.CallID, Tool: r.Tool, ChatID: req.ChatID, Tries: r.Tries, Error: r.Error,
		EndedAt: time.Now().UTC().Format(time.RFC3339),
	}}
	body, err := message.Marshal(d)
	if err == nil && h.fits(body) != nil {
		d.Request = nil
		body, err = message.Marshal(d)
	}
	if err != nil {
		return err
	}
	key := subject.DeadResultKey(tenant, agent, r.CallID)
	for range claimTries {
		m, err := h.bucket.Last(ctx, key)
		if err != nil {
			return unavailable(err)
		}
		if m.Seq > 0 && !m.Marker {
			return nil // an earlier try
		}
		if _, err = h.bucket.Put(ctx, key, nats.Header{}, body, h.limits.KeepDead, m.Seq); !errors.Is(err, bucket.ErrRevision) {
			return unavailable(err)
		}
	}
	return errcode.New(errcode.Unavailable, "too many at once")
}

// wake tells the agent of the end. The wake has the same id each time.
func (h *Handler) wake(ctx context.Context, tenant, agent string, r runRecord, chat string) error {
	how := "has succeeded"
	switch {
	case len(r.Error) > 0:
		e := new(errcode.Error)
		_ = json.Unmarshal(r.Error, e)
		how = fmt.Sprintf("could not be served: %s", cmp.Or(string(e.Code), string(errcode.Internal)))
	case len(r.Reply) > 0:
		var reply message.CallReply
		if json.Unmarshal(r.Reply, &reply) == nil && !reply.Success {
			how = "has failed: " + short(reply.ErrorMessage)
		}
	}
	w := message.SchedulerWake{
		AgentID: agent, Mode: message.WakeStateless, OpID: "call " + r.CallID,
		Message: fmt.Sprintf("The submitted call %s of %s %s.", r.CallID, r.Tool, how),
		Source:  &message.WakeSource{Kind: message.SourceCall, ID: r.CallID, Tool: r.Tool},
	}
	if chat != "" {
		w.Mode, w.ChatID = message.WakeChat, chat
	}
	err := bus.Retry(ctx, h.nc, subject.Scheduler(tenant, "wake"), w, nil)
	if errors.Is(err, errcode.NotFound) {
		return nil // the agent is gone
	}
	return err
}

func short(s string) string {
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// ServeSubmits answers requests on submits.<tenant>.<op>.
func (h *Handler) ServeSubmits(ctx context.Context, in *bus.Incoming) (any, error) {
	tenant, op, err := subject.ParseTenantOp(subject.FamilySubmits, in.Subject, false)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	switch op {
	case "list":
		return h.count("submits.list", func() (any, error) {
			var req message.SubmitList
			if err := in.Decode(&req); err != nil {
				return nil, err
			}
			return h.list(ctx, tenant, req)
		})
	case "redrive":
		return h.count("submits.redrive", func() (any, error) {
			var req message.SubmitRef
			if err := in.Decode(&req); err != nil {
				return nil, err
			}
			return h.redrive(ctx, tenant, req)
		})
	}
	return nil, errcode.Field("op", "%.64q is not an operation on submitted calls", op)
}

func (h *Handler) list(ctx context.Context, tenant string, req message.SubmitList) (message.SubmitListing, error) {
	agent := "*"
	if req.AgentID != "" {
		if err := subject.CheckName("agentId", req.AgentID); err != nil {
			return message.SubmitListing{}, err
		}
		agent = req.AgentID
	}
	out := message.SubmitListing{Submits: []message.SubmitEntry{}}
	room := int(bus.MaxBody(h.nc)) / 2
	add := func(e message.SubmitEntry) bool {
		if len(out.Submits) == listPage || len(out.Submits) > 0 && room < 0 {
			return false
		}
		room -= 256 + len(e.Error) + len(e.ChatID)
		out.Submits = append(out.Submits, e)
		return true
	}
	switch req.State {
	case "", message.SubmitsWaiting:
		return out, h.listWaiting(ctx, tenant, agent, req.Cursor, &out, add)
	case message.SubmitsDead:
		return out, h.listDead(ctx, tenant, agent, req.Cursor, &out, add)
	}
	return out, errcode.Field("state", `%q must be "waiting" or "dead"`, req.State)
}

func (h *Handler) listWaiting(ctx context.Context, tenant, agent, cursor string, out *message.SubmitListing, add func(message.SubmitEntry) bool) error {
	from := uint64(0)
	if cursor != "" {
		var err error
		if from, err = strconv.ParseUint(cursor, 10, 64); err != nil {
			return errcode.Field("cursor", "is not one of a listing")
		}
	}
	return h.submits.Walk(ctx, tenant, agent, from, func(m *jetstream.RawStreamMsg) bool {
		e, ok := waiting(m)
		if ok && !add(e) {
			out.Cursor = strconv.FormatUint(m.Sequence, 10)
			return false
		}
		return true
	})
}

// waiting reads a submitted call; false for one that nobody could answer to.
func waiting(m *jetstream.RawStreamMsg) (message.SubmitEntry, bool) {
	who, err := subject.ParseAgent(m.Subject)
	if err != nil {
		return message.SubmitEntry{}, false
	}
	e := message.SubmitEntry{AgentID: who.Agent, Tool: who.ID, CallID: m.Header.Get(message.HeaderCallID), SubmittedAt: m.Time.UTC().Format(time.RFC3339)}
	var call struct {
		CallID string `json:"callId"`
		ChatID string `json:"chatId"`
	}
	if json.Unmarshal(m.Data, &call) == nil && call.CallID != "" {
		e.CallID, e.ChatID = call.CallID, call.ChatID
	}
	return e, subject.CheckName("callId", e.CallID) == nil
}

func (h *Handler) listDead(ctx context.Context, tenant, agent, cursor string, out *message.SubmitListing, add func(message.SubmitEntry) bool) error {
	keys, err := h.bucket.Keys(ctx, subject.DeadResultKey(tenant, agent, "*"))
	if err != nil {
		return unavailable(err)
	}
	slices.Sort(keys)
	keys = slices.DeleteFunc(keys, func(k string) bool { return k <= cursor })
	full := false
	err = h.bucket.Fetch(ctx, keys, listPage, func(m bucket.Message) bool {
		var d dead
		if m.Marker || json.Unmarshal(m.Data, &d) != nil {
			return true
		}
		if full = !add(d.SubmitEntry); !full {
			out.Cursor = subject.DeadResultKey(tenant, d.AgentID, d.CallID)
		}
		return !full
	})
	if !full {
		out.Cursor = ""
	}
	return unavailable(err)
}

// redrive has a dead call wait for a worker again, as if it had never run.
func (h *Handler) redrive(ctx context.Context, tenant string, req message.SubmitRef) (message.SubmitRedriven, error) {
	out := message.SubmitRedriven{CallID: req.CallID}
	if err := subject.CheckName("agentId", req.AgentID); err != nil {
		return out, err
	}
	if err := subject.CheckName("callId", req.CallID); err != nil {
		return out, err
	}
	key := subject.DeadResultKey(tenant, req.AgentID, req.CallID)
	m, err := h.bucket.Last(ctx, key)
	if err != nil {
		return out, unavailable(err)
	}
	var d dead
	if m.Seq == 0 || m.Marker || json.Unmarshal(m.Data, &d) != nil {
		return out, errcode.New(errcode.NotFound, "agent %q has no dead call %q", req.AgentID, req.CallID)
	}
	if len(d.Request) == 0 {
		return out, errcode.New(errcode.TooLarge, "the arguments of %q were too large to be kept: submit it again", req.CallID)
	}
	// First its end goes, or the next worker would find it; then it waits again; then it is
	// dead no more. Whoever is cut off in between redrives it again.
	run := subject.ResultKey(tenant, req.AgentID, req.CallID)
	switch r, seq, err := h.run(ctx, run); {
	case err != nil:
		return out, err
	case r.ended():
		if _, err := h.bucket.Remove(ctx, run, nats.Header{}, time.Second, seq); err != nil && !errors.Is(err, bucket.ErrRevision) {
			return out, unavailable(err)
		}
	}
	if err := h.submits.Submit(ctx, tenant, req.AgentID, d.Tool, req.CallID, d.Request); err != nil {
		return out, err
	}
	if _, err := h.bucket.Remove(ctx, key, nats.Header{}, time.Second, m.Seq); err != nil && !errors.Is(err, bucket.ErrRevision) {
		return out, unavailable(err)
	}
	return out, nil
}

// hearCancel takes the cancel of a call: of a submitted one that waits, whose worker there is
// none yet, the end is recorded here. Of any other its worker sees to it.
func (h *Handler) hearCancel(m *nats.Msg) {
	who, err := subject.ParseAgent(m.Subject)
	if err != nil || who.ID == "" {
		return
	}
	h.waiters.run(func() {
		ctx, cancel := context.WithTimeout(h.waiters.base, settleTimeout)
		defer cancel()
		if err := h.cancelWaiting(ctx, who); err != nil {
			h.waiters.log.Warn("a waiting call was not cancelled", "tenant", who.Tenant, "agent", who.Agent, "call", who.ID, "err", err)
		}
	})
}

func (h *Handler) cancelWaiting(ctx context.Context, who subject.Agent) error {
	if some, err := h.submits.Waiting(ctx, who.Tenant, who.Agent); err != nil || !some {
		return err
	}
	tool := ""
	err := h.submits.Walk(ctx, who.Tenant, who.Agent, 0, func(m *jetstream.RawStreamMsg) bool {
		if e, ok := waiting(m); ok && e.CallID == who.ID {
			tool = e.Tool
		}
		return tool == ""
	})
	if err != nil || tool == "" {
		return err
	}
	key := subject.ResultKey(who.Tenant, who.Agent, who.ID)
	r, seq, err := h.run(ctx, key)
	if err != nil || r.State != "" && r.RunID != "" || r.ended() {
		return err // its worker sees to it
	}
	cancelled, err := message.Marshal(errcode.New(errcode.Cancelled, "the call was cancelled before it began"))
	if err != nil {
		return err
	}
	r.record = record{CallID: who.ID, State: message.ResultDone, Tool: tool, Error: cancelled}
	_, err = h.putRun(ctx, key, r, seq)
	if errors.Is(err, bucket.ErrRevision) {
		return nil // it has just begun, and its worker heard the cancel too
	}
	return err
}
