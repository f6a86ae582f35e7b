package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/paths"
)

// Source is the tenant that is mirrored.
type Source interface {
	// Files lists every file.
	Files(ctx context.Context) ([]message.FileInfo, error)
	// File writes one version of a file to w and says which; Exists is false
	// when there is none. A file that changes meanwhile is a conflict.
	File(ctx context.Context, path string, w io.Writer) (message.FileInfo, error)
	// Documents lists every live ToolState document.
	Documents(ctx context.Context) ([]message.ToolStateEntry, error)
	// Document reads one; Found is false when it is gone.
	Document(ctx context.Context, namespace, chat string) (message.ToolStateData, error)
}

// Summary is what a sync did.
type Summary struct {
	Dir       string   `json:"dir"` // the tenant's folder
	Written   int      `json:"written"`
	Removed   int      `json:"removed"`
	Unchanged int      `json:"unchanged"`
	Warnings  []string `json:"warnings"`
}

const parallel = 4 // transfers at once

// Sync makes the folder below dir what the tenant holds now. It can be
// repeated after an error: what it had finished then is not done again.
//
// Files in the mirror's folders that no sync wrote are left alone, with a
// warning, unless they stand where one of the tenant's belongs.
func Sync(ctx context.Context, dir, tenant string, src Source) (sum Summary, err error) {
	sum = Summary{Dir: filepath.Join(dir, "config", "tenants", tenant), Warnings: []string{}}
	if err := subject.CheckTenant(tenant); err != nil {
		return sum, err
	}
	// Ask first: when the services do not answer, nothing is touched.
	files, err := src.Files(ctx)
	if err != nil {
		return sum, err
	}
	docs, err := src.Documents(ctx)
	if err != nil {
		return sum, err
	}
	d, err := openDisk(dir, tenant)
	if err != nil {
		return sum, err
	}
	defer d.close()
	ix, err := loadIndex(d, tenant)
	if err != nil {
		return sum, err
	}
	warning, err := d.ignore()
	if err != nil {
		return sum, err
	}
	if warning != "" {
		sum.Warnings = append(sum.Warnings, warning)
	}
	s := &syncer{disk: d, src: src, index: ix, sum: &sum}
	defer func() { err = errors.Join(err, s.index.save(d)) }()
	want := s.plan(files, docs)
	if err := s.removeGone(want); err != nil {
		return sum, err
	}
	if err := s.fetch(ctx, want); err != nil {
		return sum, err
	}
	return sum, s.findForeign()
}

type syncer struct {
	disk *disk
	src  Source

	mu    sync.Mutex // guards what follows
	index index
	sum   *Summary
}

// item is one file of the mirror: a tenant's file or a document.
type item struct {
	name    string // local
	version string // changes with the content
	file    *message.FileInfo
	doc     docRef
}

// plan names everything that the mirror shall hold.
func (s *syncer) plan(files []message.FileInfo, docs []message.ToolStateEntry) map[string]item {
	want := make(map[string]item, len(files)+len(docs))
	byPath := make(map[string]*message.FileInfo, len(files))
	for i, f := range files {
		// A mirror does not trust where its names come from.
		if err := paths.Check(f.Path); err != nil {
			s.sum.Warnings = append(s.sum.Warnings, fmt.Sprintf("file %q was not mirrored: %v", f.Path, err))
			continue
		}
		byPath[f.Path] = &files[i]
	}
	for p, local := range fileNames(slices.Collect(maps.Keys(byPath))) {
		name := path.Join(filesDir, local)
		want[name] = item{name: name, version: fileVersion(*byPath[p]), file: byPath[p]}
	}
	byRef := make(map[docRef]message.ToolStateEntry, len(docs))
	for _, e := range docs {
		ref := docRef{e.Namespace, e.ChatID}
		if err := ref.check(); err != nil {
			s.sum.Warnings = append(s.sum.Warnings, fmt.Sprintf("document %q of chat %q was not mirrored: %v", e.Namespace, e.ChatID, err))
			continue
		}
		byRef[ref] = e
	}
	for ref, local := range stateNames(slices.Collect(maps.Keys(byRef))) {
		name := path.Join(stateDir, local)
		want[name] = item{name: name, version: docVersion(byRef[ref].Revision, byRef[ref].ExpiresAt), doc: ref}
	}
	return want
}

func fileVersion(f message.FileInfo) string {
	return "file " + strconv.FormatUint(f.Revision, 10) + " " + f.SHA256
}

func docVersion(revision uint64, expiresAt string) string {
	return "document, laid out " + strconv.FormatUint(revision, 10) + " " + expiresAt
}

// removeGone removes what an earlier sync wrote and the tenant has no more.
func (s *syncer) removeGone(want map[string]item) error {
	for _, name := range slices.Sorted(maps.Keys(s.index.Entries)) {
		if _, ok := want[name]; ok {
			continue
		}
		if err := s.remove(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *syncer) remove(name string) error {
	keep := filesDir
	if strings.HasPrefix(name, stateDir+"/") {
		keep = stateDir
	}
	removed, err := s.disk.remove(name, keep)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.index.Entries, name)
	if removed {
		s.sum.Removed++
	}
	return nil
}

// fetch writes what is new or changed.
func (s *syncer) fetch(ctx context.Context, want map[string]item) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if s.unchanged(want[name]) {
			s.sum.Unchanged++
			continue
		}
		// Folders are made one after the other: two makers of one could each
		// remove the other's.
		if err := s.disk.folder(path.Dir(name)); err != nil {
			return errors.Join(err, g.Wait())
		}
		it := want[name]
		g.Go(func() error {
			if err := s.one(ctx, it); err != nil {
				return fmt.Errorf("mirror %s: %w", it.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// unchanged tells whether the file on disk is the wanted version. Without a
// record of it, its digest decides.
func (s *syncer) unchanged(it item) bool {
	s.mu.Lock()
	e, ok := s.index.Entries[it.name]
	s.mu.Unlock()
	if ok && e.Version == it.version && e.intact(s.disk, it.name) {
		return true
	}
	if it.file == nil || it.file.SHA256 == "" {
		return false
	}
	info, ok := s.disk.regular(it.name)
	if !ok || info.Size() != it.file.Size || info.Mode().Perm() != fileMode {
		return false
	}
	if sum, err := s.disk.digest(it.name); err != nil || sum != it.file.SHA256 {
		return false
	}
	return s.record(it.name, it.version) == nil
}

// record remembers a file as it stands on disk.
func (s *syncer) record(name, version string) error {
	info, ok := s.disk.regular(name)
	if !ok {
		return errcode.New(errcode.Conflict, "%s changed while it was written", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.Entries[name] = entry{Version: version, Size: info.Size(), Modified: info.ModTime().UnixNano()}
	return nil
}

func (s *syncer) one(ctx context.Context, it item) error {
	var version string
	var err error
	if it.file != nil {
		version, err = s.file(ctx, it)
	} else {
		version, err = s.document(ctx, it)
	}
	switch {
	case err != nil:
		return err
	case version == "": // gone since it was listed
		return s.remove(it.name)
	}
	if err := s.record(it.name, version); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Written++
	return nil
}

// errGone ends the writing of a file that is there no more.
var errGone = errors.New("gone")

// file transfers a file and returns the version it got; "" when it is gone.
func (s *syncer) file(ctx context.Context, it item) (string, error) {
	const tries = 5 // of a file that changes while it is read
	for try := 1; ; try++ {
		modified, _ := time.Parse(time.RFC3339Nano, it.file.Modified)
		var got message.FileInfo
		err := s.disk.write(it.name, fileMode, modified, func(w io.Writer) error {
			h := sha256.New()
			var err error
			got, err = s.src.File(ctx, it.file.Path, io.MultiWriter(w, h))
			if err != nil {
				return err
			}
			if !got.Exists {
				return errGone
			}
			if it.file.SHA256 == "" {
				return nil // the source does not tell; the revision must do
			}
			got.SHA256 = hex.EncodeToString(h.Sum(nil))
			if got.Revision == it.file.Revision && got.SHA256 != it.file.SHA256 {
				return errcode.New(errcode.Internal, "the content has another SHA-256 than the file")
			}
			return nil
		})
		switch {
		case errors.Is(err, errGone):
			return "", nil
		case errors.Is(err, errcode.Conflict) && try < tries:
			continue
		case err != nil:
			return "", err
		}
		return fileVersion(got), nil
	}
}

// document writes a ToolState document as it is stored, laid out.
func (s *syncer) document(ctx context.Context, it item) (string, error) {
	data, err := s.src.Document(ctx, it.doc.namespace, it.doc.chat)
	if err != nil || !data.Found {
		return "", err
	}
	if data.Data == nil {
		data.Data = map[string]json.RawMessage{}
	}
	raw, err := message.Marshal(message.ToolStateDocument{ExpiresAt: data.ExpiresAt, Data: data.Data})
	if err != nil {
		return "", errcode.Wrap(errcode.Internal, err, "unreadable document: %v", err)
	}
	text, err := layout(raw)
	if err != nil {
		return "", errcode.Wrap(errcode.Internal, err, "unreadable document: %v", err)
	}
	err = s.disk.write(it.name, fileMode, time.Time{}, func(w io.Writer) error {
		_, err := w.Write(text)
		return diskError(err)
	})
	return docVersion(data.Revision, data.ExpiresAt), err
}

// findForeign warns of files that no sync wrote.
func (s *syncer) findForeign() error {
	var foreign []string
	for _, dir := range []string{filesDir, stateDir} {
		err := s.disk.walk(dir, func(name string) {
			if _, ok := s.index.Entries[name]; !ok {
				foreign = append(foreign, name)
			}
		})
		if err != nil {
			return err
		}
	}
	if n := len(foreign); n > 0 {
		more := ""
		if n > 3 {
			foreign, more = foreign[:3], ", …"
		}
		s.sum.Warnings = append(s.sum.Warnings, fmt.Sprintf("%d in the mirror did not come from the tenant and were left alone: %s%s", n, strings.Join(foreign, ", "), more))
	}
	return nil
}
