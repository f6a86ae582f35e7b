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
// at once. It tries again while the cluster has no leader yet, for a minute.
func Ensure(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, ensureLimit)
	defer cancel()
	var reason error // why it is not there yet
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		st, err := js.CreateOrUpdateStream(try, cfg)
		cancel()
		if err == nil {
			return st, nil
		}
		var api *jetstream.APIError
		if errors.As(err, &api) && !passing(api) || errors.Is(err, nats.ErrConnectionClosed) {
			return nil, errcode.Wrap(errcode.Unavailable, err, "stream %s cannot be made: %v", cfg.Name, err)
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, fmt.Errorf("stream %s: %w", cfg.Name, errors.Join(reason, ctx.Err()))
			}
			return nil, errcode.Wrap(errcode.Unavailable, errors.Join(reason, ctx.Err()), "stream %s cannot be made: %v", cfg.Name, reason)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// ensureLimit is how long Ensure tries: for ever would hide the reason.
const ensureLimit = time.Minute

// passing tells whether JetStream may answer otherwise later.
func passing(e *jetstream.APIError) bool {
	switch e.ErrorCode {
	case jetstream.JSErrCodeStreamNameInUse: // another replica was faster: the next try updates
		return true
	case codeInvalidConfig, codeNoStorage, codeNoMemory: // sent with code 500
		return false
	}
	return e.Code >= 500 || e.Code == 404
}

const (
	codeInvalidConfig = 10052 // the stream's configuration can never be had
	// The server has not got what the stream reserves. Waiting for somebody to
	// make room would hide that this is needed.
	codeNoStorage = 10047
	codeNoMemory  = 10028
)

// Gone tells from an answer to the removal of a message whether it is not there
// any more. Which of two codes says so depends on how far another's removal of
// the same message has got.
func Gone(code jetstream.ErrorCode, description string) bool {
	switch code {
	case codeNoSuchSequence:
		return true
	case codeDeleteFailed: // of whatever reason
		return description == "no message found" || description == "deleted message"
	}
	return false
}

const (
	codeNoSuchSequence = 10043
	codeDeleteFailed   = 10057
)

// codeSequenceBusy says that another write of the same subject is under way,
// whose outcome the expected sequence cannot know.
const codeSequenceBusy = 10164

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
	case errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == codeSequenceBusy):
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
