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
	sum = Summary{Dir: home(dir, tenant), Warnings: []string{}}
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
	s := &syncer{src: src, sum: &sum}
	if err := s.open(dir, tenant); err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return sum, s.apply(ctx, plan(s.valid(files, docs)))
}

type syncer struct {
	disk *disk
	src  Source

	mu    sync.Mutex // guards what follows
	index index
	sum   *Summary
	tell  func(Event) // of each change; may be nil
	// failed decides what becomes of the sync when one item cannot be written; nil
	// ends it with the error.
	failed func(ctx context.Context, err error) error
	read   map[docRef]message.ToolStateData // documents that need not be asked for again
}

// open opens the tenant's folder. Close the syncer afterwards.
func (s *syncer) open(dir, tenant string) error {
	d, err := openDisk(dir, tenant)
	if err != nil {
		return err
	}
	ix, err := loadIndex(d, tenant)
	var warning string
	if err == nil {
		warning, err = d.ignore()
	}
	if err != nil {
		d.close()
		return err
	}
	if warning != "" {
		s.warn("%s", warning)
	}
	s.disk, s.index = d, ix
	return nil
}

// close records what stands and closes the folder.
func (s *syncer) close() error {
	defer s.disk.close()
	return s.index.save(s.disk)
}

// home is the tenant's folder.
func home(dir, tenant string) string { return filepath.Join(dir, "config", "tenants", tenant) }

// apply makes the folder what is wanted.
func (s *syncer) apply(ctx context.Context, want map[string]item) error {
	if err := s.removeGone(want); err != nil {
		return err
	}
	if err := s.reserve(want); err != nil {
		return err
	}
	if err := s.fetch(ctx, want); err != nil {
		return err
	}
	return s.findForeign()
}

func (s *syncer) warn(format string, args ...any) {
	s.sum.Warnings = append(s.sum.Warnings, fmt.Sprintf(format, args...))
}

// done counts and tells a change of the mirror; the caller holds mu.
func (s *syncer) done(e Event) {
	switch e.Kind {
	case Written:
		s.sum.Written++
	case Removed:
		s.sum.Removed++
	}
	if s.tell != nil {
		s.tell(e)
	}
}

// item is one file of the mirror: a tenant's file or a document.
type item struct {
	name    string // local
	version string // changes with the content
	file    *message.FileInfo
	doc     docRef
}

// valid are the files and documents whose names can be mirrored; a mirror does
// not trust where its names come from.
func (s *syncer) valid(files []message.FileInfo, docs []message.ToolStateEntry) (map[string]message.FileInfo, map[docRef]message.ToolStateEntry) {
	byPath := make(map[string]message.FileInfo, len(files))
	for _, f := range files {
		if err := paths.Check(f.Path); err != nil {
			s.warn("file %q was not mirrored: %v", f.Path, err)
			continue
		}
		byPath[f.Path] = f
	}
	byRef := make(map[docRef]message.ToolStateEntry, len(docs))
	for _, e := range docs {
		ref := docRef{e.Namespace, e.ChatID}
		if err := ref.check(); err != nil {
			s.warn("document %q of chat %q was not mirrored: %v", e.Namespace, e.ChatID, err)
			continue
		}
		byRef[ref] = e
	}
	return byPath, byRef
}

// plan names everything that the mirror shall hold.
func plan(files map[string]message.FileInfo, docs map[docRef]message.ToolStateEntry) map[string]item {
	want := make(map[string]item, len(files)+len(docs))
	for p, local := range fileNames(slices.Collect(maps.Keys(files))) {
		name, f := path.Join(filesDir, local), files[p]
		want[name] = item{name: name, version: fileVersion(f), file: &f}
	}
	for ref, local := range stateNames(slices.Collect(maps.Keys(docs))) {
		name := path.Join(stateDir, local)
		want[name] = item{name: name, version: entryVersion(docs[ref]), doc: ref}
	}
	return want
}

func fileVersion(f message.FileInfo) string {
	return "file " + strconv.FormatUint(f.Revision, 10) + " " + f.SHA256
}

func entryVersion(e message.ToolStateEntry) string { return docVersion(e.Revision, e.ExpiresAt) }

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
		s.done(Event{Kind: Removed, Name: name})
	}
	return nil
}

// reserve records what is going to be written, before it is: what a sync that
// is killed has written is known to be its own then.
func (s *syncer) reserve(want map[string]item) error {
	fresh := false
	for name := range want {
		if _, ok := s.index.Entries[name]; !ok {
			s.index.Entries[name], fresh = entry{}, true
		}
	}
	if !fresh {
		return nil
	}
	return s.index.save(s.disk)
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
			err := s.one(ctx, it)
			if err == nil {
				return nil
			}
			err = fmt.Errorf("mirror %s: %w", it.name, err)
			if s.failed == nil {
				return err
			}
			return s.failed(ctx, err)
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
	s.done(Event{Kind: Written, Name: it.name, Size: s.index.Entries[it.name].Size})
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
	data, ok := s.read[it.doc]
	if !ok {
		var err error
		if data, err = s.src.Document(ctx, it.doc.namespace, it.doc.chat); err != nil {
			return "", err
		}
	}
	if !data.Found {
		return "", nil
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
		return err
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
		s.warn("%d in the mirror did not come from the tenant and were left alone: %s%s", n, strings.Join(foreign, ", "), more)
	}
	return nil
}
