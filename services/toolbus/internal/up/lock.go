package up

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const lockFile = "lock"

// lockData makes this process the only user of a data folder. Close the
// returned file to give it up. The file stays: removing it would let two
// processes hold locks on two files of one name.
func lockData(dir string) (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errcode.Wrap(errcode.Unavailable, err, "lock the data folder: %v", rootCause(err))
	}
	taken, err := tryLock(f)
	switch {
	case err != nil:
		f.Close()
		return nil, errcode.Wrap(errcode.Unavailable, err, "lock the data folder %s: %v", dir, err)
	case taken:
		holder := holderOf(f)
		f.Close()
		return nil, errcode.New(errcode.Conflict, "the data folder %s is in use by %s", dir, holder)
	}
	// The content is for people only; the lock itself is what counts.
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			f.Close()
			return nil, errcode.Wrap(errcode.Unavailable, err, "write %s: %v", f.Name(), rootCause(err))
		}
	}
	return f, nil
}

func holderOf(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return "process " + pid
	}
	return "another process"
}
