package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// replaceFile has fill write a file that takes the place of the one at path, if
// there is one, when fill returns without an error. What is not a regular file
// (a device, a pipe) is written to as it is.
func replaceFile(path string, fill func(*os.File) error) (err error) {
	st, err := os.Stat(path)
	switch {
	case err == nil && st.IsDir():
		return errcode.Field("file", "%q is a folder", path)
	case err == nil && !st.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return inputError("file", err)
		}
		return errors.Join(fill(f), f.Close())
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return inputError("file", err)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // what a link points to is replaced, not the link
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		if p := new(os.PathError); errors.As(err, &p) {
			p.Path = path // whoever asked knows nothing of the file beside it
		}
		return inputError("file", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	mode := os.FileMode(0o644)
	if st != nil {
		mode = st.Mode().Perm()
	}
	err = fill(f)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// rewind makes a file empty again; what cannot be is left with what it has, and
// that is the error.
func rewind(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// inputSize is how many bytes in will give, -1 when that is not known.
func inputSize(in io.Reader) int64 {
	i, ok := in.(*input)
	if !ok {
		return -1
	}
	f, ok := i.Reader.(*os.File)
	if !ok {
		return -1
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return -1
	}
	return st.Size()
}
