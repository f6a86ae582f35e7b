package tooltest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/arguments"
	"github.com/toolbus/toolbus/pkg/tool"
)

// What a Call has unless its options say otherwise.
const (
	DefaultTenant = "acme"
	DefaultAgent  = "support"
	DefaultChat   = "chat-1"
)

// Env hosts tools and keeps in memory what they keep elsewhere. It is safe for
// concurrent use.
type Env struct {
	t     testing.TB
	tools map[string]hosted

	clock  clock
	states *stateMemory
	stores *storeMemory
	files  *fileMemory
	record record

	mu       sync.Mutex
	settings map[settingsKey]json.RawMessage
	calls    int
}

type hosted struct {
	tool   tool.Tool
	def    tool.Definition
	schema *arguments.Schema
}

func (h hosted) timeout() time.Duration {
	if h.def.Timeout == 0 {
		return callTimeout
	}
	return h.def.Timeout
}

type settingsKey struct{ tenant, agent, tool string }

// New hosts the given tools. A tool that a worker would refuse to host, or two
// of one name, end the test.
func New(t testing.TB, tools ...tool.Tool) *Env {
	t.Helper()
	e, err := newEnv(t, tools)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func newEnv(t testing.TB, tools []tool.Tool) (*Env, error) {
	e := &Env{t: t, tools: map[string]hosted{}, settings: map[settingsKey]json.RawMessage{}}
	e.states = newStateMemory(e.clock.now)
	e.stores = newStoreMemory()
	e.files = newFileMemory(e.clock.now)
	for _, tl := range tools {
		def := tl.Definition()
		if err := tool.Validate(tl); err != nil {
			return nil, fmt.Errorf("tool %q: %w", def.Name, err)
		}
		if _, dup := e.tools[def.Name]; dup {
			return nil, fmt.Errorf("tool %q is there twice", def.Name)
		}
		s, err := arguments.Compile(def.InputSchema)
		if err != nil {
			return nil, fmt.Errorf("tool %q: %w", def.Name, err)
		}
		e.tools[def.Name] = hosted{tool: tl, def: def, schema: s}
	}
	return e, nil
}

// Option is a choice of one Call.
type Option func(*callOptions)

type callOptions struct {
	tenant, agent, chat, id string
	depth                   int
	settings                json.RawMessage
	settingsErr             error
	job                     jobOptions
}

// Tenant calls for this tenant.
func Tenant(name string) Option { return func(o *callOptions) { o.tenant = name } }

// Agent calls for this agent.
func Agent(name string) Option { return func(o *callOptions) { o.agent = name } }

// Chat calls in this conversation; "" for a call without one.
func Chat(id string) Option { return func(o *callOptions) { o.chat = id } }

// CallID names the call; by default calls are numbered.
func CallID(id string) Option { return func(o *callOptions) { o.id = id } }

// Settings are the called tool's settings for this one call; see
// Env.SetSettings for lasting ones.
func Settings(v any) Option {
	return func(o *callOptions) { o.settings, o.settingsErr = encode(v) }
}

// SetSettings configures a tool for the default tenant's agent: what the
// agent's configuration says under tools.<tool>.
func (e *Env) SetSettings(agent, tool string, v any) {
	e.t.Helper()
	b, err := encode(v)
	if err != nil {
		e.t.Fatalf("settings of %s have no JSON form: %v", tool, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settings[settingsKey{DefaultTenant, agent, tool}] = b
}

// SetNow stops the clock at t; it moves on through Advance only.
func (e *Env) SetNow(t time.Time) { e.clock.set(t) }

// Advance moves the clock forward, so that scratch state expires.
func (e *Env) Advance(d time.Duration) { e.clock.advance(d) }

// State is what the default tenant's tools see of a chat and namespace.
func (e *Env) State(chat, namespace string) tool.State {
	return e.states.of(stateKey{DefaultTenant, chat, namespace})
}

// Store is what a tool of an agent of the default tenant sees as its store.
func (e *Env) Store(agent, tool string) tool.RevisionStore {
	return e.stores.of(DefaultTenant, agent, tool)
}

// Files is the default tenant's file area.
func (e *Env) Files() tool.Files { return e.files.of(DefaultTenant) }

// Tools lists the names of the hosted tools, sorted.
func (e *Env) Tools() []string { return slices.Sorted(maps.Keys(e.tools)) }

// Call runs a hosted tool as a worker does: arguments (any value with a JSON
// form) are validated against its schema and completed by its defaults, its
// time limit applies, a panic is an internal error, and a result with only
// data gets the data as its content. Internal tools may be called too.
func (e *Env) Call(ctx context.Context, name string, args any, opts ...Option) (tool.Result, error) {
	o := callOptions{tenant: DefaultTenant, agent: DefaultAgent, chat: DefaultChat}
	for _, f := range opts {
		f(&o)
	}
	if o.settingsErr != nil {
		return tool.Result{}, errcode.Field("settings", "have no JSON form: %v", o.settingsErr)
	}
	raw, err := encode(args)
	if err != nil {
		return tool.Result{}, errcode.Field("arguments", "have no JSON form: %v", err)
	}
	if err := checkCaller(o); err != nil {
		return tool.Result{}, err
	}
	return e.call(ctx, name, raw, o)
}

func checkCaller(o callOptions) error {
	if err := subject.CheckTenant(o.tenant); err != nil {
		return err
	}
	if err := subject.CheckName("agent", o.agent); err != nil {
		return err
	}
	if o.id != "" {
		if err := subject.CheckName("callId", o.id); err != nil {
			return err
		}
	}
	if o.chat == "" {
		return nil
	}
	return subject.CheckFree("chatId", o.chat)
}

// What a worker allows by default.
const (
	callTimeout = 60 * time.Second
	maxDepth    = 16 // of tools that call each other
)

func (e *Env) call(ctx context.Context, name string, args json.RawMessage, o callOptions) (tool.Result, error) {
	h, ok := e.tools[name]
	if !ok {
		return tool.Result{}, errcode.New(errcode.Unavailable, "no worker hosts the tool %q", name)
	}
	if err := ctx.Err(); err != nil {
		return tool.Result{}, errcode.From(err)
	}
	if o.depth > maxDepth {
		return tool.Result{}, errcode.New(errcode.InvalidRequest, "tools call each other more than %d deep", maxDepth)
	}
	checked, err := h.schema.Check(args)
	if err != nil {
		return tool.Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout())
	defer cancel()
	res, err := result(ctx, start(ctx, h.tool, e.newCall(name, checked, o)))
	if err != nil {
		if ctx.Err() != nil {
			return tool.Result{}, errcode.From(ctx.Err())
		}
		return tool.Result{}, errcode.From(err)
	}
	return complete(res)
}

func (e *Env) newCall(name string, args json.RawMessage, o callOptions) *tool.Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	if o.id == "" {
		o.id = fmt.Sprintf("call-%d", e.calls)
	}
	c := tool.Call{
		Tenant: o.tenant, Agent: o.agent, Chat: o.chat, ID: o.id, InstanceID: "tooltest",
		Arguments: slices.Clone(args), Settings: e.settingsOf(name, o),
		Log: e.record.logger(name, o.id),
	}
	return c.WithEnv(&callEnv{env: e, tool: name, caller: o})
}

// settingsOf are a tool's settings in one call. The caller holds e.mu.
func (e *Env) settingsOf(name string, o callOptions) json.RawMessage {
	settings := o.settings
	if settings == nil {
		settings = e.settings[settingsKey{o.tenant, o.agent, name}]
	}
	if settings == nil {
		settings = json.RawMessage("{}")
	}
	return slices.Clone(settings)
}

// panicked is a tool's panic as an error.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// ending is how a tool, or one of its jobs, ended.
type ending[T any] struct {
	res T
	err error
}

// outcome is how a tool ended.
type outcome = ending[tool.Result]

func start(ctx context.Context, tl tool.Tool, call *tool.Call) <-chan outcome {
	return launch(func() (tool.Result, error) { return tl.Execute(ctx, call) })
}

// launch runs fn in a goroutine of its own, so that one that ignores its ctx
// cannot hold up the answer.
func launch[T any](fn func() (T, error)) <-chan ending[T] {
	done := make(chan ending[T], 1)
	go func() {
		out := ending[T]{err: errcode.New(errcode.Internal, "the tool ended without an answer")} // runtime.Goexit
		defer func() {
			if v := recover(); v != nil {
				out = ending[T]{err: errcode.Wrap(errcode.Internal, &panicked{v, debug.Stack()}, "the tool failed unexpectedly (it panicked: %v)", v)}
			}
			done <- out
		}()
		res, err := fn()
		out = ending[T]{res, err}
	}()
	return done
}

// result waits for an ending, or for ctx. An answer that is there when ctx ends
// counts.
func result[T any](ctx context.Context, done <-chan ending[T]) (T, error) {
	select {
	case out := <-done:
		return out.res, out.err
	case <-ctx.Done():
	}
	select {
	case out := <-done:
		return out.res, out.err
	default:
		var none T
		return none, errcode.From(ctx.Err())
	}
}

// complete makes a tool's result what a caller sees.
func complete(r tool.Result) (tool.Result, error) {
	if len(r.Data) > 0 {
		data, err := message.Marshal(r.Data)
		if err != nil {
			return tool.Result{}, errcode.New(errcode.Internal, "the tool's data is not valid JSON")
		}
		r.Data = data
	}
	if r.Success {
		r.ErrorMessage = ""
		if r.Content == "" {
			r.Content = string(r.Data)
		}
	} else if r.ErrorMessage == "" {
		r.ErrorMessage = "the tool failed and did not say why"
	}
	r.Content = strings.ToValidUTF8(r.Content, "\uFFFD")
	r.ErrorMessage = strings.ToValidUTF8(r.ErrorMessage, "\uFFFD")
	return r, nil
}

// callEnv is what one call sees of an Env.
type callEnv struct {
	env    *Env
	tool   string
	caller callOptions
}

func (c *callEnv) State(namespace string) tool.State {
	return c.env.states.of(stateKey{c.caller.tenant, c.caller.chat, namespace})
}

func (c *callEnv) Store() tool.RevisionStore {
	return c.env.stores.of(c.caller.tenant, c.caller.agent, c.tool)
}

func (c *callEnv) Files() tool.Files { return c.env.files.of(c.caller.tenant) }

func (c *callEnv) CallTool(ctx context.Context, name string, args json.RawMessage) (tool.Result, error) {
	// The called tool has the caller's agent and chat, but a call id and
	// settings of its own.
	return c.env.call(ctx, name, args, callOptions{
		tenant: c.caller.tenant, agent: c.caller.agent, chat: c.caller.chat, depth: c.caller.depth + 1,
	})
}

func (c *callEnv) Progress(v json.RawMessage) {
	c.env.record.progress(ProgressEvent{Tool: c.tool, Chat: c.caller.chat, Value: slices.Clone(v)})
}

func (c *callEnv) Now() time.Time { return c.env.clock.now() }
