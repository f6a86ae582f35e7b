package mirror

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// ignored are the folders that do not belong into a repository.
var ignored = []string{"/files/", "/tmp/", "/" + workDir + "/"}

// ignore makes .gitignore name the mirror's folders; lines of others stay.
func (d *disk) ignore() (warning string, err error) {
	const name = ".gitignore"
	var old string
	switch info, err := d.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", diskError(err)
	case !info.Mode().IsRegular():
		return name + " is not a file and was left alone: the mirror may get into a repository", nil
	default:
		b, err := d.root.ReadFile(name)
		if err != nil {
			return "", diskError(err)
		}
		old = string(b)
	}
	lines := strings.Split(strings.ReplaceAll(old, "\r\n", "\n"), "\n")
	text := old
	for _, want := range ignored {
		if slices.Contains(lines, want) {
			continue
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += want + "\n"
	}
	if text == old {
		return "", nil
	}
	return "", d.write(name, 0o644, time.Time{}, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}
