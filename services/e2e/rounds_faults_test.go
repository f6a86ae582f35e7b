//go:build faults

package e2e

const (
	appendRounds = 100
	linearRounds = 15
)
