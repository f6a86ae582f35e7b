package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// Delete removes one message; one that is gone already is no error.
func (r Reader) Delete(ctx context.Context, seq uint64) error {
	err := r.api(ctx, "MSG.DELETE", fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, seq))
	if errors.Is(err, ErrNone) {
		return nil
	}
	return err
}

// Purge removes every message of a subject.
func (r Reader) Purge(ctx context.Context, subject string) error {
	return r.api(ctx, "PURGE", fmt.Appendf(nil, `{"filter":%q}`, subject))
}

// PurgeBelow removes the messages of a subject below a sequence.
func (r Reader) PurgeBelow(ctx context.Context, subject string, seq uint64) error {
	return r.api(ctx, "PURGE", fmt.Appendf(nil, `{"filter":%q,"seq":%d}`, subject, seq))
}

func (r Reader) api(ctx context.Context, op string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := r.Conn.RequestWithContext(ctx, "$JS.API.STREAM."+op+"."+r.Name, body)
	if err != nil {
		return requestError(err)
	}
	var reply struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return errcode.Wrap(errcode.Internal, err, "unreadable answer of JetStream")
	}
	if e := reply.Error; e != nil && jet.Gone(jetstream.ErrorCode(e.ErrCode), e.Description) {
		return ErrNone
	}
	return reply.Error.err()
}
