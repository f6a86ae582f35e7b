package worker

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
)

func TestReadCallRefusesWhatIsMalformed(t *testing.T) {
	for _, c := range []struct{ body, field string }{
		{`{"callId":"a.b"}`, "callId"},
		{`{"callId":5}`, "callId"},
		{`{"chatId":"a\u0000b"}`, "chatId"},
		{"{\"chatId\":\"a\xffb\"}", "chatId"},
		{`{"chatId":"a\ud800b"}`, "chatId"},
		{`{"arguments":{"code":"\ud800"}}`, "arguments"},
		{`{"chatId":"` + strings.Repeat("x", 257) + `"}`, "chatId"},
		{`{"timeoutMs":-1}`, "timeoutMs"},
		{`{"timeoutMs":"5s"}`, "timeoutMs"},
		{`{"idempotencyKey":"a\u0000b"}`, "idempotencyKey"},
	} {
		_, _, err := readCall([]byte(c.body), nil)
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details == nil || e.Details.Fields[0].Field != c.field {
			t.Errorf("%s: got %v, want invalid_request on %s", c.body, err, c.field)
		}
	}
	for _, body := range []string{`[]`, `"x"`, `{`, `nonsense`} {
		if _, _, err := readCall([]byte(body), nil); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: got %v", body, err)
		}
	}
	for depth, code := range map[string]errcode.Code{"0": "", "16": "", "17": errcode.InvalidRequest, "-1": errcode.InvalidRequest, "x": errcode.InvalidRequest} {
		if _, _, err := readCall(nil, nats.Header{message.HeaderDepth: {depth}}); errcode.Of(err) != code {
			t.Errorf("depth %s: got %v", depth, err)
		}
	}
	if req, _, err := readCall(nil, nil); err != nil || req.CallID == "" {
		t.Errorf("an empty body is a call without arguments: %+v, %v", req, err)
	}
}

func TestACallersTimeoutOnlyShortens(t *testing.T) {
	for ms, want := range map[int64]time.Duration{
		0: time.Minute, 1: time.Millisecond, 59_999: 59_999 * time.Millisecond, 60_000: time.Minute, 60_001: time.Minute,
		9_223_372_036_855: time.Minute, 18_446_744_073_710: time.Minute, math.MaxInt64: time.Minute, // as nanoseconds they wrap around
	} {
		if got := shorter(time.Minute, ms); got != want {
			t.Errorf("timeoutMs %d: %s, want %s", ms, got, want)
		}
	}
}

func FuzzReadCall(f *testing.F) {
	f.Add([]byte(`{"callId":"a","arguments":{"x":1},"timeoutMs":5}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		req, _, err := readCall(b, nil)
		if err == nil && req.CallID == "" {
			t.Fatal("a call without an id")
		}
		if err != nil && !errors.Is(err, errcode.InvalidRequest) {
			t.Fatalf("%v", err)
		}
	})
}

func TestCancelEndsEveryCallOfAnID(t *testing.T) {
	var r running
	k := callKey{"acme", "support", "c1"}
	var calls []context.Context
	var entries []*entry
	for range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		e := &entry{key: k, cancel: cancel}
		if err := r.enter(e); err != nil {
			t.Fatal(err)
		}
		calls, entries = append(calls, ctx), append(entries, e)
	}
	r.leave(entries[1])
	r.cancel(callKey{"other", "support", "c1"})
	if calls[0].Err() != nil {
		t.Fatal("another tenant's cancel ended the call")
	}
	r.cancel(k)
	for i, ctx := range calls {
		if cancelled := errors.Is(context.Cause(ctx), errcode.Cancelled); cancelled != (i != 1) {
			t.Errorf("call %d: cause %v", i, context.Cause(ctx))
		}
	}
	r.leave(entries[0])
	r.leave(entries[2])
	if len(r.calls) != 0 {
		t.Errorf("%d calls left", len(r.calls))
	}
	stopping := errcode.New(errcode.Unavailable, "stopping")
	if err := r.enter(entries[1]); err != nil {
		t.Fatal(err)
	}
	r.stop(stopping)
	if !errors.Is(context.Cause(calls[1]), errcode.Unavailable) {
		t.Errorf("cause %v", context.Cause(calls[1]))
	}
	if err := r.enter(entries[0]); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("a call after the end: %v", err)
	}
}

func TestNewRefusesToolsThatCannotWork(t *testing.T) {
	ok := tool.New("a", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.OK(""), nil })
	for name, tools := range map[string][]tool.Tool{
		"none":       {},
		"twice":      {ok, ok},
		"bad schema": {raw{tool.Definition{Name: "b", Description: "x", InputSchema: []byte(`{"type":"object","$ref":"http://x/y"}`)}}},
		"bad name":   {raw{tool.Definition{Name: "b.c", Description: "x", InputSchema: []byte(`{"type":"object"}`)}}},
	} {
		if _, err := New(DefaultConfig(), tools, telemetry.Discard(), nil); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	w, err := New(DefaultConfig(), []tool.Tool{ok}, telemetry.Discard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Ready(t.Context()); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("not started, and yet ready: %v", err)
	}
	for range 2 {
		if err := w.Stop(t.Context()); err != nil {
			t.Errorf("Stop before Start: %v", err)
		}
	}
}

type raw struct{ def tool.Definition }

func (r raw) Definition() tool.Definition { return r.def }
func (r raw) Execute(context.Context, *tool.Call) (tool.Result, error) {
	return tool.OK(""), nil
}
