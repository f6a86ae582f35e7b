//go:build !faults

package area

// everyNext tries every crash with everything that may come next, not only with
// nothing and one other.
const everyNext = false
