package worker

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// announcer keeps the worker's offer in the catalogue alive.
type announcer struct {
	nc     *nats.Conn
	offer  message.CatalogueAnnounce
	log    telemetry.Logger
	cancel context.CancelFunc
	done   chan struct{}
}

// startAnnouncer announces once before it returns, if the registry answers, and
// goes on in the background.
func startAnnouncer(ctx context.Context, nc *nats.Conn, id string, tools []message.ToolDefinition, reconnected <-chan struct{}, log telemetry.Logger) *announcer {
	a := &announcer{nc: nc, offer: message.CatalogueAnnounce{WorkerID: id, Tools: tools}, log: log, done: make(chan struct{})}
	loopCtx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	next := a.announce(ctx, time.Second)
	go a.loop(loopCtx, next, reconnected)
	return a
}

func (a *announcer) loop(ctx context.Context, next time.Duration, reconnected <-chan struct{}) {
	defer close(a.done)
	for {
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-reconnected:
			t.Stop()
		case <-t.C:
		}
		next = a.announce(ctx, 5*time.Second)
	}
}

// announce sends the offer and returns when to send it again.
func (a *announcer) announce(ctx context.Context, timeout time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reply message.CatalogueAnnounced
	if err := bus.Request(ctx, a.nc, subject.Catalogue("announce"), a.offer, &reply); err != nil {
		a.log.Debug("tools not announced yet", "err", err)
		return 500 * time.Millisecond
	}
	for _, w := range reply.Warnings {
		a.log.Warn("catalogue", "warning", w)
	}
	if reply.TTLMs <= 0 {
		return 5 * time.Second
	}
	return max(time.Duration(reply.TTLMs)*time.Millisecond/3, 100*time.Millisecond)
}

// stop takes the offer out of the catalogue.
func (a *announcer) stop(ctx context.Context) error {
	a.cancel()
	<-a.done
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	leave := message.CatalogueAnnounce{WorkerID: a.offer.WorkerID, Tools: []message.ToolDefinition{}}
	if err := bus.Request(ctx, a.nc, subject.Catalogue("announce"), leave, nil); err != nil {
		a.log.Debug("catalogue entry left to expire", "err", err)
	}
	return nil
}
