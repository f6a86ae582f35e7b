package toolworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/pkg/tool"
)

func watcher(name string, jobs []tool.Option, opts ...tool.Option) tool.Tool {
	return fn(name, func(context.Context, *tool.Call) (tool.Result, error) { return tool.OK("ran"), nil }, append(jobs, opts...)...)
}

func job(id string, f tool.JobFunc) tool.Option { return tool.Job(id, "Job "+id, "Tests "+id+".", f) }

func (s *system) runJob(tenant, toolName string, req any) (message.JobReply, error) {
	s.t.Helper()
	var out message.JobReply
	err := bus.Request(s.t.Context(), s.nc, subject.WorkerJob(tenant, "bot", toolName), req, &out)
	return out, err
}

func tick(jobType string) message.JobRequest {
	return message.JobRequest{TickID: "j1.1700000000", JobID: "j1", JobTypeID: jobType, ScheduledAt: "2026-01-02T03:04:05Z", Attempt: 2}
}

func TestAJobsWritesAreReturnedAndNotExecuted(t *testing.T) {
	s := start(t)
	w := watcher("mail", []tool.Option{job("look", func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
		var cfg struct{ Key string }
		if err := c.BindSettings(&cfg); err != nil {
			return tool.JobResult{}, err
		}
		st := c.Store()
		offset, found, err := st.Get(ctx, "offset")
		if err != nil {
			return tool.JobResult{}, err
		}
		if err := errors.Join(st.Set(ctx, "offset", offset+"1"), st.Set(ctx, "new", "x"), st.Set(ctx, "offset", offset+"2")); err != nil {
			return tool.JobResult{}, err
		}
		was, err := st.Delete(ctx, "old")
		if err != nil {
			return tool.JobResult{}, err
		}
		again, err := st.Delete(ctx, "old")
		if err != nil {
			return tool.JobResult{}, err
		}
		keys, err := st.List(ctx, "")
		if err != nil {
			return tool.JobResult{}, err
		}
		mine, _, err := st.Get(ctx, "offset")
		if err != nil {
			return tool.JobResult{}, err
		}
		if _, err := c.Files().Append(ctx, "seen.txt", []byte("x")); err != nil {
			return tool.JobResult{}, err
		}
		called, err := c.Call(ctx, "writeFile", map[string]string{"path": "a", "content": "x"})
		if err != nil {
			return tool.JobResult{}, err
		}
		return tool.Wake(strings.Join([]string{
			c.Tenant, c.Agent, c.JobID, c.JobTypeID, c.TickID, c.ScheduledAt.Format(time.RFC3339), fmt.Sprint(c.Attempt),
			offset, fmt.Sprint(found, was, again), strings.Join(keys, ","), mine, fmt.Sprint(called.Success, c.InstanceID != "", time.Since(c.Now()) < time.Minute),
		}, "|"), tool.LogSummary("key %s", cfg.Key), tool.WakeChat("chat 1")), nil
	})})
	s.worker(nil, w)
	t.Setenv("TOOLBUS_SECRET_MAIL", "top-s3cret")
	s.apply("acme", `{"agentId":"bot","tools":{"mail":{"key":{"$secret":"mail"}}}}`)
	st := store.New(s.nc, "acme", "bot", "mail")
	for _, k := range []string{"offset", "old", "other"} {
		if err := st.Set(t.Context(), k, "7"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // a repeated run sees the store as it was
		r, err := s.runJob("acme", "mail", tick("look"))
		if err != nil {
			t.Fatal(err)
		}
		want := "acme|bot|j1|look|j1.1700000000|2026-01-02T03:04:05Z|2|7|true true false|new,offset,other|72|true true true"
		if r.Action != message.ActionWake || r.WakeMessage != want || r.ChatID != "chat 1" || r.LogSummary != "key [redacted]" {
			t.Errorf("got  %+v\nwant %s", r, want)
		}
		var writes []string
		for _, w := range r.StoreWrites {
			v := "null"
			if w.Value != nil {
				v = *w.Value
			}
			writes = append(writes, w.Key+"="+v)
		}
		if !slices.Equal(writes, []string{"offset=72", "new=x", "old=null"}) {
			t.Errorf("writes %v", writes)
		}
	}
	if v, _, err := st.Get(t.Context(), "offset"); v != "7" || err != nil {
		t.Errorf("the worker wrote %q, %v", v, err)
	}
}

func TestWhateverAJobDoesThereIsOneAnswer(t *testing.T) {
	s := start(t)
	var leaked *tool.JobCall
	w := watcher("w", []tool.Option{
		job("nothing", func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.NoAction(), nil }),
		job("zero", func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.JobResult{}, nil }),
		job("stateless", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			return tool.WakeStateless("a\xffb", tool.LogSummary("100%")), nil
		}),
		job("mute", func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.Wake(" "), nil }),
		job("badChat", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			return tool.Wake("x", tool.WakeChat("\x00")), nil
		}),
		job("statelessChat", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			return tool.WakeStateless("x", tool.WakeChat("c")), nil
		}),
		job("odd", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			return tool.JobResult{Action: "dance"}, nil
		}),
		job("errs", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			return tool.JobResult{}, errcode.New(errcode.Unavailable, "no server")
		}),
		job("panics", func(context.Context, *tool.JobCall) (tool.JobResult, error) { panic("ouch") }),
		job("exits", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			runtime.Goexit()
			return tool.JobResult{}, nil
		}),
		job("slow", func(ctx context.Context, _ *tool.JobCall) (tool.JobResult, error) {
			<-ctx.Done()
			return tool.JobResult{}, ctx.Err()
		}),
		job("huge", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
			return tool.Wake(strings.Repeat("x", 2<<20)), nil
		}),
		job("many", func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
			for i := range 201 {
				if err := c.Store().Set(ctx, fmt.Sprint(i), ""); err != nil {
					return tool.JobResult{}, err
				}
			}
			return tool.NoAction(), nil
		}),
		job("badKey", func(ctx context.Context, c *tool.JobCall) (tool.JobResult, error) {
			return tool.JobResult{}, c.Store().Set(ctx, "", "x")
		}),
		job("leaks", func(_ context.Context, c *tool.JobCall) (tool.JobResult, error) {
			leaked = c
			return tool.NoAction(), nil
		}),
	}, tool.Timeout(time.Second))
	s.worker(nil, w)
	s.apply("acme", grantAll(w))
	for _, c := range []struct {
		job    string
		code   errcode.Code
		action string
		text   string
	}{
		{"nothing", "", message.ActionNone, ""},
		{"zero", "", message.ActionNone, ""},
		{"stateless", "", message.ActionWakeStateless, "a\uFFFDb100%"},
		{"mute", errcode.Internal, "", "does not say what for"},
		{"badChat", errcode.Internal, "", "chat"},
		{"statelessChat", errcode.Internal, "", "stateless"},
		{"odd", errcode.Internal, "", "dance"},
		{"errs", errcode.Unavailable, "", "no server"},
		{"panics", errcode.Internal, "", "panicked"},
		{"exits", errcode.Internal, "", "without an answer"},
		{"slow", errcode.Timeout, "", "1s"},
		{"huge", errcode.TooLarge, "", "reply"},
		{"many", errcode.TooLarge, "", "200"},
		{"badKey", errcode.InvalidRequest, "", "key"},
		{"leaks", "", message.ActionNone, ""},
		{"nothing", "", message.ActionNone, ""}, // after all of them
	} {
		r, err := s.runJob("acme", "w", tick(c.job))
		got := r.WakeMessage + r.LogSummary
		if err != nil {
			got = err.Error()
		}
		if errcode.Of(err) != c.code || r.Action != c.action || !strings.Contains(got, c.text) {
			t.Errorf("%s: got %+v, %v", c.job, r, err)
		}
	}
	if err := leaked.Store().Set(t.Context(), "late", "x"); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("a write after the run: %v", err)
	}
}

func TestWhichJobsRun(t *testing.T) {
	s := start(t)
	ok := job("look", func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.Wake("x"), nil })
	open, hidden, plain := watcher("open", []tool.Option{ok}), watcher("hidden", []tool.Option{ok}, tool.Internal()), watcher("plain", nil)
	s.worker(nil, open, hidden, plain)
	s.apply("acme", grantAll(open, plain))
	s.apply("other", grantAll(hidden))
	good := tick("look")
	with := func(f func(*message.JobRequest)) message.JobRequest { r := good; f(&r); return r }
	for name, c := range map[string]struct {
		tenant, tool string
		req          any
		code         errcode.Code
		field        string
	}{
		"granted":                  {"acme", "open", good, "", ""},
		"not granted":              {"other", "open", good, errcode.NotAllowed, ""},
		"internal, not listed":     {"acme", "hidden", good, errcode.NotAllowed, ""},
		"internal, listed":         {"other", "hidden", good, "", ""},
		"unknown tenant":           {"nobody", "open", good, errcode.NotFound, ""},
		"no jobs":                  {"acme", "plain", good, errcode.Unavailable, ""},
		"unknown job":              {"acme", "open", tick("no"), errcode.InvalidRequest, "jobTypeId"},
		"no tick":                  {"acme", "open", with(func(r *message.JobRequest) { r.TickID = "" }), errcode.InvalidRequest, "tickId"},
		"no job":                   {"acme", "open", with(func(r *message.JobRequest) { r.JobID = "a.b" }), errcode.InvalidRequest, "jobId"},
		"no type":                  {"acme", "open", with(func(r *message.JobRequest) { r.JobTypeID = "" }), errcode.InvalidRequest, "jobTypeId"},
		"bad time":                 {"acme", "open", with(func(r *message.JobRequest) { r.ScheduledAt = "today" }), errcode.InvalidRequest, "scheduledAt"},
		"bad attempt":              {"acme", "open", with(func(r *message.JobRequest) { r.Attempt = 0 }), errcode.InvalidRequest, "attempt"},
		"a number for a name":      {"acme", "open", map[string]any{"tickId": 5}, errcode.InvalidRequest, "tickId"},
		"everything at once":       {"acme", "open", nil, errcode.InvalidRequest, "tickId"},
		"not an object":            {"acme", "open", json.RawMessage(`[]`), errcode.InvalidRequest, ""},
		"a reserved tenant's":      {"_all", "open", good, errcode.InvalidRequest, "tenant"},
		"granted, at another hour": {"acme", "open", with(func(r *message.JobRequest) { r.ScheduledAt = "2026-01-02T03:04:05.123+02:00" }), "", ""},
	} {
		_, err := s.runJob(c.tenant, c.tool, c.req)
		var e *errcode.Error
		if errcode.Of(err) != c.code || c.field != "" && (!errors.As(err, &e) || e.Details == nil || e.Details.Fields[0].Field != c.field) {
			t.Errorf("%s: got %v, want %s on %s", name, err, c.code, c.field)
		}
	}
	// The catalogue tells what there is.
	var cat message.CatalogueTools
	if err := bus.Request(t.Context(), s.nc, subject.Catalogue("tools"), nil, &cat); err != nil {
		t.Fatal(err)
	}
	for _, e := range cat.Tools {
		if want := []message.JobDefinition{{ID: "look", Name: "Job look", Description: "Tests look."}}; e.Name == "open" && !slices.Equal(e.Jobs, want) || e.Name == "plain" && e.Jobs != nil {
			t.Errorf("%s: jobs %+v", e.Name, e.Jobs)
		}
	}
}

func TestReadAtGivesAPartOfAFile(t *testing.T) {
	s := start(t)
	f := files.New(s.nc, "acme")
	content := []byte(strings.Repeat("0123456789", 150_000)) // more than a message
	if _, err := f.Write(t.Context(), "a", content); err != nil {
		t.Fatal(err)
	}
	size := int64(len(content))
	for _, c := range []struct{ offset, length, from, to int64 }{
		{0, 0, 0, 0}, {0, 5, 0, 5}, {7, 6, 7, 13}, {3, size, 3, size}, {0, math.MaxInt64, 0, size}, {5, math.MaxInt64, 5, size},
		{size - 2, 10, size - 2, size}, {size, 10, size, size}, {size + 10, 10, size, size}, {math.MaxInt64, math.MaxInt64, size, size},
	} {
		b, info, exists, err := f.ReadAt(t.Context(), "a", c.offset, c.length)
		if err != nil || !exists || info.Size != size || string(b) != string(content[c.from:c.to]) {
			t.Errorf("%+v: %d bytes of %+v, %v, %v", c, len(b), info, exists, err)
		}
	}
	if _, _, exists, err := f.ReadAt(t.Context(), "b", 5, 5); exists || err != nil {
		t.Errorf("no file: %v, %v", exists, err)
	}
	for _, c := range []struct {
		path           string
		offset, length int64
	}{{"a", -1, 1}, {"a", 1, -1}, {"../a", 0, 1}} {
		if _, _, _, err := f.ReadAt(t.Context(), c.path, c.offset, c.length); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A run that takes longer than whoever asked allows ends then: another may begin.
func TestAJobEndsWhenItsAskerGivesUp(t *testing.T) {
	s := start(t)
	ended := make(chan error, 1)
	s.worker(nil, watcher("slow", []tool.Option{job("look", func(ctx context.Context, _ *tool.JobCall) (tool.JobResult, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return tool.JobResult{}, ctx.Err()
	})}))
	s.apply("acme", `{"agentId":"bot","tools":{"slow":{}}}`)
	req := tick("look")
	req.TimeoutMs = 200
	if _, err := s.runJob("acme", "slow", req); !errors.Is(err, errcode.Timeout) || !strings.Contains(err.Error(), "200ms") {
		t.Errorf("error %v", err)
	}
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the check ended with %v", err)
	}
	req.TimeoutMs = -1
	if _, err := s.runJob("acme", "slow", req); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("error %v", err)
	}
}

// While a job runs its worker beats, for whoever asks for it, and not after.
func TestAJobBeatsWhileItRuns(t *testing.T) {
	s := start(t)
	release := make(chan struct{})
	s.worker(nil, watcher("slow", []tool.Option{job("look", func(context.Context, *tool.JobCall) (tool.JobResult, error) {
		<-release
		return tool.NoAction(), nil
	})}))
	s.apply("acme", `{"agentId":"bot","tools":{"slow":{}}}`)
	beats, err := s.nc.SubscribeSync(subject.AgentProgress("acme", "bot", "run-1"))
	if err != nil {
		t.Fatal(err)
	}
	replies, err := s.nc.SubscribeSync("replies")
	if err != nil {
		t.Fatal(err)
	}
	m, err := bus.NewMsg(subject.WorkerJob("acme", "bot", "slow"), tick("look"))
	if err != nil {
		t.Fatal(err)
	}
	m.Reply = "replies"
	m.Header.Set(message.HeaderBeats, "1")
	m.Header.Set(message.HeaderCallID, "run-1")
	if err := s.nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b, err := beats.NextMsg(10 * time.Second)
		if err != nil || string(b.Data) != `{"beat":true}` {
			t.Fatalf("beat %v, %v", b, err)
		}
	}
	close(release)
	if _, err := replies.NextMsg(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if n, _, err := beats.Pending(); err != nil || n != 0 {
		t.Errorf("%d beats after the reply, %v", n, err)
	}
}
