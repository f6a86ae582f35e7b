//go:build !unix

package up

import (
	"errors"
	"os"
)

// tryLock fails: without a lock two servers could write one folder.
func tryLock(*os.File) (taken bool, err error) {
	return false, errors.New("this system has no file locks that toolbus knows")
}
