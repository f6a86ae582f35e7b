package toolstate

import (
	"context"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Client performs the ToolState operations of one tenant. It is safe for
// concurrent use.
//
// Requests are tried again while the service is unavailable, within ctx (10 s
// when it has no deadline). A write without an opId gets one, so that it has one
// effect however often it is tried. Errors are *errcode.Error.
type Client struct {
	nc     *nats.Conn
	tenant string
}

// New makes a Client on a connection that stays the caller's.
func New(nc *nats.Conn, tenant string) *Client { return &Client{nc: nc, tenant: tenant} }

// do asks for op on a document, after a look at what the request's JSON form
// would hide: text that is not UTF-8 would come out repaired, as another key.
func do[Out any](ctx context.Context, c *Client, op string, in any, ref message.ToolStateRef, keys ...string) (Out, error) {
	var out Out
	if err := subject.CheckTenant(c.tenant); err != nil {
		return out, err
	}
	if err := subject.CheckFree("chatId", ref.ChatID); err != nil {
		return out, err
	}
	if err := subject.CheckName("namespace", ref.Namespace); err != nil {
		return out, err
	}
	for _, k := range keys {
		if err := subject.CheckFree("key", k); err != nil {
			return out, err
		}
	}
	err := bus.Retry(ctx, c.nc, subject.ToolState(c.tenant, op), in, &out)
	return out, err
}

// opID is the opId of a request, or a new one.
func (c *Client) opID(ctx context.Context, id, op string, req any) string {
	if id == "" {
		return bus.OpID(ctx, "toolstate."+op, c.tenant, req)
	}
	return id
}

// Get reads one key.
func (c *Client) Get(ctx context.Context, req message.ToolStateGet) (message.ToolStateValue, error) {
	v, err := do[value](ctx, c, "get", req, req.ToolStateRef, req.Key)
	return v.ToolStateValue, err
}

// Set writes one key. A missed IfRevision is conflict.
func (c *Client) Set(ctx context.Context, req message.ToolStateSet) (message.ToolStateWritten, error) {
	req.OpID = c.opID(ctx, req.OpID, "set", req)
	return do[message.ToolStateWritten](ctx, c, "set", req, req.ToolStateRef, req.Key)
}

// Delete removes one key.
func (c *Client) Delete(ctx context.Context, req message.ToolStateDelete) (message.ToolStateDeleted, error) {
	req.OpID = c.opID(ctx, req.OpID, "delete", req)
	return do[message.ToolStateDeleted](ctx, c, "delete", req, req.ToolStateRef, req.Key)
}

// All reads a whole document.
func (c *Client) All(ctx context.Context, ref message.ToolStateRef) (message.ToolStateData, error) {
	return do[message.ToolStateData](ctx, c, "all", message.ToolStateAll{ToolStateRef: ref}, ref)
}

// Clear removes a whole document.
func (c *Client) Clear(ctx context.Context, req message.ToolStateClear) (message.ToolStateCleared, error) {
	req.OpID = c.opID(ctx, req.OpID, "clear", req)
	return do[message.ToolStateCleared](ctx, c, "clear", req, req.ToolStateRef)
}

// Append adds values to the end of an array. Appends that run at the same time
// all land.
func (c *Client) Append(ctx context.Context, req message.ToolStateAppend) (message.ToolStateAppended, error) {
	req.OpID = c.opID(ctx, req.OpID, "append", req)
	return do[message.ToolStateAppended](ctx, c, "append", req, req.ToolStateRef, req.Key)
}

// Increment adds to a number, exactly.
func (c *Client) Increment(ctx context.Context, req message.ToolStateIncrement) (message.ToolStateIncremented, error) {
	req.OpID = c.opID(ctx, req.OpID, "increment", req)
	return do[message.ToolStateIncremented](ctx, c, "increment", req, req.ToolStateRef, req.Key)
}

// Update sets and deletes several keys in one step. A missed IfRevision is
// conflict.
func (c *Client) Update(ctx context.Context, req message.ToolStateUpdate) (message.ToolStateWritten, error) {
	req.OpID = c.opID(ctx, req.OpID, "update", req)
	keys := slices.Concat(slices.Collect(maps.Keys(req.Set)), req.Delete)
	return do[message.ToolStateWritten](ctx, c, "update", req, req.ToolStateRef, keys...)
}

// List returns a page of the tenant's live documents, by namespace and chat.
func (c *Client) List(ctx context.Context, req message.ToolStateList) (message.ToolStateListing, error) {
	var out message.ToolStateListing
	if err := subject.CheckTenant(c.tenant); err != nil {
		return out, err
	}
	if err := (Scope{req.ChatID, req.Namespace}).check(); err != nil {
		return out, err
	}
	err := bus.Retry(ctx, c.nc, subject.ToolState(c.tenant, "list"), req, &out)
	return out, err
}
