package cli

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/bus"
)

// connect fails within two seconds when no server answers.
func (a *app) connect(ctx context.Context) (*nats.Conn, error) {
	cfg := bus.Config{Server: a.flags.server, Credentials: a.flags.creds}
	return bus.Connect(ctx, cfg, "toolbus", nats.Timeout(2*time.Second))
}

// ask connects, sends one request that may be sent again without harm, and
// decodes the reply into out.
func (a *app) ask(ctx context.Context, subject string, in, out any) error {
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	return bus.Retry(ctx, nc, subject, in, out)
}

// askAll is ask for a list that comes in pages. cursor is the field of in that says
// where the next page begins; take takes a page and returns its cursor.
func askAll[Page any](ctx context.Context, a *app, subject string, in any, cursor *string, take func(Page) string) error {
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	for {
		var page Page
		if err := bus.Retry(ctx, nc, subject, in, &page); err != nil {
			return err
		}
		next := take(page)
		if next == "" {
			return nil
		}
		if next == *cursor {
			return errcode.New(errcode.Internal, "the list does not move on")
		}
		*cursor = next
	}
}
