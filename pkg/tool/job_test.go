package tool

import (
	"context"
	"errors"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

func TestJobsOfATool(t *testing.T) {
	ok := func(context.Context, *Call, struct{}) (Result, error) { return OK(""), nil }
	look := func(context.Context, *JobCall) (JobResult, error) { return NoAction("looked"), nil }
	if _, is := New("a", "x", ok).(JobProvider); is {
		t.Error("a tool without jobs is a JobProvider")
	}
	tl := New("a", "x", ok, Job("one", "One", "Looks.", look), Job("two", "Two", "Looks.", look))
	if defs := JobsOf(tl); len(defs) != 2 || defs[0] != (JobDefinition{"one", "One", "Looks."}) || defs[1].ID != "two" {
		t.Errorf("%+v", defs)
	}
	p := tl.(JobProvider)
	if r, err := p.ExecuteJob(t.Context(), &JobCall{JobTypeID: "two"}); err != nil || r.Summary != "looked" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err := p.ExecuteJob(t.Context(), &JobCall{JobTypeID: "three"})
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details.Fields[0].Field != "jobTypeId" {
		t.Errorf("got %v", err)
	}
	for name, opts := range map[string][]Option{
		"twice":          {Job("one", "One", "Looks.", look), Job("one", "One", "Looks.", look)},
		"bad id":         {Job("a.b", "One", "Looks.", look)},
		"no id":          {Job("", "One", "Looks.", look)},
		"no name":        {Job("one", "", "Looks.", look)},
		"no description": {Job("one", "One", "", look)},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			New("a", "x", ok, opts...)
		})
	}
}

func TestJobResultsOnTheWire(t *testing.T) {
	for _, c := range []struct {
		res  JobResult
		want message.JobReply
	}{
		{JobResult{}, message.JobReply{Action: "none"}},
		{NoAction(), message.JobReply{Action: "none"}},
		{NoAction("nothing new", "3 seen"), message.JobReply{Action: "none", LogSummary: "nothing new; 3 seen"}},
		{Wake("100%"), message.JobReply{Action: "wake", WakeMessage: "100%"}},
		{Wake("m", LogSummary("%d new", 3), WakeChat("c")), message.JobReply{Action: "wake", WakeMessage: "m", ChatID: "c", LogSummary: "3 new"}},
		{WakeStateless("m"), message.JobReply{Action: "wakeStateless", WakeMessage: "m"}},
	} {
		if err := c.res.Validate(); err != nil {
			t.Errorf("%+v: %v", c.res, err)
		}
		if got := c.res.Reply(nil); got.Action != c.want.Action || got.WakeMessage != c.want.WakeMessage || got.ChatID != c.want.ChatID || got.LogSummary != c.want.LogSummary {
			t.Errorf("got %+v, want %+v", got, c.want)
		}
	}
	for _, bad := range []JobResult{Wake(""), Wake(" \n"), {Action: "x"}, {Message: "m"}, {Chat: "c"}, Wake("m", WakeChat("\n")), WakeStateless("m", WakeChat("c"))} {
		if err := bad.Validate(); !errors.Is(err, errcode.Internal) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}
