//go:build !large

package e2e

// largeSize is the size of the large file: much more than a transfer may take.
const largeSize = 192 << 20
