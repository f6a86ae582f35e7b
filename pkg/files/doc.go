// Package files is the client of a tenant's file area: tool.Files over NATS.
package files
