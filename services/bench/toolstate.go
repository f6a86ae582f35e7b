package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

const (
	maxCallers    = 64
	appendsPerDoc = 16
)

func kvBucket(ctx context.Context, b *testbed) (jetstream.KeyValue, error) {
	return b.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "bench", Storage: jetstream.FileStorage})
}

func kvGet(ctx context.Context, b *testbed) (op, error) {
	kv, err := kvBucket(ctx, b)
	if err != nil {
		return nil, err
	}
	keys := make([]string, maxCallers)
	for i := range keys {
		keys[i] = fmt.Sprintf("get.%d", i)
		if _, err := kv.PutString(ctx, keys[i], payload); err != nil {
			return nil, err
		}
	}
	return timed(func(ctx context.Context, caller int) error {
		e, err := kv.Get(ctx, keys[caller])
		if err == nil && len(e.Value()) != len(payload) {
			err = fmt.Errorf("got %d bytes", len(e.Value()))
		}
		return err
	}), nil
}

func stateGet(ctx context.Context, b *testbed) (op, error) {
	c := toolstate.New(b.nc, tenant)
	gets := make([]message.ToolStateGet, maxCallers)
	for i := range gets {
		ref := message.ToolStateRef{ChatID: fmt.Sprintf("get-%d", i), Namespace: "bench"}
		gets[i] = message.ToolStateGet{ToolStateRef: ref, Key: "k"}
		if _, err := c.Set(ctx, message.ToolStateSet{ToolStateRef: ref, Key: "k", Value: value()}); err != nil {
			return nil, err
		}
	}
	return timed(func(ctx context.Context, caller int) error {
		v, err := c.Get(ctx, gets[caller])
		if err == nil && len(v.Value) != len(value()) {
			err = fmt.Errorf("got %+v", v)
		}
		return err
	}), nil
}

// kvUpdate is for one caller.
func kvUpdate(ctx context.Context, b *testbed) (op, error) {
	kv, err := kvBucket(ctx, b)
	if err != nil {
		return nil, err
	}
	rev, err := kv.PutString(ctx, "update", payload)
	if err != nil {
		return nil, err
	}
	body := []byte(payload)
	return timed(func(ctx context.Context, _ int) error {
		r, err := kv.Update(ctx, "update", body, rev)
		if errors.Is(err, jetstream.ErrKeyExists) { // another row has updated it meanwhile
			e, gerr := kv.Get(ctx, "update")
			if gerr != nil {
				return gerr
			}
			r, err = e.Revision(), nil
		}
		rev = r
		return err
	}), nil
}

func stateSet(_ context.Context, b *testbed) (op, error) {
	c := toolstate.New(b.nc, tenant)
	return timed(func(ctx context.Context, _ int) error {
		_, err := c.Set(ctx, message.ToolStateSet{
			ToolStateRef: message.ToolStateRef{ChatID: "set", Namespace: "bench"}, Key: "k", Value: value(),
		})
		return err
	}), nil
}

func stateAppend(_ context.Context, b *testbed) (op, error) {
	c := toolstate.New(b.nc, tenant)
	element := []json.RawMessage{json.RawMessage(`"00340434161094042557"`)}
	n := 0
	return timed(func(ctx context.Context, _ int) error {
		r, err := c.Append(ctx, message.ToolStateAppend{
			ToolStateRef: message.ToolStateRef{ChatID: fmt.Sprintf("append-%d", n/appendsPerDoc), Namespace: "bench"}, Key: "codes", Values: element,
		})
		if want := n%appendsPerDoc + 1; err == nil && r.Length != want {
			err = fmt.Errorf("length %d after %d appends", r.Length, want)
		}
		n++
		return err
	}), nil
}

const togetherPerDoc = 256 // appends; a document has a limit

// stateAppendTogether appends to the same document as all other callers.
func stateAppendTogether(name string) setup {
	return func(_ context.Context, b *testbed) (op, error) {
		c := toolstate.New(b.nc, tenant)
		element := []json.RawMessage{json.RawMessage(`"00340434161094042557"`)}
		var n atomic.Int64
		return timed(func(ctx context.Context, _ int) error {
			doc := (n.Add(1) - 1) / togetherPerDoc
			r, err := c.Append(ctx, message.ToolStateAppend{
				ToolStateRef: message.ToolStateRef{ChatID: fmt.Sprintf("%s-%d", name, doc), Namespace: "bench"}, Key: "codes", Values: element,
			})
			if err == nil && (r.Length < 1 || r.Length > togetherPerDoc) {
				err = fmt.Errorf("length %d", r.Length)
			}
			return err
		}), nil
	}
}

// value is the payload as JSON.
func value() json.RawMessage { return json.RawMessage(`"` + payload + `"`) }
