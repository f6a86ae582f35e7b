package tooltest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/arguments"
	"github.com/toolbus/toolbus/pkg/tool"
)

var checks = []struct {
	name string
	run  func(reporter, *suite)
}{
	{"Definition", checkDefinition},
	{"BadArguments", checkBadArguments},
	{"OddText", checkOddText},
	{"Result", checkResult},
	{"NoChat", checkNoChat},
	{"Cancel", checkCancel},
	{"Concurrent", checkConcurrent},
	{"LeavesCallAlone", checkLeavesCallAlone},
	{"Jobs", checkJobs},
	{"JobCancel", checkJobCancel},
}

func checkDefinition(r reporter, s *suite) {
	if err := tool.Validate(s.tl); err != nil {
		r.Errorf("the definition is not valid: %v", err)
	}
	if again := s.tl.Definition(); !reflect.DeepEqual(again, s.def) {
		r.Errorf("the definition changes from call to call: %+v, then %+v", s.def, again)
	}
	if _, err := arguments.Compile(s.def.InputSchema); err != nil {
		r.Errorf("the schema does not compile: %v", err)
	}
}

func checkBadArguments(r reporter, s *suite) {
	schema, err := arguments.Compile(s.def.InputSchema)
	if err != nil {
		r.Errorf("the schema does not compile: %v", err)
		return
	}
	e, ok := s.env(r)
	if !ok {
		return
	}
	examples := s.examples(r)
	for _, bad := range faulty(s.def.InputSchema, examples) {
		// As a worker passes it on, if the schema lets it through …
		if checked, err := schema.Check(bad); err == nil {
			if out, ok := s.run(r, e, checked); ok {
				reportResult(r, out, checked)
			}
		} else if !errors.Is(err, errcode.InvalidArguments) {
			r.Errorf("arguments %s: want invalid_arguments, got %v", short(bad), err)
		}
		// … and straight to the tool: it must not rely on the schema for its life.
		if out, ok := s.run(r, e, bad); ok {
			reportResult(r, out, bad)
		}
	}
	if opensFields(s.def.InputSchema) {
		return
	}
	for _, args := range examples {
		if _, err := schema.Check(with(args, unknownField, json.RawMessage(`1`))); err == nil {
			r.Errorf(`a misspelt argument is dropped in silence; set "additionalProperties" in the schema: false to refuse it, true if it is wanted`)
			return
		}
	}
}

func checkOddText(r reporter, s *suite) {
	schema, err := arguments.Compile(s.def.InputSchema)
	if err != nil {
		r.Errorf("the schema does not compile: %v", err)
		return
	}
	e, ok := s.env(r)
	if !ok {
		return
	}
	for _, args := range s.examples(r) {
		for _, odd := range oddTexts(s.def.InputSchema, args) {
			checked, err := schema.Check(odd)
			if err != nil {
				continue
			}
			out, ok := s.run(r, e, checked)
			if !ok {
				continue
			}
			reportResult(r, out, checked)
			if said := out.res.Content + out.res.ErrorMessage; strings.Contains(said, "%!") {
				r.Errorf("with arguments %s text from the caller is used as a format: %q", short(checked), said)
			}
		}
	}
}

func checkResult(r reporter, s *suite) {
	results := 0
	var last error
	for _, args := range s.examples(r) {
		e, ok := s.env(r)
		if !ok {
			return
		}
		out, ok := s.run(r, e, args)
		if !ok {
			return
		}
		if last = out.err; out.err == nil {
			results++
		}
		reportResult(r, out, args)
	}
	if results == 0 {
		r.Errorf("no example arguments led to a result (say with Given… what the tool needs): %v", last)
	}
}

func checkNoChat(r reporter, s *suite) {
	for _, args := range s.examples(r) {
		e, ok := s.env(r)
		if !ok {
			return
		}
		if out, ok := s.run(r, e, args, Chat("")); ok {
			reportResult(r, out, args)
		}
	}
}

func checkCancel(r reporter, s *suite) {
	for _, args := range s.examples(r) {
		for _, c := range []struct {
			name  string
			after time.Duration
		}{{"is cancelled before it starts", 0}, {"is cancelled while it runs", 20 * time.Millisecond}} {
			e, ok := s.env(r)
			if !ok {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), c.after)
			done := start(ctx, s.tl, s.call(e, args))
			<-ctx.Done()
			cancel()
			late := time.NewTimer(promptness)
			select {
			case out := <-done:
				reportPanic(r, out, args)
			case <-late.C:
				r.Errorf("a call that %s still ran %s later", c.name, promptness)
			}
			late.Stop()
		}
	}
}

func checkConcurrent(r reporter, s *suite) {
	e, ok := s.env(r)
	if !ok {
		return
	}
	for _, args := range s.examples(r) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		outs := make([]<-chan outcome, parallel)
		var ready, all sync.WaitGroup
		ready.Add(parallel)
		for i := range parallel {
			all.Go(func() {
				ready.Done()
				ready.Wait() // all at once
				outs[i] = start(ctx, s.tl, s.call(e, args))
			})
		}
		all.Wait()
		for _, done := range outs {
			if out, ok := await(r, ctx, done, args); ok {
				reportResult(r, out, args)
			}
		}
		cancel()
	}
}

func checkLeavesCallAlone(r reporter, s *suite) {
	for _, args := range s.examples(r) {
		e, ok := s.env(r)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		call := s.call(e, args)
		argsAfter, settingsAfter := call.Arguments, call.Settings // what the tool is handed, not copies
		argsBefore, settingsBefore := bytes.Clone(argsAfter), bytes.Clone(settingsAfter)
		_, ok = await(r, ctx, start(ctx, s.tl, call), args)
		cancel()
		if !ok {
			continue
		}
		if !bytes.Equal(argsBefore, argsAfter) {
			r.Errorf("it changed the call's arguments: %s became %s", short(argsBefore), short(argsAfter))
		}
		if !bytes.Equal(settingsBefore, settingsAfter) {
			r.Errorf("it changed the call's settings")
		}
	}
}

func reportPanic(r reporter, out outcome, args json.RawMessage) bool {
	var p *panicked
	if !errors.As(out.err, &p) {
		return false
	}
	r.Helper()
	r.Errorf("with arguments %s it panicked: %v\n%s", short(args), p.value, p.stack)
	return true
}

// reportResult checks the form of a result; an error has none.
func reportResult(r reporter, out outcome, args json.RawMessage) {
	if out.err != nil {
		return
	}
	r.Helper()
	for _, fault := range resultFaults(out.res) {
		r.Errorf("with arguments %s %s", short(args), fault)
	}
}

func resultFaults(res tool.Result) []string {
	var faults []string
	if !utf8.ValidString(res.Content) {
		faults = append(faults, "the content is not valid UTF-8")
	}
	if !utf8.ValidString(res.ErrorMessage) {
		faults = append(faults, "the error message is not valid UTF-8")
	}
	if len(res.Data) > 0 && (!json.Valid(res.Data) || !utf8.Valid(res.Data)) {
		faults = append(faults, "the data is not valid JSON")
	}
	switch {
	case res.Success && res.ErrorMessage != "":
		faults = append(faults, "it succeeded with an error message")
	case res.Success && res.Content == "" && len(res.Data) == 0:
		faults = append(faults, "it succeeded and says nothing: neither content nor data")
	case !res.Success && res.ErrorMessage == "":
		faults = append(faults, "it failed and does not say why")
	}
	return faults
}

func short(b []byte) string {
	if len(b) > 200 {
		return strings.ToValidUTF8(string(b[:200]), "") + "…"
	}
	return string(b)
}
