//go:build faults

package area

const everyNext = true
