// Package jet is what the owners of JetStream streams share: making a stream or
// bucket idempotently, compare-and-set publishes, and reading last values
// without a consumer.
package jet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Ensure creates the stream, or updates it to cfg. Several replicas may do so
// at once. It tries again while the cluster has no leader yet.
func Ensure(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		st, err := js.CreateOrUpdateStream(try, cfg)
		cancel()
		if err == nil {
			return st, nil
		}
		var api *jetstream.APIError
		if errors.As(err, &api) && !passing(api) {
			return nil, fmt.Errorf("stream %s: %w", cfg.Name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("stream %s: %w", cfg.Name, errors.Join(err, ctx.Err()))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// passing tells whether JetStream may answer otherwise later.
func passing(e *jetstream.APIError) bool {
	switch e.ErrorCode {
	case jetstream.JSErrCodeStreamNameInUse: // another replica was faster: the next try updates
		return true
	case codeInvalidConfig: // sent with code 500
		return false
	}
	return e.Code >= 500 || e.Code == 404
}

// codeInvalidConfig says that a stream's configuration can never be had.
const codeInvalidConfig = 10052

// BucketStream is the stream under the KV bucket name: what nats.go's
// CreateKeyValue makes, with history 1, plus what a bucket's own configuration
// cannot say. Tune the result before Ensure.
func BucketStream(bucket string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:               "KV_" + bucket,
		Subjects:           []string{"$KV." + bucket + ".>"},
		MaxMsgsPerSubject:  1,
		MaxMsgSize:         -1,
		MaxBytes:           -1,
		MaxMsgs:            -1,
		MaxConsumers:       -1,
		Discard:            jetstream.DiscardNew,
		Storage:            jetstream.FileStorage,
		Replicas:           max(replicas, 1),
		AllowRollup:        true,
		DenyDelete:         true,
		AllowDirect:        true,
		AllowMsgTTL:        true,
		AllowAtomicPublish: true,
		Duplicates:         2 * time.Minute,
	}
}

// KVSubject is the subject of a bucket's key.
func KVSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// ErrRevision is a compare-and-set that missed.
var ErrRevision = errors.New("another revision stands")

// Put publishes m and returns its sequence. expect is the sequence the subject's
// last message must have, 0 for none; a miss is ErrRevision.
func Put(ctx context.Context, js jetstream.JetStream, m *nats.Msg, expect uint64) (uint64, error) {
	ack, err := js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(expect), jetstream.WithRetryAttempts(1))
	if err != nil {
		return 0, PublishError(err)
	}
	return ack.Sequence, nil
}

// PublishError maps a failed publish to ErrRevision or an error with a code.
func PublishError(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
		return ErrRevision
	case errors.As(err, &api) && (api.ErrorCode == 10077 || api.ErrorCode == 10054): // over the stream's or the server's size
		return errcode.Wrap(errcode.TooLarge, err, "the stream is full: %v", err)
	case errors.Is(err, nats.ErrMaxPayload):
		return errcode.Wrap(errcode.TooLarge, err, "larger than a message may be")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	}
	return errcode.Wrap(errcode.Unavailable, err, "JetStream: %v", err)
}
