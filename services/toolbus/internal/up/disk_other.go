//go:build !(linux || darwin || freebsd)

package up

// diskFree is not known on this system.
func diskFree(string) (int64, bool) { return 0, false }
