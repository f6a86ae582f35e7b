package worker

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
)

// Pulling is done with the three subjects a worker may use, without the client
// library's consumer: that one asks the JetStream API for more than a worker is
// permitted.

const (
	nextSubject = "$JS.API.CONSUMER.MSG.NEXT."
	ackPrefix   = "$JS.ACK."

	// pullLife is how long one request for a message stands on the server.
	pullLife = 5 * time.Second
	// pullGrace is how long beyond that its end is awaited.
	pullGrace = 2 * time.Second
)

// Answers to a delivered message.
var (
	ackDone    = []byte("+ACK")
	ackWorking = []byte("+WPI") // not done yet: count the time from now
	ackNever   = []byte("+TERM")
)

// nak gives a message back, to be delivered again after delay.
func nak(delay time.Duration) []byte {
	if delay <= 0 {
		return []byte("-NAK")
	}
	return []byte(`-NAK {"delay":` + strconv.FormatInt(delay.Nanoseconds(), 10) + `}`)
}

// puller asks one durable consumer for one message at a time.
type puller struct {
	nc  *nats.Conn
	sub *nats.Subscription
	to  string
	req []byte
}

func newPuller(nc *nats.Conn, c message.SubmitsConsumer) (*puller, error) {
	req, err := json.Marshal(struct {
		Batch   int           `json:"batch"`
		Expires time.Duration `json:"expires"` // nanoseconds
	}{1, pullLife})
	if err != nil {
		return nil, err
	}
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, err
	}
	return &puller{nc: nc, sub: sub, to: nextSubject + c.Stream + "." + c.Durable, req: req}, nil
}

type pulled int

const (
	nothing  pulled = iota // none came: ask again
	trouble                // ask again after a pause
	gone                   // the consumer is not there
	received               // a message
)

// next waits for a message, until ctx ends or the request's life does.
func (p *puller) next(ctx context.Context) (*nats.Msg, pulled) {
	if m, err := p.sub.NextMsg(0); err == nil && isDelivered(m) {
		return m, received // of an earlier request, believed to be over
	}
	if err := p.nc.PublishRequest(p.to, p.sub.Subject, p.req); err != nil {
		return nil, trouble
	}
	ctx, cancel := context.WithTimeout(ctx, pullLife+pullGrace)
	defer cancel()
	for {
		m, err := p.sub.NextMsgWithContext(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, nothing
		case errors.Is(err, nats.ErrNoResponders):
			return nil, gone // nobody answers for such a consumer
		case err != nil:
			return nil, trouble
		case isDelivered(m):
			return m, received
		}
		switch m.Header.Get("Status") {
		case "100": // the server shows that it lives
		case "404", "408": // none there, or none within the request's life
			return nil, nothing
		default:
			if strings.Contains(strings.ToLower(m.Header.Get("Description")), "consumer") {
				return nil, gone // deleted, or not a pull consumer
			}
			return nil, trouble
		}
	}
}

// close ends the puller. What was on its way is given back.
func (p *puller) close(ctx context.Context) {
	if p.sub.Drain() != nil {
		return
	}
	for {
		m, err := p.sub.NextMsgWithContext(ctx)
		if err != nil {
			return
		}
		if isDelivered(m) {
			_ = p.nc.Publish(m.Reply, nak(0))
		}
	}
}

func isDelivered(m *nats.Msg) bool { return strings.HasPrefix(m.Reply, ackPrefix) }

// delivered is how often a message was delivered, this time included; 0 when
// its reply subject does not say.
func delivered(m *nats.Msg) int { return int(min(ackNumber(m, 0), math.MaxInt32)) }

// sequence is a message's number in its stream; 0 when its reply subject does
// not say.
func sequence(m *nats.Msg) uint64 { return ackNumber(m, 1) }

// ackNumber is one of the numbers behind the consumer's name in the reply
// subject of a delivered message.
func ackNumber(m *nats.Msg, i int) uint64 {
	t := strings.Split(strings.TrimPrefix(m.Reply, ackPrefix), ".")
	at := 2 // <stream>.<consumer>.<delivered>.<stream sequence>.…
	if len(t) > 7 {
		at = 4 // <domain>.<account>.<stream>.<consumer>.<delivered>.…
	}
	if len(t) <= at+i {
		return 0
	}
	n, err := strconv.ParseUint(t[at+i], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
