//go:build faults

package e2e

import "time"

const (
	appendRounds = 100
	linearRounds = 15
)

const (
	loadRate   = 500
	loadRounds = 6
	loadPause  = 5 * time.Second
)
