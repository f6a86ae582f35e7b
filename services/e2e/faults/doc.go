// Package faults holds the scenarios that play while parts of the system are
// killed, stepped down and cut off, and the models against which what callers saw
// is checked.
package faults
