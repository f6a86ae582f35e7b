package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// Tool is a named capability of an agent. Implement it directly for full
// control of the schema, or let New build one from a function.
//
// Execute may be called from many goroutines at once. Its three ways to end:
//
//   - a Result: the tool ran. Result.Success false tells the model why it could
//     not do what was asked.
//   - an error: the tool could not run, through no fault of the model. The
//     caller gets an error reply with the error's code (errcode; internal by
//     default).
//   - ctx ends (deadline or cancel): return soon; what is returned after that
//     is discarded.
type Tool interface {
	Definition() Definition
	Execute(ctx context.Context, call *Call) (Result, error)
}

// Definition describes a tool to models, agents and the runtime.
type Definition struct {
	Name        string          // unique; [A-Za-z0-9_-]{1,64}
	Description string          // for the model
	InputSchema json.RawMessage // JSON Schema 2020-12 of the arguments, an object
	Internal    bool            // for other tools only, unless an agent's configuration lists it
	Version     string          // optional; shown in the catalogue

	// SettingsSchema is the JSON Schema of the tool's settings, an object; nil lets
	// an agent's configuration say anything. Configurations that do not fit are
	// refused, and defaults are filled in.
	SettingsSchema json.RawMessage

	Timeout       time.Duration // a call's limit; 0: the worker's default
	MaxConcurrent int           // calls at once in one worker; 0: the worker's default
}

// Validate checks a definition; the error names the field.
func (d Definition) Validate() error {
	if err := subject.CheckName("name", d.Name); err != nil {
		return err
	}
	if d.Description == "" {
		return errcode.Field("description", "is required: it tells the model what %s does", d.Name)
	}
	if d.Timeout < 0 || d.MaxConcurrent < 0 {
		return errcode.Field("timeout", "timeout and maxConcurrent must not be negative")
	}
	if _, err := objectSchema("inputSchema", d.InputSchema); err != nil || d.SettingsSchema == nil {
		return err
	}
	settings, err := objectSchema("settingsSchema", d.SettingsSchema)
	if err != nil {
		return err
	}
	for _, name := range message.ReservedSettings {
		if _, ok := settings[name]; ok {
			return errcode.Field("settingsSchema", "has the property %q, which is the runtime's own", name)
		}
	}
	return nil
}

// objectSchema returns the properties of an object's schema.
func objectSchema(field string, schema json.RawMessage) (map[string]json.RawMessage, error) {
	var s struct {
		Type       any                        `json:"type"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(schema, &s); err != nil {
		return nil, errcode.Field(field, "is not a JSON Schema object: %v", err)
	}
	if s.Type != "object" {
		return nil, errcode.Field(field, `needs "type": "object"`)
	}
	return s.Properties, nil
}

// Option refines a tool made by New.
type Option func(*options)

type options struct {
	Definition
	jobs []job
}

// Internal keeps the tool from models: only other tools may call it, unless an
// agent's configuration lists it by name.
func Internal() Option { return func(o *options) { o.Internal = true } }

// Timeout limits each call. A caller may ask for less, never for more.
func Timeout(t time.Duration) Option { return func(o *options) { o.Timeout = t } }

// MaxConcurrent limits how many calls of the tool one worker runs at once.
func MaxConcurrent(n int) Option { return func(o *options) { o.MaxConcurrent = n } }

// Version names the tool's version in the catalogue.
func Version(v string) Option { return func(o *options) { o.Version = v } }

// Schema replaces the schema derived from the argument type.
func Schema(s json.RawMessage) Option { return func(o *options) { o.InputSchema = s } }

// Settings declares the tool's settings as a struct, whose schema is derived as that
// of arguments is: a configuration that does not fit is refused when it is applied. A
// string may be a {"$secret":"…"}. Read them with Call.BindSettings.
func Settings[T any]() Option {
	s, err := schemaFor(reflect.TypeFor[T]())
	if err != nil {
		panic(fmt.Sprintf("settings: %v", err)) // a programming error, as in New
	}
	return SettingsSchema(s)
}

// SettingsSchema is Settings with a schema of its own.
func SettingsSchema(s json.RawMessage) Option { return func(o *options) { o.SettingsSchema = s } }

// New builds a Tool from a function whose arguments are a struct. The JSON
// Schema is derived from In's fields:
//
//   - `json:"name"` names the field; without ",omitempty" or ",omitzero" it is
//     required, unless it has a default;
//   - `jsonschema:"text"` describes it to the model;
//   - `enum:"a,b,c"` lists the allowed values;
//   - `default:"x"` is used when the model leaves the field out (JSON, or a
//     plain string for string fields).
//
// Fields the struct does not have are refused, so that a model learns of its
// typing mistakes. In may be struct{} for a tool without arguments.
//
// New panics on a definition that cannot work, since that is a programming
// error: it is meant for package-level variables.
func New[In any](name, description string, fn func(ctx context.Context, call *Call, in In) (Result, error), opts ...Option) Tool {
	o := options{Definition: Definition{Name: name, Description: description}}
	for _, f := range opts {
		f(&o)
	}
	d := o.Definition
	if d.InputSchema == nil {
		s, err := schemaFor(reflect.TypeFor[In]())
		if err != nil {
			panic(fmt.Sprintf("tool %s: %v", name, err))
		}
		d.InputSchema = s
	}
	var t Tool = &funcTool[In]{def: d, fn: fn}
	if len(o.jobs) > 0 {
		t = &jobTool{Tool: t, jobs: o.jobs}
	}
	if err := Validate(t); err != nil {
		panic(fmt.Sprintf("tool %s: %v", name, err))
	}
	return t
}

type funcTool[In any] struct {
	def Definition
	fn  func(context.Context, *Call, In) (Result, error)
}

func (t *funcTool[In]) Definition() Definition { return t.def }

func (t *funcTool[In]) Execute(ctx context.Context, call *Call) (Result, error) {
	var in In
	if err := call.Bind(&in); err != nil {
		return Result{}, err
	}
	return t.fn(ctx, call, in)
}

// jobTool is a tool with checks.
type jobTool struct {
	Tool
	jobs []job
}

func (t *jobTool) Jobs() []JobDefinition {
	defs := make([]JobDefinition, len(t.jobs))
	for i, j := range t.jobs {
		defs[i] = j.def
	}
	return defs
}

func (t *jobTool) ExecuteJob(ctx context.Context, call *JobCall) (JobResult, error) {
	for _, j := range t.jobs {
		if j.def.ID == call.JobTypeID {
			return j.fn(ctx, call)
		}
	}
	_, err := FindJob(t, call.JobTypeID)
	return JobResult{}, err
}
