package toolstate

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Scratch is the scratch pad of a chat under a namespace. Without a chat every
// operation is invalid_request for the field chatId.
func (c *Client) Scratch(chat, namespace string) tool.State {
	return &scratch{c: c, ref: message.ToolStateRef{ChatID: chat, Namespace: namespace}}
}

type scratch struct {
	c   *Client
	ref message.ToolStateRef
}

// check answers without a request what every request would be told.
func (s *scratch) check() error {
	if s.ref.ChatID == "" {
		return errcode.Field("chatId", "is required: this call belongs to no chat, so it has no scratch pad")
	}
	return nil
}

func (s *scratch) Get(ctx context.Context, key string, v any) (bool, error) {
	got, err := s.get(ctx, key)
	if err != nil || !got.Found {
		return false, err
	}
	if err := json.Unmarshal(got.Value, v); err != nil {
		return true, errcode.Wrap(errcode.InvalidRequest, err, "key %q: the stored value does not fit: %v", key, err)
	}
	return true, nil
}

func (s *scratch) get(ctx context.Context, key string) (message.ToolStateValue, error) {
	if err := s.check(); err != nil {
		return message.ToolStateValue{}, err
	}
	return s.c.Get(ctx, message.ToolStateGet{ToolStateRef: s.ref, Key: key})
}

func (s *scratch) Set(ctx context.Context, key string, value any, opts ...tool.StateOption) error {
	if err := s.check(); err != nil {
		return err
	}
	raw, err := encode("value", value)
	if err != nil {
		return err
	}
	_, err = s.c.Set(ctx, message.ToolStateSet{ToolStateRef: s.ref, Key: key, Value: raw, TTL: life(opts)})
	return err
}

func (s *scratch) Delete(ctx context.Context, key string) (bool, error) {
	if err := s.check(); err != nil {
		return false, err
	}
	out, err := s.c.Delete(ctx, message.ToolStateDelete{ToolStateRef: s.ref, Key: key})
	return out.Deleted, err
}

func (s *scratch) All(ctx context.Context) (map[string]json.RawMessage, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	out, err := s.c.All(ctx, s.ref)
	if err != nil {
		return nil, err
	}
	return out.Data, nil
}

func (s *scratch) Clear(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	_, err := s.c.Clear(ctx, message.ToolStateClear{ToolStateRef: s.ref})
	return err
}

func (s *scratch) Append(ctx context.Context, key string, value any, opts ...tool.StateOption) (int, error) {
	raw, err := encode("value", value)
	if err != nil {
		return 0, err
	}
	return s.append(ctx, key, []json.RawMessage{raw}, opts)
}

func (s *scratch) AppendAll(ctx context.Context, key string, values any, opts ...tool.StateOption) (int, error) {
	raw, err := encode("values", values)
	if err != nil {
		return 0, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, errcode.Field("values", "must be a slice, which %.40s is not", raw)
	}
	if list == nil {
		list = []json.RawMessage{} // of a nil slice
	}
	return s.append(ctx, key, list, opts)
}

func (s *scratch) append(ctx context.Context, key string, values []json.RawMessage, opts []tool.StateOption) (int, error) {
	if err := s.check(); err != nil {
		return 0, err
	}
	out, err := s.c.Append(ctx, message.ToolStateAppend{
		ToolStateRef: s.ref, Key: key, Values: values,
		Unique: tool.NewStateOptions(opts).Unique, TTL: life(opts),
	})
	return out.Length, err
}

func (s *scratch) Increment(ctx context.Context, key string, by float64, opts ...tool.StateOption) (float64, error) {
	if err := s.check(); err != nil {
		return 0, err
	}
	if math.IsNaN(by) || math.IsInf(by, 0) {
		return 0, errcode.Field("by", "%v is not a number that JSON has", by)
	}
	out, err := s.c.Increment(ctx, message.ToolStateIncrement{
		ToolStateRef: s.ref, Key: key, By: json.Number(strconv.FormatFloat(by, 'f', -1, 64)), TTL: life(opts),
	})
	if err != nil {
		return 0, err
	}
	sum, err := out.Value.Float64()
	if err != nil {
		return 0, errcode.Wrap(errcode.Internal, err, "unreadable sum: %v", err)
	}
	return sum, nil
}

// Update is a compare-and-set on the whole document, tried until it hits or ctx
// ends. An error of fn ends it and comes back as it is.
func (s *scratch) Update(ctx context.Context, key string, fn func(old json.RawMessage) (any, error), opts ...tool.StateOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bus.DefaultTimeout)
		defer cancel()
	}
	for attempt := 0; ; attempt++ {
		old, err := s.get(ctx, key)
		if err != nil {
			return err
		}
		if !old.Found {
			old.Value = nil // JSON null would be a value
		}
		fresh, err := fn(old.Value)
		if err != nil {
			return err
		}
		change := message.ToolStateUpdate{ToolStateRef: s.ref, TTL: life(opts), IfRevision: &old.Revision}
		switch {
		case fresh != nil:
			raw, err := encode("value", fresh)
			if err != nil {
				return err
			}
			change.Set = map[string]json.RawMessage{key: raw}
		case old.Found:
			change.Delete = []string{key}
		default:
			return nil // it is missing, and shall be
		}
		if _, err = s.c.Update(ctx, change); !errors.Is(err, errcode.Conflict) {
			return err
		}
		select {
		case <-ctx.Done():
			return errcode.From(ctx.Err())
		case <-time.After(rand.N(time.Millisecond << min(attempt, 6))):
		}
	}
}

func life(opts []tool.StateOption) string {
	if d := tool.NewStateOptions(opts).TTL; d != 0 {
		return d.String()
	}
	return ""
}

func encode(field string, v any) (json.RawMessage, error) {
	raw, err := message.Marshal(v)
	if err != nil {
		return nil, errcode.Field(field, "has no JSON form: %v", err)
	}
	return raw, nil
}
