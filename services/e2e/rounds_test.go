//go:build !faults

package e2e

// How much the scenarios with faults do when they run beside all other tests.
const (
	appendRounds = 3
	linearRounds = 2
)
