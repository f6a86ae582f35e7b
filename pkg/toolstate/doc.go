// Package toolstate is the client of ToolState, the expiring scratch pads of a
// tenant's chats: Client has one method per operation of the contract, Scratch
// is the tool.State of one chat and namespace, Watch reports changes, and
// ParseTTL reads the spellings of a life.
//
// Every write carries an opId and is tried again while the service is away, so
// that it has one effect. The package imports no service.
package toolstate
