package bucket

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// codeBatchesInFlight says that the stream has as many batches under way as it
// takes (50).
const codeBatchesInFlight = 10210

// Write is one of the writes of a WriteAll. Each needs a key of its own.
type Write struct {
	Key    string
	Header nats.Header   // may be nil
	Data   []byte        // the value, unless it is removed
	Remove bool          // put a marker in the value's place
	TTL    time.Duration // 0: for ever
	Expect uint64        // the sequence of the key's last message, 0: none
}

// WriteAll does all writes, at most 1,000, or none. When one's Expect is not met, it is
// ErrRevision. A single write costs what Put costs; more are an atomic batch,
// for which the server syncs its file. As with Put, unavailable or the end of
// ctx leave open whether it was done.
func (b *Bucket) WriteAll(ctx context.Context, writes []Write) error {
	msgs := make([]*nats.Msg, len(writes))
	for i, w := range writes {
		if w.Remove {
			if w.Header == nil {
				w.Header = nats.Header{}
			}
			markRemoved(w.Header)
			w.Data = nil
		}
		msgs[i] = b.msg(w.Key, w.Header, w.Data, w.TTL)
	}
	if len(msgs) == 1 {
		_, err := jet.Put(ctx, b.js, msgs[0], writes[0].Expect)
		return err
	}
	for i, w := range writes {
		msgs[i].Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(w.Expect, 10))
	}
	// Without an acknowledgement of the first message: what is wrong with any is
	// told at the end, and waiting for it took two to three times as long as the
	// rest, during which others may write the same keys.
	_, err := jetstreamext.PublishMsgBatch(ctx, b.js, msgs, jetstreamext.BatchFlowControl{})
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &api) && api.ErrorCode == codeBatchesInFlight:
		return errcode.Wrap(errcode.Overloaded, err, "too many writes of several keys at once")
	}
	return jet.PublishError(err)
}
