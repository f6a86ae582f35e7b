// Package contract reads contracts/asyncapi.yaml, the wire contract for other
// languages, for the tests that hold it against the Go types, the subjects and
// recorded traffic.
//
// The schemas of the document are generated from the Go types, comments
// included; what Go's types cannot say (allowed values, patterns) stands in
// refine.go. Channels and operations are written by hand.
package contract
