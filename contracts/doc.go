// Package contracts is the wire contract of Toolbus: the nouns every service,
// worker, agent and client agrees on. Read its packages first:
//
//   - subject: every NATS subject, stream, bucket and queue group, built and
//     parsed in one place, and the rules for names.
//   - message: every request, reply and event as a Go struct.
//   - errcode: the error codes and the Error that travels.
//   - schema: the JSON Schemas of the agent configuration.
//
// It imports the standard library only, so anyone may depend on it.
package contracts
