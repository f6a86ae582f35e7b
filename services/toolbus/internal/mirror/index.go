package mirror

import (
	"encoding/json"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const indexFile = workDir + "/index.json"

// index remembers what was written, so that a later sync transfers only what
// changed and removes only what is its own.
type index struct {
	Tenant  string           `json:"tenant"`
	Entries map[string]entry `json:"entries"` // by local name
}

// entry is a file as it was written.
type entry struct {
	Version  string `json:"version"`  // of the file or document it was made from
	Size     int64  `json:"size"`     // bytes, on disk
	Modified int64  `json:"modified"` // Unix nanoseconds, on disk
}

// loadIndex returns an empty index when there is none, or none that can be
// read: then everything is compared anew.
func loadIndex(d *disk, tenant string) (index, error) {
	ix := index{Tenant: tenant, Entries: map[string]entry{}}
	if _, ok := d.regular(indexFile); !ok {
		return ix, nil
	}
	b, err := d.root.ReadFile(indexFile)
	if err != nil {
		return ix, diskError(err)
	}
	var old index
	if err := json.Unmarshal(b, &old); err != nil {
		return ix, nil //nolint:nilerr // an unreadable index is none
	}
	if old.Tenant != tenant {
		// On a file system that ignores case, two tenants can share a folder.
		return ix, errcode.Field("dir", "the folder holds the mirror of tenant %q", old.Tenant)
	}
	for name, e := range old.Entries {
		if own(name) {
			ix.Entries[name] = e
		}
	}
	return ix, nil
}

// own tells whether a name is one that a sync can have written.
func own(name string) bool {
	return path.Clean(name) == name && filepath.IsLocal(name) && (strings.HasPrefix(name, filesDir+"/") || strings.HasPrefix(name, stateDir+"/"))
}

func (ix index) save(d *disk) error {
	b, err := json.MarshalIndent(ix, "", "  ")
	if err != nil {
		return err
	}
	return d.write(indexFile, 0o644, time.Time{}, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// intact tells whether a file is still as this entry's sync wrote it.
func (e entry) intact(d *disk, name string) bool {
	info, ok := d.regular(name)
	return ok && info.Size() == e.Size && info.ModTime().UnixNano() == e.Modified && info.Mode().Perm() == fileMode
}
