// Package config reads a configuration as people write it and checks all of
// it: strict JSON, structure (contracts/schema), and what a schema cannot say.
// Every fault carries its field path; values of settings never appear in one,
// since they may be secrets.
//
// It knows nothing of NATS, nor of what is configured already.
package config
