package mailbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
)

// How a request to an agent may end without an answer.
var (
	errAbsent = errors.New("nobody listens")
	errSilent = errors.New("no answer")
	errAway   = errors.New("NATS was away")
)

// A request that met nobody is sent again before that is believed, as
// bus.RequestMsg does.
const (
	absentTries = 3
	absentPause = 10 * time.Millisecond
)

// asker sends requests that may be answered several times: agents say that they
// are at work before they say that they accept. All share one inbox. An agent sees
// where its own answer goes, and may be allowed to publish to every inbox: so what
// tells one request from another cannot be guessed, or an agent could accept the
// wakes of another tenant's.
type asker struct {
	nc    *nats.Conn
	inbox string
	sub   *nats.Subscription

	mu   sync.Mutex
	open map[string]chan *nats.Msg
}

func newAsker(nc *nats.Conn) (*asker, error) {
	a := &asker{nc: nc, inbox: nc.NewInbox(), open: map[string]chan *nats.Msg{}}
	var err error
	a.sub, err = nc.Subscribe(a.inbox+".*", a.deliver)
	return a, err
}

func (a *asker) deliver(m *nats.Msg) {
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	a.mu.Lock()
	ch := a.open[token]
	a.mu.Unlock()
	if ch == nil {
		return // answered, or given up
	}
	select {
	case ch <- m:
	default: // an agent that repeats itself; one interim answer is as good as another
		final := true
		if r, err := read(m); err == nil && r.InProgress {
			final = false
		}
		if final {
			select { // make room: the answer counts
			case <-ch:
			default:
			}
			select {
			case ch <- m:
			default:
			}
		}
	}
}

// ask returns the agent's final answer. errAbsent: nobody listens. errSilent:
// nothing was heard for that long. errAway: the same, but it may be that nothing
// could be heard. Otherwise the error is the agent's own.
func (a *asker) ask(ctx context.Context, to string, data []byte, silence time.Duration) (message.WakeReply, error) {
	ch := make(chan *nats.Msg, 4)
	token := rand.Text() // 128 random bits
	a.mu.Lock()
	a.open[token] = ch
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.open, token)
		a.mu.Unlock()
	}()
	connected := a.nc.Stats().Reconnects
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for try := 1; ; try++ {
		if err := a.nc.PublishRequest(to, a.inbox+"."+token, data); err != nil {
			return message.WakeReply{}, errors.Join(errAway, err)
		}
		r, err := a.wait(ctx, ch, quiet, silence)
		if errors.Is(err, errSilent) && (!a.nc.IsConnected() || a.nc.Stats().Reconnects != connected) {
			err = errAway
		}
		if !errors.Is(err, errAbsent) || try == absentTries {
			return r, err
		}
		select {
		case <-ctx.Done():
			return message.WakeReply{}, ctx.Err()
		case <-time.After(absentPause):
		}
	}
}

func (a *asker) wait(ctx context.Context, ch <-chan *nats.Msg, quiet *time.Timer, silence time.Duration) (message.WakeReply, error) {
	for {
		select {
		case <-ctx.Done():
			return message.WakeReply{}, ctx.Err()
		case <-quiet.C:
			return message.WakeReply{}, errSilent
		case m := <-ch:
			if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
				return message.WakeReply{}, errAbsent
			}
			r, err := read(m)
			if err != nil || !r.InProgress {
				return r, err
			}
			quiet.Reset(silence)
		}
	}
}

func read(m *nats.Msg) (message.WakeReply, error) {
	var r message.WakeReply
	if err := bus.ReplyError(m); err != nil {
		return r, err
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return r, errcode.New(errcode.Internal, "the agent's answer is not a reply to a wake: %v", err)
	}
	return r, nil
}
