package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// Call is one call of a tool: who calls, with what, and the capabilities the
// tool may use. It is valid until Execute returns.
type Call struct {
	Tenant     string // the customer
	Agent      string // the agent on whose behalf the tool runs
	Chat       string // the conversation; "" when the caller named none
	ID         string // this call
	InstanceID string // the worker process that runs it

	// Arguments fit the tool's schema; defaults are filled in.
	Arguments json.RawMessage
	// Settings are those of this tool of this agent, never another's; {} when
	// the configuration has none.
	Settings json.RawMessage

	// Log writes to the tool's own log module, Tool_<Name>.
	Log Logger

	env Env
	key string
}

// Env is what a runtime gives a Call: the bus in a worker, memory in tooltest.
// Tool authors use Call's methods instead.
type Env interface {
	State(namespace string) State
	Store() RevisionStore
	Files() Files
	CallTool(ctx context.Context, name string, arguments json.RawMessage) (Result, error)
	Progress(progress json.RawMessage)
	Now() time.Time
}

// WithEnv returns a copy of the call that uses env. For runtimes.
func (c Call) WithEnv(env Env) *Call {
	c.env = env
	if c.Log == nil {
		c.Log = discard{}
	}
	return &c
}

// WithIdempotencyKey returns a copy of the call with a key. For runtimes.
func (c Call) WithIdempotencyKey(key string) Call {
	c.key = key
	return c
}

// IdempotencyKey identifies what the caller wants done, over retries and runs in other
// workers: pass it on to whatever outside takes such a key, and its effect happens
// once. It is unique within the tenant, agent and tool; "" for a call that is never run
// again.
func (c *Call) IdempotencyKey() string { return c.key }

// Bind decodes the arguments into v. What does not fit is invalid_arguments.
func (c *Call) Bind(v any) error {
	if err := strict(c.Arguments, v); err != nil {
		return errcode.Fields(errcode.InvalidArguments, fault(err))
	}
	return nil
}

// BindSettings decodes the tool's settings into v. What does not fit is the
// operator's mistake: invalid_request, never shown as the model's.
func (c *Call) BindSettings(v any) error { return bindSettings(c.Settings, v) }

func bindSettings(settings json.RawMessage, v any) error {
	if err := strict(settings, v); err != nil {
		f := fault(err)
		f.Field = "settings." + f.Field
		return errcode.Fields(errcode.InvalidRequest, f)
	}
	return nil
}

// State is the scratch pad of this chat under a namespace, which tools may
// share. It expires; see State.
func (c *Call) State(namespace string) State { return c.env.State(namespace) }

// Store is the durable store of this tool of this agent.
func (c *Call) Store() RevisionStore { return c.env.Store() }

// Files is the tenant's file area.
func (c *Call) Files() Files { return c.env.Files() }

// Call calls another tool for the same agent and chat: an internal one, or one
// the agent's configuration grants. Arguments are any value with a JSON object
// form. A Result with Success false is not an error.
func (c *Call) Call(ctx context.Context, name string, arguments any) (Result, error) {
	return callTool(ctx, c.env.CallTool, name, arguments)
}

func callTool(ctx context.Context, call func(context.Context, string, json.RawMessage) (Result, error), name string, arguments any) (Result, error) {
	b, err := message.Marshal(arguments)
	if err != nil {
		return Result{}, errcode.Wrap(errcode.InvalidRequest, err, "arguments of %s have no JSON form: %v", name, err)
	}
	return call(ctx, name, b)
}

// Progress tells the caller how far the call is; any value with a JSON form.
// It is best effort and never blocks the tool.
func (c *Call) Progress(v any) {
	if b, err := message.Marshal(v); err == nil {
		c.env.Progress(b)
	}
}

// Now is the current time; tests can set it.
func (c *Call) Now() time.Time { return c.env.Now() }

// Logger writes leveled messages with key-value pairs. Never log secrets.
type Logger interface {
	Debug(msg string, keyvals ...any)
	Info(msg string, keyvals ...any)
	Warn(msg string, keyvals ...any)
	Error(msg string, keyvals ...any)
}

type discard struct{}

func (discard) Debug(string, ...any) {}
func (discard) Info(string, ...any)  {}
func (discard) Warn(string, ...any)  {}
func (discard) Error(string, ...any) {}

func strict(data json.RawMessage, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		data = json.RawMessage("{}")
	}
	return json.Unmarshal(data, v)
}

func fault(err error) errcode.FieldFault {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		return errcode.FieldFault{Field: t.Field, Message: fmt.Sprintf("must be %s, not %s", jsonKind(t.Type.Kind().String()), t.Value)}
	}
	return errcode.FieldFault{Message: err.Error()}
}

func jsonKind(kind string) string {
	switch kind {
	case "struct", "map":
		return "an object"
	case "slice", "array":
		return "an array"
	case "bool":
		return "true or false"
	case "string":
		return "a string"
	}
	return "a number (" + kind + ")"
}
