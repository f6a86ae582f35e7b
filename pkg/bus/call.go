package bus

import (
	"context"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// CallTool sends a tool call to a subject and waits for its result; arguments
// and result of any size up to the spill's limit pass. When ctx ends first, the
// call is cancelled at the worker. header stays as it is. The worker learns ctx's deadline. Watch, if
// not nil, is called just before the request is sent, and what it returns just
// after the reply: in between, and not while large bodies are moved, the worker
// should be heard of.
func CallTool(ctx context.Context, nc *nats.Conn, spill Spill, to string, req message.CallRequest, header nats.Header, watch func() (stop func())) (message.CallReply, error) {
	var out message.CallReply
	if d, ok := ctx.Deadline(); ok && req.TimeoutMs == 0 {
		req.TimeoutMs = max(time.Until(d).Milliseconds(), 1)
	}
	body, err := message.Marshal(req)
	if err != nil {
		return out, errcode.Wrap(errcode.InvalidRequest, err, "the request has no JSON form: %v", err)
	}
	m := &nats.Msg{Subject: to, Header: header, Data: body}
	if !spill.Fits(nc, len(body)) {
		m.Header = maps.Clone(header)
		if err := spill.Out(ctx, nc, m); err != nil {
			return out, err
		}
		m.Header.Set(message.HeaderCallID, req.CallID)
	}
	stop := func() {}
	if watch != nil {
		stop = watch()
	}
	reply, err := RequestMsg(ctx, nc, m)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			_ = nc.Publish(subject.AgentCancel(spill.Tenant, spill.Agent, req.CallID), nil)
		}
		return out, err
	}
	body, err = spill.In(ctx, nc, reply.Header, reply.Data)
	if err != nil {
		return out, err
	}
	err = DecodeReply(body, &out)
	if out.Success && out.Content == "" && len(out.Data) > 0 {
		out.Content = string(out.Data)
	}
	return out, err
}
