package api

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Where wakes wait, in the order in which they are listed. A cursor is one of these
// and a sequence.
const (
	inMailbox = "m"
	onTheWay  = "d" // due: between its timer and its mailbox
	forLater  = "l"
)

// wakes lists wakes that wait, or that were given up.
func (a *API) wakes(ctx context.Context, tenant string, in message.SchedulerWakes) (message.SchedulerWakeList, error) {
	out := message.SchedulerWakeList{Wakes: []message.PendingWake{}}
	if in.AgentID != "" {
		if err := subject.CheckName("agentId", in.AgentID); err != nil {
			return out, err
		}
	}
	places := []string{inMailbox, onTheWay, forLater}
	switch in.State {
	case "", message.WakesPending:
	case message.WakesDead:
		places = places[:1]
	default:
		return out, errcode.Field("state", `must be "pending" or "dead"`)
	}
	from, seq, err := readCursor(in.Cursor)
	if err != nil {
		return out, err
	}
	// One wake may have half a message's bytes, and there is always one.
	left := int(bus.MaxBody(a.nc) * 3 / 8)
	for _, place := range places {
		switch {
		case from != "" && from != place:
			continue
		case from == place:
			from = ""
		case left <= 0:
			out.Cursor = place + "1"
			return out, nil
		}
		list, size, next, err := a.waiting(ctx, tenant, in, place, seq, left)
		if err != nil {
			return out, err
		}
		out.Wakes = append(out.Wakes, list...)
		if next != 0 {
			out.Cursor = place + strconv.FormatUint(next, 10)
			return out, nil
		}
		left, seq = left-size, 1
	}
	return out, nil
}

// waiting lists the wakes in one place, which have size bytes.
func (a *API) waiting(ctx context.Context, tenant string, in message.SchedulerWakes, place string, seq uint64, limit int) (out []message.PendingWake, size int, next uint64, err error) {
	if place == inMailbox {
		list, next, err := a.mail.List(ctx, tenant, in.AgentID, in.State == message.WakesDead, seq, limit)
		for _, w := range list {
			size += w.Size
			out = append(out, message.PendingWake{AgentID: w.Agent, Wake: w.Wake})
		}
		return out, size, next, err
	}
	list, next, err := a.timers.Wakes(ctx, tenant, in.AgentID, place == onTheWay, seq, limit)
	for _, w := range list {
		size += w.Size
		out = append(out, message.PendingWake{AgentID: w.Agent, Wake: w.Wake, Due: w.Due.UTC().Format(time.RFC3339)})
	}
	return out, size, next, err
}

func readCursor(s string) (place string, seq uint64, err error) {
	if s == "" {
		return "", 1, nil
	}
	place = s[:1]
	seq, err = strconv.ParseUint(s[1:], 10, 64)
	if err != nil || !strings.Contains(inMailbox+onTheWay+forLater, place) {
		return "", 0, errcode.Field("cursor", "is none that a list has returned")
	}
	return place, seq, nil
}
