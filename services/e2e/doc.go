// Package e2e holds the scenarios that cross services: real processes, a real
// server, and the command line as a user has it.
package e2e
