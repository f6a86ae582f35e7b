package timers

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	pullWait = 20 * time.Second // of one pull request
	pullBeat = 2 * time.Second  // how often the server says that it knows the request
	retryIn  = 500 * time.Millisecond
)

// Consume calls handle for each tick, with at most parallel under way: one is
// taken from the stream only when there is a free slot for it. A handle that is
// going to wait calls yield, which frees its slot; it may do so twice. Consume
// returns after ctx has ended and the last handle has returned. handle
// acknowledges.
func (s *Stream) Consume(ctx context.Context, parallel int, handle func(m jetstream.Msg, yield func())) {
	slots := make(chan struct{}, parallel)
	var handles sync.WaitGroup
	defer handles.Wait()
	var cons jetstream.Consumer
	for ctx.Err() == nil {
		if cons == nil {
			var err error
			if cons, err = s.makeConsumer(ctx); err != nil {
				cons = nil
				pause(ctx, retryIn)
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		free := 1
		for more := true; more && free < parallel; {
			select {
			case slots <- struct{}{}:
				free++
			default:
				more = false
			}
		}
		ok := s.pull(ctx, cons, free, func(m jetstream.Msg) {
			free--
			handles.Go(func() {
				yield := sync.OnceFunc(func() { <-slots })
				defer yield()
				handle(m, yield)
			})
		})
		for range free {
			<-slots
		}
		if !ok {
			cons = nil // it may be gone: make it again
			pause(ctx, retryIn)
		}
	}
}

// PullAgain makes a pull request under way begin anew: the server forgets it when
// the connection breaks.
func (s *Stream) PullAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endPull != nil {
		s.endPull()
	}
}

// pull asks for up to n ticks and hands each over as it comes. It returns false
// when there was trouble.
func (s *Stream) pull(ctx context.Context, cons jetstream.Consumer, n int, take func(jetstream.Msg)) bool {
	ctx, cancel := context.WithTimeout(ctx, pullWait)
	defer cancel()
	s.mu.Lock()
	s.endPull = cancel
	s.mu.Unlock()
	batch, err := cons.Fetch(n, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(pullBeat))
	if err != nil {
		return ctx.Err() != nil
	}
	for m := range batch.Messages() {
		take(m)
	}
	return batch.Error() == nil || ctx.Err() != nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
