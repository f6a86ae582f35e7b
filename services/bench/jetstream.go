package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Subjects of the baselines' stream.
const (
	streamName   = "BENCH"
	storeSubject = "bench.store"
	lineSubject  = "bench.line"
	queueSubject = "bench.queue"
)

func stream(ctx context.Context, b *testbed) (jetstream.Stream, error) {
	return b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: streamName, Subjects: []string{storeSubject, lineSubject, queueSubject}, Storage: jetstream.FileStorage,
		MaxMsgsPerSubject: 1000, AllowDirect: true,
	})
}

// publish publishes and waits for the acknowledgement.
func publish(ctx context.Context, b *testbed) (op, error) {
	return publishing(ctx, b, storeSubject, kilobyte())
}

// publishLine is publish for what one line takes.
func publishLine(ctx context.Context, b *testbed) (op, error) {
	return publishing(ctx, b, lineSubject, []byte(payload))
}

func publishing(ctx context.Context, b *testbed, to string, body []byte) (op, error) {
	_, err := stream(ctx, b)
	return timed(func(ctx context.Context, _ int) error {
		_, err := b.js.Publish(ctx, to, body)
		return err
	}), err
}

// lastMsg reads a subject's last message with a direct get.
func lastMsg(ctx context.Context, b *testbed) (op, error) {
	s, err := stream(ctx, b)
	if err != nil {
		return nil, err
	}
	_, err = b.js.Publish(ctx, storeSubject, kilobyte())
	return timed(func(ctx context.Context, _ int) error {
		m, err := s.GetLastMsgForSubject(ctx, storeSubject)
		if err != nil {
			return err
		}
		return sized(m.Data)
	}), err
}

// consume takes from a publish until a durable consumer's handler has the
// message. It is for one caller.
func consume(ctx context.Context, b *testbed) (op, error) {
	s, err := stream(ctx, b)
	if err != nil {
		return nil, err
	}
	c, err := s.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "bench", FilterSubject: queueSubject, DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		return nil, err
	}
	arrived := make(chan time.Time, 1)
	cc, err := c.Consume(func(m jetstream.Msg) {
		arrived <- time.Now()
		_ = m.Ack() // one that is lost comes again, and is counted as the next
	})
	if err != nil {
		return nil, err
	}
	b.atEnd(func() error { cc.Stop(); <-cc.Closed(); return nil })
	body := []byte(payload)
	return func(ctx context.Context, _ int) (time.Duration, error) {
		start := time.Now()
		if _, err := b.js.Publish(ctx, queueSubject, body); err != nil {
			return 0, err
		}
		select {
		case at := <-arrived:
			return at.Sub(start), nil
		case <-ctx.Done():
			return 0, fmt.Errorf("the message did not arrive: %w", ctx.Err())
		}
	}, nil
}
