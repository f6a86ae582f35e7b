package tooltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
)

func jobTool(fn tool.JobFunc, opts ...tool.Option) tool.Tool {
	return tool.New("x", "x", func(context.Context, *tool.Call, textArgs) (tool.Result, error) { return tool.OK("x"), nil },
		append(opts, tool.Job("look", "Look", "Looks.", fn))...)
}

func TestRunJobIsLikeASchedulers(t *testing.T) {
	now := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	env := New(t, jobTool(func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
		n, _, err := c.Store().Get(ctx, "n")
		if err != nil {
			return tool.JobResult{}, err
		}
		if err := c.Store().Set(ctx, "n", n+"1"); err != nil {
			return tool.JobResult{}, err
		}
		c.Log.Info("looked")
		return tool.Wake(fmt.Sprintf("%s %s %s %s %s %d %t %s %s", c.Tenant, c.Agent, c.JobID, c.JobTypeID, c.TickID, c.Attempt, c.ScheduledAt.Equal(c.Now()), c.Settings, n)), nil
	}))
	env.SetNow(now)
	env.SetSettings("support", "x", map[string]int{"a": 1})
	for i, c := range []struct {
		opts []Option
		want string
		kept string
	}{
		{nil, `acme support job-1 look tick-1 1 true {"a":1} `, "1"},
		{[]Option{OutcomeLost(), JobID("j"), TickID("t"), Attempt(2), ScheduledAt(now.Add(time.Hour))}, `acme support j look t 2 false {"a":1} 1`, "1"},
		{[]Option{Settings(map[string]int{"a": 2}), Chat("ignored")}, `acme support job-1 look tick-3 1 true {"a":2} 1`, "11"},
		{[]Option{Agent("other")}, `acme other job-1 look tick-4 1 true {} `, "11"},
	} {
		out, err := env.RunJob(t.Context(), "x", "look", c.opts...)
		if err != nil || out.Message != c.want || !out.Woke() || len(out.Writes) != 1 {
			t.Errorf("%d: got %+v, %v, want %s", i, out, err, c.want)
		}
		if v, _, err := env.Store("support", "x").Get(t.Context(), "n"); v != c.kept || err != nil {
			t.Errorf("%d: store has %q, %v", i, v, err)
		}
	}
	if l := env.Logs(); len(l) != 4 || l[0].CallID != "tick-1" {
		t.Errorf("%+v", l)
	}
}

func TestRunJobErrors(t *testing.T) {
	results := map[string]func(ctx context.Context) (tool.JobResult, error){
		"panics": func(context.Context) (tool.JobResult, error) { panic("ouch") },
		"errs":   func(context.Context) (tool.JobResult, error) { return tool.JobResult{}, errors.New("boom") },
		"mute":   func(context.Context) (tool.JobResult, error) { return tool.Wake(""), nil },
		"slow":   func(ctx context.Context) (tool.JobResult, error) { <-ctx.Done(); return tool.JobResult{}, ctx.Err() },
	}
	for name, f := range results {
		env := New(t, jobTool(func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
			if err := c.Store().Set(ctx, "k", "v"); err != nil {
				return tool.JobResult{}, err
			}
			return f(ctx)
		}, tool.Timeout(20*time.Millisecond)))
		want := errcode.Internal
		if name == "slow" {
			want = errcode.Timeout
		}
		if out, err := env.RunJob(t.Context(), "x", "look"); !errors.Is(err, want) || out.Woke() {
			t.Errorf("%s: got %+v, %v", name, out, err)
		}
		if _, ok, _ := env.Store(DefaultAgent, "x").Get(t.Context(), "k"); ok {
			t.Errorf("%s: a run that failed wrote", name)
		}
	}
	look := jobTool(func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.NoAction(), nil })
	plain := tool.New("plain", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.OK("x"), nil })
	env := New(t, look, plain)
	for _, c := range []struct {
		tool, job string
		opts      []Option
		code      errcode.Code
		text      string
	}{
		{"x", "no", nil, errcode.InvalidRequest, "jobTypeId"},
		{"plain", "look", nil, errcode.InvalidRequest, "no jobs"},
		{"nosuch", "look", nil, errcode.Unavailable, "nosuch"},
		{"x", "look", []Option{Tenant("a.b")}, errcode.InvalidRequest, "tenant"},
		{"x", "look", []Option{JobID("a.b")}, errcode.InvalidRequest, "jobId"},
		{"x", "look", []Option{Settings(func() {})}, errcode.InvalidRequest, "settings"},
	} {
		if _, err := env.RunJob(t.Context(), c.tool, c.job, c.opts...); !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s %s: got %v", c.tool, c.job, err)
		}
	}
}

// What a run reads, whatever it has written, is what the store is after the
// commit.
func TestARunSeesItsOwnWrites(t *testing.T) {
	keys := rapid.SampledFrom([]string{"a", "a/1", "b", "ü"})
	rapid.Check(t, func(r *rapid.T) {
		type op struct {
			Kind int
			Key  string
		}
		before := rapid.SliceOf(keys).Draw(r, "before")
		ops := rapid.SliceOf(rapid.Custom(func(r *rapid.T) op {
			return op{rapid.IntRange(0, 1).Draw(r, "kind"), keys.Draw(r, "key")}
		})).Draw(r, "ops")
		read := func(ctx context.Context, s tool.Store) map[string]string {
			m := map[string]string{}
			list, err := s.List(ctx, "")
			if err != nil || !slices.IsSorted(list) {
				r.Fatalf("%v, %v", list, err)
			}
			for _, k := range list {
				v, ok, err := s.Get(ctx, k)
				if !ok || err != nil {
					r.Fatalf("%s: %v, %v", k, ok, err)
				}
				m[k] = v
			}
			return m
		}
		var during map[string]string
		env := New(t, jobTool(func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
			for i, o := range ops {
				var err error
				if o.Kind == 0 {
					err = c.Store().Set(ctx, o.Key, fmt.Sprint(i))
				} else {
					_, had, _ := c.Store().Get(ctx, o.Key)
					var was bool
					if was, err = c.Store().Delete(ctx, o.Key); was != had {
						r.Fatalf("delete %s: %v, want %v", o.Key, was, had)
					}
				}
				if err != nil {
					return tool.JobResult{}, err
				}
			}
			during = read(ctx, c.Store())
			return tool.NoAction(), nil
		}))
		st := env.Store(DefaultAgent, "x")
		for _, k := range before {
			if err := st.Set(context.Background(), k, "old"); err != nil {
				r.Fatal(err)
			}
		}
		if _, err := env.RunJob(context.Background(), "x", "look"); err != nil {
			r.Fatal(err)
		}
		if after := read(context.Background(), st); fmt.Sprint(after) != fmt.Sprint(during) {
			r.Fatalf("during %v, after %v", during, after)
		}
	})
}

func TestConformanceCatchesFaultyJobs(t *testing.T) {
	over := make(chan struct{})
	defer close(over)
	for name, c := range map[string]struct {
		tool        tool.Tool
		given       []Given
		check, text string
	}{
		"panics": {tool: jobTool(func(context.Context, *tool.JobCall) (tool.JobResult, error) { panic("ouch") }), check: "Jobs", text: "ouch"},
		"fails": {tool: jobTool(func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			return tool.JobResult{}, errors.New("no server")
		}), check: "Jobs", text: "no server"},
		"mute":     {tool: jobTool(func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.Wake(""), nil }), check: "Jobs", text: "what for"},
		"bad text": {tool: jobTool(func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.Wake("a\xff"), nil }), check: "Jobs", text: "UTF-8"},
		"writes files": {tool: jobTool(func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
			_, err := c.Files().Append(ctx, "a", []byte("x"))
			return tool.NoAction(), err
		}), check: "Jobs", text: "elsewhere"},
		"calls who writes": {tool: jobTool(func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
			_, err := c.Call(ctx, "writeFile", map[string]string{"path": "a", "content": "x"})
			return tool.NoAction(), err
		}), given: []Given{GivenTools(filetools.Tools()...)}, check: "Jobs", text: "elsewhere"},
		"wakes for anything": {tool: anyJob{says(tool.OK("x"))}, check: "Jobs", text: "does not have"},
		"deaf": {tool: jobTool(func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			<-over
			return tool.NoAction(), nil
		}), check: "JobCancel", text: "still ran"},
	} {
		t.Run(name, func(t *testing.T) {
			if found := faultsOf(t, c.check, c.tool, c.given); !strings.Contains(found, c.text) {
				t.Errorf("%s did not catch it (want %q); found: %s", c.check, c.text, found)
			}
		})
	}
	Conformance(t, jobTool(func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
		_, err := c.Files().Append(ctx, "a", []byte("x"))
		return tool.Wake("x"), errors.Join(err, c.Store().Set(ctx, "k", "v"))
	}), GivenJobEffects())
}

type anyJob struct{ tool.Tool }

func (anyJob) Jobs() []tool.JobDefinition {
	return []tool.JobDefinition{{ID: "look", Name: "Look", Description: "Looks."}}
}

func (anyJob) ExecuteJob(context.Context, *tool.JobCall) (tool.JobResult, error) {
	return tool.JobResult{Action: message.ActionWake, Message: "x"}, nil
}
