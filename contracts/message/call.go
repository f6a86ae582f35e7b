package message

import "encoding/json"

// CallRequest calls a tool.
type CallRequest struct {
	CallID         string          `json:"callId,omitempty"` // required for submit; made by the worker otherwise
	ChatID         string          `json:"chatId,omitempty"` // needed by tools that use ToolState
	Arguments      json.RawMessage `json:"arguments,omitempty"`
	TimeoutMs      int64           `json:"timeoutMs,omitempty"` // shortens the tool's own limit, never lengthens it
	IdempotencyKey string          `json:"idempotencyKey,omitempty"`
	WakeOnDone     bool            `json:"wakeOnDone,omitempty"` // of a submit: wake the agent when the call has ended
}

// CallReply is what a tool that ran has to say. Success false means that the
// tool ran and failed: the model sees ErrorMessage. A call that could not be
// served is an error reply instead.
//
// When a tool has only data for programs, Content is its compact JSON. A reply
// too large for one message does not say it twice: there, an empty Content
// beside Data stands for Data's JSON, which the reader fills in.
type CallReply struct {
	CallID       string          `json:"callId"`
	Success      bool            `json:"success"`
	Content      string          `json:"content"`                // text for the model
	ErrorMessage string          `json:"errorMessage,omitempty"` // why it failed
	Data         json.RawMessage `json:"data,omitempty"`         // any JSON, for programs
	DurationMs   int64           `json:"durationMs"`
}

// ProgressEvent is published on a call's progress subject.
type ProgressEvent struct {
	Beat     bool            `json:"beat,omitempty"`     // the call is alive
	Progress json.RawMessage `json:"progress,omitempty"` // what the tool reported
}
