package tooltest_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

type echoArgs struct {
	Text string `json:"text"`
	Mode string `json:"mode" enum:"plain,loud" default:"plain"`
}

// echo answers with everything its call says.
var echo = tool.New("echo", "Repeats a text.", func(_ context.Context, call *tool.Call, in echoArgs) (tool.Result, error) {
	call.Log.Info("echoing", "mode", in.Mode)
	call.Progress(map[string]int{"percent": 50})
	return tool.Data(map[string]any{
		"text": in.Text, "mode": in.Mode, "tenant": call.Tenant, "agent": call.Agent, "chat": call.Chat, "call": call.ID,
		"settings": call.Settings, "now": call.Now().UTC().Format(time.RFC3339),
	}), nil
})

func TestCallIsLikeAWorkers(t *testing.T) {
	env := tooltest.New(t, echo)
	env.SetNow(time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC))
	env.SetSettings("support", "echo", map[string]string{"host": "a"})

	res, err := env.Call(t.Context(), "echo", echoArgs{Text: "A->B", Mode: "loud"})
	want := `{"agent":"support","call":"call-1","chat":"chat-1","mode":"loud","now":"2026-03-29T01:00:00Z","settings":{"host":"a"},"tenant":"acme","text":"A->B"}`
	if err != nil || !res.Success || res.Content != want || string(res.Data) != want {
		t.Errorf("got  %+v, %v\nwant %s", res, err, want)
	}

	env.Advance(time.Hour)
	res, err = env.Call(t.Context(), "echo", map[string]string{"text": "x"}, tooltest.Tenant("other"), tooltest.Agent("a2"),
		tooltest.Chat("c/2"), tooltest.CallID("mine"), tooltest.Settings(map[string]int{"n": 1}))
	want = `{"agent":"a2","call":"mine","chat":"c/2","mode":"plain","now":"2026-03-29T02:00:00Z","settings":{"n":1},"tenant":"other","text":"x"}`
	if err != nil || res.Content != want {
		t.Errorf("got  %s, %v\nwant %s", res.Content, err, want)
	}

	if p := env.Progress(); len(p) != 2 || p[0].Tool != "echo" || string(p[0].Value) != `{"percent":50}` || p[1].Chat != "c/2" {
		t.Errorf("progress %+v", p)
	}
	if l := env.Logs(); len(l) != 2 || l[0].Level != "info" || l[0].Msg != "echoing" || l[0].KeyVals[1] != "loud" || l[1].CallID != "mine" {
		t.Errorf("logs %+v", l)
	}
}

func TestCallErrors(t *testing.T) {
	panics := tool.New("panics", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { panic("boom") })
	fails := tool.New("fails", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Result{}, errors.New("no disk")
	})
	typed := tool.New("typed", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Result{}, errcode.New(errcode.QuotaExceeded, "full")
	})
	waits := tool.New("waits", "x", func(ctx context.Context, _ *tool.Call, _ struct{}) (tool.Result, error) {
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}, tool.Timeout(20*time.Millisecond))
	broken := tool.New("broken", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Result{Success: true, Data: json.RawMessage(`{`)}, nil
	})
	recurses := tool.New("recurses", "x", func(ctx context.Context, call *tool.Call, _ struct{}) (tool.Result, error) {
		return call.Call(ctx, "recurses", struct{}{})
	})
	env := tooltest.New(t, echo, panics, fails, typed, waits, broken, recurses)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		tool string
		args any
		opts []tooltest.Option
		code errcode.Code
		text string
	}{
		{tool: "nosuch", code: errcode.Unavailable, text: "nosuch"},
		{tool: "echo", code: errcode.InvalidArguments, text: "text"},
		{tool: "echo", args: json.RawMessage(`{"text":1,"mod":2}`), code: errcode.InvalidArguments, text: "mod"},
		{tool: "echo", args: json.RawMessage(`{`), code: errcode.InvalidArguments},
		{tool: "echo", args: func() {}, code: errcode.InvalidRequest, text: "JSON"},
		{tool: "echo", args: echoArgs{}, opts: []tooltest.Option{tooltest.Tenant("a.b")}, code: errcode.InvalidRequest, text: "tenant"},
		{tool: "echo", args: echoArgs{}, opts: []tooltest.Option{tooltest.Agent("*")}, code: errcode.InvalidRequest, text: "agent"},
		{tool: "echo", args: echoArgs{}, opts: []tooltest.Option{tooltest.Chat("a\x00")}, code: errcode.InvalidRequest, text: "chatId"},
		{tool: "echo", args: echoArgs{}, opts: []tooltest.Option{tooltest.CallID("a b")}, code: errcode.InvalidRequest, text: "callId"},
		{tool: "panics", code: errcode.Internal, text: "boom"},
		{tool: "fails", code: errcode.Internal, text: "no disk"},
		{tool: "typed", code: errcode.QuotaExceeded, text: "full"},
		{tool: "waits", code: errcode.Timeout},
		{tool: "waits", ctx: gone, code: errcode.Cancelled},
		{tool: "broken", code: errcode.Internal, text: "JSON"},
		{tool: "recurses", code: errcode.InvalidRequest, text: "deep"},
	} {
		ctx := c.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		res, err := env.Call(ctx, c.tool, c.args, c.opts...)
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s(%v): want %s about %q, got %+v, %v", c.tool, c.args, c.code, c.text, res, err)
		}
	}
}

func TestToolsCallTools(t *testing.T) {
	inner := tool.New("inner", "x", func(_ context.Context, call *tool.Call, in echoArgs) (tool.Result, error) {
		return tool.Data([]string{call.Tenant, call.Agent, call.Chat, call.ID, in.Mode, string(call.Settings)}), nil
	}, tool.Internal())
	outer := tool.New("outer", "x", func(ctx context.Context, call *tool.Call, _ struct{}) (tool.Result, error) {
		return call.Call(ctx, "inner", map[string]string{"text": "x"})
	})
	env := tooltest.New(t, outer, inner)
	res, err := env.Call(t.Context(), "outer", nil, tooltest.Tenant("t2"), tooltest.Chat("c9"), tooltest.Settings(map[string]int{"secret": 1}))
	if want := `["t2","support","c9","call-2","plain","{}"]`; err != nil || res.Content != want {
		t.Errorf("got %+v, %v; want %s", res, err, want)
	}
}

// fatal records a Fatal without ending this test.
type fatal struct {
	testing.TB
	text string
}

func (f *fatal) Helper()           {}
func (f *fatal) Fatal(args ...any) { f.text = args[0].(error).Error(); panic(f) }

type raw struct{ def tool.Definition }

func (r raw) Definition() tool.Definition { return r.def }
func (r raw) Execute(context.Context, *tool.Call) (tool.Result, error) {
	return tool.OK("ok"), nil
}

func TestNewRefusesWhatAWorkerRefuses(t *testing.T) {
	for name, tools := range map[string][]tool.Tool{
		"twice":              {echo, echo},
		`"type": "object"`:   {raw{tool.Definition{Name: "x", Description: "x", InputSchema: json.RawMessage(`{}`)}}},
		"name":               {raw{tool.Definition{Description: "x"}}},
		"inputSchema":        {raw{tool.Definition{Name: "x", Description: "x", InputSchema: json.RawMessage(`{"type":"object","properties":5}`)}}},
		"description: is re": {raw{tool.Definition{Name: "x"}}},
	} {
		f := &fatal{TB: t}
		func() {
			defer func() {
				if recover() != f {
					t.Errorf("%s: hosted", name)
				}
			}()
			tooltest.New(f, tools...)
		}()
		if !strings.Contains(f.text, name) {
			t.Errorf("want %q in %q", name, f.text)
		}
	}
}

func TestFiles(t *testing.T) {
	env := tooltest.New(t)
	env.SetNow(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	ctx, f := t.Context(), env.Files()
	if _, _, ok, err := f.Read(ctx, "a.txt"); ok || err != nil {
		t.Error(ok, err)
	}
	if i, err := f.Create(ctx, "a.txt", []byte("one")); err != nil || i.Size != 3 || i.Revision == 0 || !i.Modified.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v %v", i, err)
	}
	if _, err := f.Create(ctx, "a.txt", nil); !errors.Is(err, errcode.Conflict) {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := f.Append(ctx, "log", []byte("line\n")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if b, i, ok, err := f.Read(ctx, "log"); string(b) != strings.Repeat("line\n", 50) || i.Size != 250 || !ok || err != nil {
		t.Errorf("%q %+v %v %v", b, i, ok, err)
	}
	if l, err := f.List(ctx, ""); err != nil || len(l) != 2 || l[0].Path != "a.txt" || l[1].Path != "log" {
		t.Errorf("%+v %v", l, err)
	}
	if l, err := f.List(ctx, "/"); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("%+v %v", l, err)
	}
	if i, ok, err := f.Stat(ctx, "log"); i.Size != 250 || !ok || err != nil {
		t.Errorf("%+v %v %v", i, ok, err)
	}
	if ok, err := f.Delete(ctx, "log"); !ok || err != nil {
		t.Error(ok, err)
	}
	if _, err := f.Write(ctx, "../x", nil); !errors.Is(err, errcode.InvalidRequest) {
		t.Error(err)
	}
}
