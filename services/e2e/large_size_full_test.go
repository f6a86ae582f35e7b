//go:build large

package e2e

const largeSize = 2 << 30
