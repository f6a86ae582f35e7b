// Package harness builds the commands and runs them for the scenarios in e2e.
package harness
