package mirror

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const (
	filesDir = "files"
	stateDir = "tmp/state"
	workDir  = ".toolbus-sync"

	fileMode = 0o444 // a mirror is for reading
	dirMode  = 0o755

	leftover = time.Hour // an unfinished file older than this is nobody's any more
)

// disk is the tenant's folder.
type disk struct{ root *os.Root }

// openDisk makes and opens DIR/config/tenants/<tenant>. A symbolic link on the
// way below DIR is refused.
func openDisk(dir, tenant string) (*disk, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, errcode.Field("dir", "%s is not a folder", dir)
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, diskError(err)
	}
	top, err := os.OpenRoot(dir)
	if err != nil {
		return nil, diskError(err)
	}
	defer top.Close()
	at := ""
	for _, name := range []string{"config", "tenants", tenant} {
		at = path.Join(at, name)
		if err := top.Mkdir(at, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, diskError(err)
		}
		info, err := top.Lstat(at)
		if err != nil {
			return nil, diskError(err)
		}
		if !info.IsDir() {
			return nil, errcode.Field("dir", "%s in %s is not a folder", at, dir)
		}
	}
	root, err := top.OpenRoot(at)
	if err != nil {
		return nil, diskError(err)
	}
	d := &disk{root}
	for _, dir := range []string{filesDir, stateDir, workDir} {
		if err := d.folder(dir); err != nil {
			root.Close()
			return nil, err
		}
	}
	d.sweep()
	return d, nil
}

func (d *disk) close() { _ = d.root.Close() }

// folder makes a folder and those above it. What stands there and is no
// folder, such as a symbolic link to one, is removed.
func (d *disk) folder(name string) error {
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		at = path.Join(at, part)
		info, err := d.root.Lstat(at)
		if err == nil && info.IsDir() {
			continue
		}
		if err == nil {
			if err := d.root.Remove(at); err != nil {
				return diskError(err)
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return diskError(err)
		}
		if err := d.root.Mkdir(at, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return diskError(err)
		}
	}
	return nil
}

// write makes a file out of what fill writes, all at once. Its folder must
// exist.
func (d *disk) write(name string, mode fs.FileMode, modified time.Time, fill func(io.Writer) error) (err error) {
	tmp := path.Join(workDir, "tmp-"+uuid.NewString())
	f, err := d.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return diskError(err)
	}
	defer func() {
		f.Close()
		if err != nil {
			_ = d.root.Remove(tmp)
		}
	}()
	if err := fill(diskWriter{f}); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return diskError(err)
	}
	if err := f.Close(); err != nil {
		return diskError(err)
	}
	if !modified.IsZero() {
		if err := d.root.Chtimes(tmp, modified, modified); err != nil {
			return diskError(err)
		}
	}
	if d.isFolder(name) && d.root.Remove(name) != nil { // only an empty one goes
		return errcode.Wrap(errcode.Conflict, errDisk, "%s is a folder with files that did not come from the tenant; move it away", name)
	}
	return diskError(d.root.Rename(tmp, name))
}

// diskWriter tells the folder's errors from those of what is written.
type diskWriter struct{ f *os.File }

func (w diskWriter) Write(b []byte) (int, error) {
	n, err := w.f.Write(b)
	return n, diskError(err)
}

// regular is the particulars of a regular file, or false: also for a symbolic
// link to one.
func (d *disk) regular(name string) (fs.FileInfo, bool) {
	info, err := d.root.Lstat(name)
	return info, err == nil && info.Mode().IsRegular()
}

// isFolder is false also for a symbolic link to one.
func (d *disk) isFolder(name string) bool {
	info, err := d.root.Lstat(name)
	return err == nil && info.IsDir()
}

// digest is a file's SHA-256 in lower-case hex.
func (d *disk) digest(name string) (string, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return "", diskError(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", diskError(err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// remove removes a file and the folders that it leaves empty, up to keep. A
// name that is gone, or leads through a symbolic link, is left alone.
func (d *disk) remove(name, keep string) (bool, error) {
	for at := path.Dir(name); at != keep && at != "."; at = path.Dir(at) {
		if !d.isFolder(at) {
			return false, nil
		}
	}
	if d.isFolder(name) {
		return false, nil
	}
	if err := d.root.Remove(name); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, diskError(err)
	}
	for at := path.Dir(name); at != keep && at != "."; at = path.Dir(at) {
		if d.root.Remove(at) != nil { // not empty
			break
		}
	}
	return true, nil //nolint:nilerr // a folder that stays because it is not empty is no fault
}

// walk calls fn for everything below dir that is no folder.
func (d *disk) walk(dir string, fn func(name string)) error {
	return fs.WalkDir(d.root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return diskError(err)
		}
		if !e.IsDir() {
			fn(name)
		}
		return nil
	})
}

// sweep removes what an interrupted sync left unfinished.
func (d *disk) sweep() {
	entries, err := fs.ReadDir(d.root.FS(), workDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), "tmp-") && time.Since(info.ModTime()) > leftover {
			_ = d.root.Remove(path.Join(workDir, e.Name()))
		}
	}
}

// diskError gives a file system's error a code.
func diskError(err error) error {
	if err == nil {
		return nil
	}
	var p *os.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		err = fmt.Errorf("%s: %w", p.Path, p.Err)
	case errors.As(err, &l):
		err = fmt.Errorf("%s: %w", l.New, l.Err)
	}
	return errcode.Wrap(errcode.Unavailable, errors.Join(errDisk, err), "mirror folder: %v", err)
}

// errDisk tells the local folder's errors from the services'.
var errDisk = errors.New("mirror folder")
