package timers

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// LaterWake is a wake that was sent for later.
type LaterWake struct {
	Agent string
	Due   time.Time
	Wake  message.Wake
	Size  int // bytes, as it is stored
}

const wakesPage = 100

// Wakes returns wakes of a tenant or one of its agents that were sent for later, in
// the order they were sent, from a sequence on, until their size reaches limit
// bytes; there is always one if there is any. With due it is those whose time has
// come and that are on their way to their mailbox, otherwise the others. next is
// where to go on, 0 at the end.
func (s *Stream) Wakes(ctx context.Context, tenant, agent string, due bool, seq uint64, limit int) (out []LaterWake, next uint64, err error) {
	if agent == "" {
		agent = "*"
	}
	filter := subject.Timer(tenant, agent, EntryWake, RevisionWake, "*")
	if due {
		filter = subject.Tick(tenant, agent, EntryWake, RevisionWake, "*")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*ioTimeout)
	defer cancel()
	size := 0
	for n := wakesPage; n == wakesPage; {
		msgs, err := jetstreamext.GetBatch(ctx, s.js, subject.StreamTimers, wakesPage,
			jetstreamext.GetBatchSubject(filter), jetstreamext.GetBatchSeq(max(seq, 1)))
		if err != nil {
			return nil, 0, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
		}
		n = 0
		for m, err := range msgs {
			if errors.Is(err, jetstreamext.ErrNoMessages) {
				break
			}
			if err != nil {
				return nil, 0, errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
			}
			n, seq = n+1, m.Sequence+1
			var body Body
			w := LaterWake{Size: len(m.Data)}
			p, err := subject.ParseTick(m.Subject)
			if err != nil || json.Unmarshal(m.Data, &body) != nil || json.Unmarshal(body.Wake, &w.Wake) != nil {
				continue // whoever gets its tick says so
			}
			if size += w.Size; size > limit && len(out) > 0 {
				return out, m.Sequence, nil
			}
			w.Agent, w.Due = p.Agent, time.UnixMilli(body.At)
			out = append(out, w)
		}
	}
	return out, 0, nil
}
