package tooltest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
)

// recorder lets a check fail without failing the test.
type recorder struct {
	mu     sync.Mutex
	faults []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// faultsOf runs one check and lists what it found.
func faultsOf(t *testing.T, check string, tl tool.Tool, given []Given) string {
	t.Helper()
	s, r := newSuite(t, tl, given), &recorder{}
	for _, c := range checks {
		if c.name == check {
			c.run(r, s)
			return strings.Join(r.faults, "\n")
		}
	}
	t.Fatalf("there is no check %s", check)
	return ""
}

type textArgs struct {
	Text string `json:"text"`
	N    int    `json:"n,omitempty"`
}

// free is a tool without the safety of tool.New.
type free struct {
	def     tool.Definition
	execute func(ctx context.Context, call *tool.Call) (tool.Result, error)
}

func (f free) Definition() tool.Definition { return f.def }
func (f free) Execute(ctx context.Context, call *tool.Call) (tool.Result, error) {
	return f.execute(ctx, call)
}

func schemaTool(schema string, fn func(context.Context, *tool.Call) (tool.Result, error)) tool.Tool {
	return free{tool.Definition{Name: "x", Description: "x", InputSchema: json.RawMessage(schema)}, fn}
}

func textTool(fn func(context.Context, *tool.Call, textArgs) (tool.Result, error)) tool.Tool {
	return tool.New("x", "x", fn)
}

func says(r tool.Result) tool.Tool {
	return textTool(func(context.Context, *tool.Call, textArgs) (tool.Result, error) { return r, nil })
}

const textSchema = `{"type":"object","additionalProperties":false,"required":["text"],"properties":{"text":{"type":"string"}}}`

func TestConformanceCatches(t *testing.T) {
	// Tools that ignore their ctx end here, so that none outlives the test.
	over := make(chan struct{})
	defer close(over)

	var changes atomic.Int64
	var running atomic.Int32
	for name, c := range map[string]struct {
		tool  tool.Tool
		given []Given
		check string // that must fail
		text  string // part of its report
	}{
		"no description": {
			tool:  free{tool.Definition{Name: "x", InputSchema: json.RawMessage(textSchema)}, nil},
			check: "Definition", text: "description",
		},
		"a schema that does not compile": {
			tool:  schemaTool(`{"type":"object","properties":{"a":{"type":"nonsense"}}}`, nil),
			check: "Definition", text: "does not compile",
		},
		"a definition that changes": {
			tool:  changing{&changes},
			check: "Definition", text: "changes",
		},
		"panics on what the schema refuses": {
			tool: schemaTool(textSchema, func(_ context.Context, call *tool.Call) (tool.Result, error) {
				var m map[string]any
				_ = json.Unmarshal(call.Arguments, &m)
				return tool.OK("%s", m["text"].(string)), nil
			}),
			check: "BadArguments", text: "panicked",
		},
		"drops unknown arguments": {
			tool: schemaTool(`{"type":"object","properties":{"text":{"type":"string"}}}`, func(context.Context, *tool.Call) (tool.Result, error) {
				return tool.OK("ok"), nil
			}),
			check: "BadArguments", text: "dropped in silence",
		},
		"panics on odd text": {
			tool: textTool(func(_ context.Context, _ *tool.Call, in textArgs) (tool.Result, error) {
				return tool.OK("first %c", in.Text[0]), nil
			}),
			check: "OddText", text: "panicked",
		},
		"uses text as a format": {
			tool: textTool(func(_ context.Context, _ *tool.Call, in textArgs) (tool.Result, error) {
				return tool.OK(in.Text+": %d", in.N), nil
			}),
			check: "OddText", text: "format",
		},
		"says nothing":               {tool: says(tool.Result{Success: true}), check: "Result", text: "says nothing"},
		"fails without why":          {tool: says(tool.Result{}), check: "Result", text: "does not say why"},
		"succeeds with an error":     {tool: says(tool.Result{Success: true, Content: "x", ErrorMessage: "x"}), check: "Result", text: "with an error message"},
		"content is not UTF-8":       {tool: says(tool.OK("\xff")), check: "Result", text: "content is not valid UTF-8"},
		"error message is not UTF-8": {tool: says(tool.Fail("\xff")), check: "Result", text: "error message is not valid UTF-8"},
		"data is not JSON":           {tool: says(tool.Result{Success: true, Data: json.RawMessage("{")}), check: "Result", text: "not valid JSON"},
		"never has a result": {
			tool: textTool(func(context.Context, *tool.Call, textArgs) (tool.Result, error) {
				return tool.Result{}, errcode.New(errcode.Unavailable, "no database")
			}),
			check: "Result", text: "no database",
		},
		"example does not fit": {tool: says(tool.OK("x")), given: []Given{GivenArguments(map[string]int{"text": 1})}, check: "Result", text: "do not fit"},
		"panics without a chat": {
			tool: textTool(func(_ context.Context, call *tool.Call, _ textArgs) (tool.Result, error) {
				return tool.OK("%c", call.Chat[0]), nil
			}),
			check: "NoChat", text: "panicked",
		},
		"ignores its ctx": {
			tool: textTool(func(ctx context.Context, _ *tool.Call, in textArgs) (tool.Result, error) {
				if d, ok := ctx.Deadline(); ok && time.Until(d) < time.Second {
					<-over
				}
				return tool.OK("x"), nil
			}),
			given: []Given{GivenArguments(textArgs{Text: "x"})},
			check: "Cancel", text: "still ran",
		},
		"two at once": {
			tool: textTool(func(context.Context, *tool.Call, textArgs) (tool.Result, error) {
				if running.Add(1) > 1 {
					panic("two at once")
				}
				time.Sleep(5 * time.Millisecond) // the work that overlaps
				running.Add(-1)
				return tool.OK("x"), nil
			}),
			check: "Concurrent", text: "two at once",
		},
		"changes its arguments": {
			tool: schemaTool(textSchema, func(_ context.Context, call *tool.Call) (tool.Result, error) {
				if len(call.Arguments) > 0 {
					call.Arguments[0] = '['
				}
				return tool.OK("x"), nil
			}),
			check: "LeavesCallAlone", text: "arguments",
		},
		"changes its settings": {
			tool: schemaTool(textSchema, func(_ context.Context, call *tool.Call) (tool.Result, error) {
				call.Settings[0] = '['
				return tool.OK("x"), nil
			}),
			given: []Given{GivenSettings(map[string]int{"a": 1})},
			check: "LeavesCallAlone", text: "settings",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if found := faultsOf(t, c.check, c.tool, c.given); !strings.Contains(found, c.text) {
				t.Errorf("%s did not catch it (want %q); found: %s", c.check, c.text, found)
			}
		})
	}
}

type changing struct{ n *atomic.Int64 }

func (c changing) Definition() tool.Definition {
	return tool.Definition{Name: "x", Description: fmt.Sprint("version ", c.n.Add(1)), InputSchema: json.RawMessage(textSchema)}
}

func (c changing) Execute(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("x"), nil }

func TestConformancePasses(t *testing.T) {
	type nested struct {
		Mode  string   `json:"mode" enum:"a,b"`
		Tags  []string `json:"tags"`
		Inner struct {
			On bool    `json:"on"`
			F  float64 `json:"f"`
		} `json:"inner"`
		Opt map[string]int `json:"opt,omitempty"`
	}
	for name, c := range map[string]struct {
		tool  tool.Tool
		given []Given
	}{
		"plain":       {tool: says(tool.OK("x"))},
		"fails":       {tool: says(tool.Fail("not today"))},
		"no argument": {tool: tool.New("x", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.OK("x"), nil })},
		"nested":      {tool: tool.New("x", "x", func(_ context.Context, _ *tool.Call, in nested) (tool.Result, error) { return tool.Data(in), nil })},
		"open fields": {tool: schemaTool(`{"type":"object","additionalProperties":true}`, func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("x"), nil })},
		"waits for its ctx": {tool: textTool(func(ctx context.Context, _ *tool.Call, _ textArgs) (tool.Result, error) {
			select {
			case <-ctx.Done():
				return tool.Result{}, ctx.Err()
			case <-time.After(30 * time.Millisecond):
				return tool.OK("x"), nil
			}
		})},
		"what it needs": {
			tool: textTool(func(ctx context.Context, call *tool.Call, in textArgs) (tool.Result, error) {
				var s struct {
					Host string `json:"host"`
				}
				if err := call.BindSettings(&s); err != nil || s.Host == "" {
					return tool.Result{}, errcode.New(errcode.InvalidRequest, "no host")
				}
				if ok, err := call.State("ns").Get(ctx, "k", new(int)); err != nil || !ok {
					return tool.Result{}, errcode.New(errcode.InvalidRequest, "no state: %v", err)
				}
				if in.Text != "given" {
					return tool.Fail("unknown text"), nil
				}
				return call.Call(ctx, "readFile", map[string]string{"path": "a"})
			}),
			given: []Given{
				GivenSettings(map[string]string{"host": "h"}), GivenTools(filetools.Tools()...), GivenArguments(textArgs{Text: "given"}),
				GivenEnv(func(e *Env) { _ = e.State(DefaultChat, "ns").Set(context.Background(), "k", 1) }),
			},
		},
	} {
		t.Run(name, func(t *testing.T) { Conformance(t, c.tool, c.given...) })
	}
}
