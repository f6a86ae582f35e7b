//go:build !faults

package e2e

import "time"

// How much the scenarios with faults do when they run beside all other tests.
const (
	appendRounds = 3
	linearRounds = 2
)

// Of calls while their workers come and go.
const (
	loadRate   = 60 // calls a second
	loadRounds = 3
	loadPause  = 2 * time.Second
)
