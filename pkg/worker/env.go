package worker

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

// env gives one call its capabilities, over the worker's connection. Tenant,
// agent and tool are fixed here: a tool cannot ask for another's.
type env struct {
	w     *Worker
	who   subject.Agent
	tool  string
	chat  string
	depth int

	active *active // nil for a check
}

func (e *env) State(namespace string) tool.State {
	return toolstate.New(e.w.nc, e.who.Tenant).Scratch(e.chat, namespace)
}

func (e *env) Store() tool.RevisionStore {
	return store.New(e.w.nc, e.who.Tenant, e.who.Agent, e.tool)
}

func (e *env) Files() tool.Files { return files.New(e.w.nc, e.who.Tenant) }

func (e *env) CallTool(ctx context.Context, name string, arguments json.RawMessage) (tool.Result, error) {
	if err := subject.CheckName("tool", name); err != nil {
		return tool.Result{}, err
	}
	spill := bus.Spill{Family: subject.FamilyWorker, Tenant: e.who.Tenant, Agent: e.who.Agent, Max: e.w.cfg.MaxBody}
	req := message.CallRequest{
		CallID: uuid.NewString(), ChatID: e.chat, Arguments: arguments,
		IdempotencyKey: bus.EffectKey(ctx, "call", name, string(arguments)), // of a call that may run again
	}
	header := nats.Header{
		message.HeaderDepth: {strconv.Itoa(e.depth + 1)}, message.HeaderBeats: {"1"}, message.HeaderFirstBeat: {"1000"},
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	watch := func() func() {
		return watchCall(e.w.nc, subject.AgentProgress(e.who.Tenant, e.who.Agent, req.CallID), func() {
			lost(errcode.New(errcode.WorkerLost, "the worker that ran %s has not been heard of for %s", name, lostAfter))
		})
	}
	r, err := bus.CallTool(ctx, e.w.nc, spill, subject.WorkerCall(e.who.Tenant, e.who.Agent, name), req, header, watch)
	if err != nil && errcode.Of(context.Cause(ctx)) == errcode.WorkerLost {
		err = context.Cause(ctx)
	}
	return tool.Result{Success: r.Success, Content: r.Content, ErrorMessage: r.ErrorMessage, Data: r.Data}, err
}

func (e *env) Progress(progress json.RawMessage) {
	if e.active != nil { // a check has nobody to tell
		e.active.say(progress)
	}
}

func (e *env) Now() time.Time { return time.Now() }
