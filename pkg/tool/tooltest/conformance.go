package tooltest

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/toolbus/toolbus/pkg/arguments"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Conformance checks what every tool must do, whatever it is for, each point
// as a subtest:
//
//   - its definition is valid, stable and has a schema that compiles;
//   - arguments that are missing, of a wrong type or unknown are refused or
//     handled, without a panic; unknown ones are never dropped in silence;
//   - text from the caller, however odd, does no harm;
//   - a result is valid UTF-8 and says something: Content or Data when it
//     succeeded, ErrorMessage if and only if it failed;
//   - a call that names no chat is refused or handled;
//   - it returns within a second after its ctx ended;
//   - twenty calls at once are safe (run with -race);
//   - the call's arguments and settings are left as they were;
//   - each job it offers runs, also a second time for one slot, leaves nothing
//     behind but store writes, and returns within a second after its ctx ended;
//     a job it does not offer does no harm.
//
// The tool runs in an Env. Say with Given… what it needs there. Without
// GivenArguments the suite makes some up from the schema; a schema that says
// more than types, say with a pattern, needs them given.
func Conformance(t *testing.T, tl tool.Tool, given ...Given) {
	t.Helper()
	s := newSuite(t, tl, given)
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(t, s) })
	}
}

// Given is something a tool under Conformance needs.
type Given func(*suite)

// GivenArguments is one example of arguments that fit; it may be given several
// times. The tool runs often with it, so choose one that is quick.
func GivenArguments(v any) Given {
	return func(s *suite) {
		s.t.Helper()
		b, err := encode(v)
		if err != nil {
			s.t.Fatalf("example arguments have no JSON form: %v", err)
		}
		s.args = append(s.args, b)
	}
}

// GivenTools are other tools that the tool calls.
func GivenTools(tools ...tool.Tool) Given {
	return func(s *suite) { s.others = append(s.others, tools...) }
}

// GivenSettings are the tool's settings.
func GivenSettings(v any) Given {
	return func(s *suite) { s.options = append(s.options, Settings(v)) }
}

// GivenEnv prepares each Env the tool runs in, for example its scratch state.
func GivenEnv(prepare func(*Env)) Given {
	return func(s *suite) { s.prepare = append(s.prepare, prepare) }
}

// reporter is the part of testing.TB that a check needs: the suite's own tests
// let faulty tools fail without failing themselves.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

const (
	promptness = time.Second      // how soon a tool returns after its ctx ended
	patience   = 20 * time.Second // how long a tool may take with the example arguments
	parallel   = 20               // calls at once
)

type suite struct {
	t       testing.TB
	tl      tool.Tool
	def     tool.Definition
	args    []json.RawMessage
	others  []tool.Tool
	options []Option
	prepare []func(*Env)

	jobEffects bool
}

func newSuite(t testing.TB, tl tool.Tool, given []Given) *suite {
	t.Helper()
	s := &suite{t: t, tl: tl, def: tl.Definition()}
	for _, g := range given {
		g(s)
	}
	return s
}

// env makes a fresh Env that hosts the tool.
func (s *suite) env(r reporter) (*Env, bool) {
	r.Helper()
	e, err := newEnv(s.t, append([]tool.Tool{s.tl}, s.others...))
	if err != nil {
		r.Errorf("the tool cannot be hosted: %v", err)
		return nil, false
	}
	for _, f := range s.prepare {
		f(e)
	}
	return e, true
}

// examples are arguments that fit the schema, as a worker passes them.
func (s *suite) examples(r reporter) []json.RawMessage {
	r.Helper()
	schema, err := arguments.Compile(s.def.InputSchema)
	if err != nil {
		r.Errorf("the schema does not compile: %v", err)
		return nil
	}
	args := s.args
	if len(args) == 0 {
		args = madeUp(s.def.InputSchema)
	}
	var fit []json.RawMessage
	for _, a := range args {
		checked, err := schema.Check(a)
		if err != nil {
			r.Errorf("the example arguments %s do not fit the schema (give some that do with GivenArguments): %v", a, err)
			continue
		}
		fit = append(fit, checked)
	}
	return fit
}

// call makes a call with arguments that are passed as they are.
func (s *suite) call(e *Env, args json.RawMessage, opts ...Option) *tool.Call {
	o := callOptions{tenant: DefaultTenant, agent: DefaultAgent, chat: DefaultChat}
	for _, f := range slices.Concat(s.options, opts) {
		f(&o)
	}
	return e.newCall(s.def.Name, args, o)
}

// run waits for the tool and reports a panic, or that it does not end.
func (s *suite) run(r reporter, e *Env, args json.RawMessage, opts ...Option) (out outcome, ok bool) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return await(r, ctx, start(ctx, s.tl, s.call(e, args, opts...)), args)
}

func await(r reporter, ctx context.Context, done <-chan outcome, args json.RawMessage) (outcome, bool) {
	r.Helper()
	select {
	case out := <-done:
		return out, !reportPanic(r, out, args)
	case <-ctx.Done():
		r.Errorf("with arguments %s it did not end within %s", short(args), patience)
		return outcome{}, false
	}
}
