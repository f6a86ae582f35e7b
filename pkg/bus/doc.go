// Package bus is the one place that speaks NATS request/reply for Toolbus: the
// connection, the server side of a service (Server), the client side (Client),
// the error envelope, spilled bodies and the trace context.
//
// It knows nothing of tools, state or files; those build on it.
package bus
