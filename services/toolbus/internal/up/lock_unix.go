//go:build unix

package up

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the exclusive lock on f, or reports that another process has
// it. The kernel drops the lock with the process, however it ends.
func tryLock(f *os.File) (taken bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
