// Package tooltest runs tools in a test, without a server: an Env keeps
// ToolState, store and files in memory, calls tools as a worker does, and
// remembers progress and log lines.
//
//	env := tooltest.New(t, addTrackingCode, submitRelabeling)
//	res, err := env.Call(ctx, "addTrackingCode", map[string]any{"code": "]C1123"}, tooltest.Chat("c1"))
//	out, err := env.RunJob(ctx, "readInbox", "inbox_new_lines")
//
// Conformance holds what every tool must do, whatever it is for; each tool's
// tests run it.
//
// The package must not import a transport: what a tool does here it does with
// no NATS around.
package tooltest
