//go:build linux || darwin || freebsd

package up

import "syscall"

// diskFree is how many bytes can still be written to the disk of a folder.
func diskFree(dir string) (int64, bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true //nolint:unconvert // their types differ between the systems
}
