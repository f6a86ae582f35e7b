// Package up runs all of Toolbus in one process: an embedded NATS server with
// JetStream on disk, and every service on a connection of its own, as if each
// were a process. Only this package links nats-server.
package up
