package relabeling_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/examples/relabeling"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

const chat = tooltest.DefaultChat

func newEnv(t *testing.T) *tooltest.Env {
	t.Helper()
	return tooltest.New(t, append(relabeling.Tools(), filetools.Tools()...)...)
}

func call(t *testing.T, env *tooltest.Env, name string, args any, opts ...tooltest.Option) tool.Result {
	t.Helper()
	res, err := env.Call(t.Context(), name, args, opts...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return res
}

func add(t *testing.T, env *tooltest.Env, code string) tool.Result {
	t.Helper()
	return call(t, env, "addTrackingCode", map[string]string{"code": code})
}

func collected(t *testing.T, env *tooltest.Env, chat string) []string {
	t.Helper()
	list, err := tool.Get(t.Context(), env.State(chat, "relabeling"), "codes", []string{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// handedIn lists the codes of every file, and checks the files' form.
func handedIn(t *testing.T, env *tooltest.Env, direction string) []string {
	t.Helper()
	files, err := env.Files().List(t.Context(), "relabeling/")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range files {
		b, _, _, err := env.Files().Read(t.Context(), f.Path)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(strings.NewReader(string(b))).ReadAll()
		if err != nil || len(rows) < 2 || !slices.Equal(rows[0], []string{"code", "direction"}) {
			t.Fatalf("%s: %q, %v", f.Path, b, err)
		}
		for _, r := range rows[1:] {
			if r[1] != direction {
				t.Errorf("%s: direction %q", f.Path, r[1])
			}
			all = append(all, r[0])
		}
	}
	return all
}

func TestAConversation(t *testing.T) {
	env := newEnv(t)
	for i, c := range []struct{ code, want string }{
		{"]C100340434757211819883", "added 00340434757211819883; 1 code so far"},
		{"8806096235386", "added 8806096235386; 2 codes so far"},
		{" 8806096235386\u00a0", "8806096235386 was scanned before and counts once; 2 codes so far"},
	} {
		if res := add(t, env, c.code); !res.Success || res.Content != c.want {
			t.Errorf("%d: got %+v, want %q", i, res, c.want)
		}
	}
	if res := add(t, env, "]C1 \x1d"); res.Success || !strings.Contains(res.ErrorMessage, "as it was scanned") {
		t.Errorf("%+v", res)
	}
	if res := call(t, env, "submitRelabeling", nil); res.Success || !strings.Contains(res.ErrorMessage, "setRelabelDirection") {
		t.Errorf("%+v", res)
	}
	if res := call(t, env, "setRelabelDirection", map[string]string{"direction": "somewhere"}); res.Success || !strings.Contains(res.ErrorMessage, "DHL->DPD") {
		t.Errorf("%+v", res)
	}
	if res := call(t, env, "setRelabelDirection", map[string]string{"direction": "DHL → DPD"}); !res.Success || !strings.Contains(res.Content, "DHL->DPD") {
		t.Errorf("%+v", res)
	}
	// What is kept is what a developer expects to find when debugging.
	all, err := env.State(chat, "relabeling").All(t.Context())
	if err != nil || string(all["codes"]) != `["00340434757211819883","8806096235386"]` || string(all["direction"]) != `"DHL->DPD"` || len(all) != 2 {
		t.Errorf("%s %v", all, err)
	}

	env.SetNow(time.Date(2026, 5, 5, 14, 0, 0, 7, time.UTC))
	res := call(t, env, "submitRelabeling", nil, tooltest.CallID("c-1"))
	var out struct {
		Path, Direction string
		Codes           int
	}
	if err := json.Unmarshal(res.Data, &out); err != nil || !res.Success || out.Codes != 2 || out.Direction != "DHL->DPD" || out.Path != "relabeling/20260505T140000.000000007Z-c-1.csv" {
		t.Errorf("%+v %v", res, err)
	}
	b, _, ok, err := env.Files().Read(t.Context(), out.Path)
	if want := "code,direction\n00340434757211819883,DHL->DPD\n8806096235386,DHL->DPD\n"; string(b) != want || !ok || err != nil {
		t.Errorf("got %q %v %v", b, ok, err)
	}

	// A clean start for the next run.
	if all, err := env.State(chat, "relabeling").All(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("the scratch pad is not clear: %s %v", all, err)
	}
	if res := call(t, env, "submitRelabeling", nil); res.Success || !strings.Contains(res.ErrorMessage, "addTrackingCode") {
		t.Errorf("%+v", res)
	}
	if res := add(t, env, "8806096235386"); !strings.HasSuffix(res.Content, "; 1 code so far") {
		t.Errorf("%+v", res)
	}
	if res := call(t, env, "submitRelabeling", nil); res.Success || !strings.Contains(res.ErrorMessage, "no direction") {
		t.Errorf("the direction outlived its run: %+v", res)
	}
}

func TestChatsAreApart(t *testing.T) {
	env := newEnv(t)
	add(t, env, "1")
	res := call(t, env, "addTrackingCode", map[string]string{"code": "2"}, tooltest.Chat("other"))
	if !strings.Contains(res.Content, "1 code so far") {
		t.Errorf("%+v", res)
	}
	for _, name := range []string{"addTrackingCode", "setRelabelDirection", "submitRelabeling"} {
		args := map[string]any{"addTrackingCode": map[string]string{"code": "1"}, "setRelabelDirection": map[string]string{"direction": "A->B"}}[name]
		if _, err := env.Call(t.Context(), name, args, tooltest.Chat("")); !errors.Is(err, errcode.InvalidRequest) || !strings.Contains(err.Error(), "chatId") {
			t.Errorf("%s without a chat: %v", name, err)
		}
	}
}

func TestFiftyAtOnce(t *testing.T) {
	env := newEnv(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { add(t, env, fmt.Sprintf("]C1%05d", i)) })
		wg.Go(func() { add(t, env, "twice") }) // fifty times the same: counts once
	}
	wg.Wait()
	list := collected(t, env, chat)
	slices.Sort(list)
	if len(list) != 51 || len(slices.Compact(list)) != 51 {
		t.Errorf("%d codes, want 51: %v", len(list), list)
	}
}

// Codes are scanned while the list is handed in, again and again and by several
// at once: each code ends in exactly one file, or is still there.
func TestNothingIsLostWhileSubmitting(t *testing.T) {
	env := newEnv(t)
	const n = 100
	var adding, submitting sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		submitting.Go(func() {
			for over := false; !over; {
				select {
				case <-done:
					over = true // once more, for what is left
				default:
				}
				call(t, env, "setRelabelDirection", map[string]string{"direction": "DHL->DPD"})
				call(t, env, "submitRelabeling", nil)
			}
		})
	}
	for i := range n {
		adding.Go(func() { add(t, env, fmt.Sprintf("%05d", i)) })
	}
	adding.Wait()
	close(done)
	submitting.Wait()

	all := slices.Concat(handedIn(t, env, "DHL->DPD"), collected(t, env, chat))
	slices.Sort(all)
	if len(all) != n || len(slices.Compact(all)) != n {
		t.Errorf("%d codes of %d: %v", len(all), n, all)
	}
}

// writer is a writeFile of the test's own.
func writer(fn func(context.Context, *tool.Call) (tool.Result, error)) tool.Tool {
	return tool.New("writeFile", "Writes a file.", func(ctx context.Context, call *tool.Call, _ struct{}) (tool.Result, error) {
		return fn(ctx, call)
	}, tool.Schema(json.RawMessage(`{"type":"object"}`)))
}

func TestNothingIsLostWhenTheWriteFails(t *testing.T) {
	for name, c := range map[string]struct {
		write func(context.Context, *tool.Call) (tool.Result, error)
		code  errcode.Code // "": a failure that the model sees
	}{
		"refused": {write: func(context.Context, *tool.Call) (tool.Result, error) { return tool.Fail("over quota"), nil }},
		"error": {write: func(context.Context, *tool.Call) (tool.Result, error) {
			return tool.Result{}, errcode.New(errcode.Unavailable, "no files service")
		}, code: errcode.Unavailable},
		"panic": {write: func(context.Context, *tool.Call) (tool.Result, error) { panic("x") }, code: errcode.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			env := tooltest.New(t, append(relabeling.Tools(), writer(c.write))...)
			add(t, env, "1")
			call(t, env, "setRelabelDirection", map[string]string{"direction": "A->B"})
			res, err := env.Call(t.Context(), "submitRelabeling", nil)
			if errcode.Of(err) != c.code || res.Success || c.code == "" && !strings.Contains(res.ErrorMessage, "over quota") {
				t.Errorf("%+v, %v", res, err)
			}
			all, err := env.State(chat, "relabeling").All(t.Context())
			if err != nil || string(all["codes"]) != `["1"]` || string(all["direction"]) != `"A->B"` {
				t.Errorf("%s %v", all, err)
			}
		})
	}
}

// While the file is written somebody scans, sets a new direction, or hands the
// same codes in.
func TestMeanwhile(t *testing.T) {
	var meanwhile func(ctx context.Context, call *tool.Call) error
	write := writer(func(ctx context.Context, call *tool.Call) (tool.Result, error) {
		var in struct{ Path, Content string }
		if err := call.Bind(&in); err != nil {
			return tool.Result{}, err
		}
		if err := meanwhile(ctx, call); err != nil {
			return tool.Result{}, err
		}
		info, err := call.Files().Write(ctx, in.Path, []byte(in.Content))
		return tool.Data(info), err
	})
	start := func(t *testing.T) *tooltest.Env {
		env := tooltest.New(t, append(relabeling.Tools(), write)...)
		add(t, env, "1")
		call(t, env, "setRelabelDirection", map[string]string{"direction": "A->B"})
		return env
	}

	t.Run("scans", func(t *testing.T) {
		env := start(t)
		meanwhile = func(ctx context.Context, call *tool.Call) error {
			if _, err := call.Call(ctx, "addTrackingCode", map[string]string{"code": "2"}); err != nil {
				return err
			}
			_, err := call.Call(ctx, "setRelabelDirection", map[string]string{"direction": "C->D"})
			return err
		}
		if res := call(t, env, "submitRelabeling", nil); !res.Success {
			t.Errorf("%+v", res)
		}
		if got := handedIn(t, env, "A->B"); !slices.Equal(got, []string{"1"}) {
			t.Errorf("handed in %v", got)
		}
		all, err := env.State(chat, "relabeling").All(t.Context())
		if err != nil || string(all["codes"]) != `["2"]` || string(all["direction"]) != `"C->D"` {
			t.Errorf("%s %v", all, err)
		}
	})
	for name, other := range map[string]string{"submits": "c-2", "is the same call run twice": "c-1"} {
		t.Run(name, func(t *testing.T) {
			env := start(t)
			first := true
			meanwhile = func(ctx context.Context, _ *tool.Call) error {
				if !first {
					return nil
				}
				first = false
				res, err := env.Call(ctx, "submitRelabeling", nil, tooltest.CallID(other))
				if !res.Success {
					return fmt.Errorf("the other submit: %+v, %w", res, err)
				}
				return err
			}
			if res := call(t, env, "submitRelabeling", nil, tooltest.CallID("c-1")); res.Success || !strings.Contains(res.ErrorMessage, "another submit") {
				t.Errorf("%+v", res)
			}
			if got := handedIn(t, env, "A->B"); !slices.Equal(got, []string{"1"}) {
				t.Errorf("handed in %v", got)
			}
		})
	}
}

func TestConformance(t *testing.T) {
	ready := tooltest.GivenEnv(func(env *tooltest.Env) {
		s := env.State(chat, "relabeling")
		if _, err := s.Append(context.Background(), "codes", "1"); err != nil {
			t.Error(err)
		}
		if err := s.Set(context.Background(), "direction", "A->B"); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		tool  tool.Tool
		given []tooltest.Given
	}{
		{tool: relabeling.AddTrackingCode},
		{tool: relabeling.SetRelabelDirection, given: []tooltest.Given{tooltest.GivenArguments(map[string]string{"direction": "DHL->DPD"})}},
		{tool: relabeling.SubmitRelabeling, given: []tooltest.Given{ready, tooltest.GivenTools(filetools.Tools()...)}},
	} {
		t.Run(c.tool.Definition().Name, func(t *testing.T) { tooltest.Conformance(t, c.tool, c.given...) })
	}
}
