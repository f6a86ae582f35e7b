package tooltest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/paths"
	"github.com/toolbus/toolbus/pkg/tool"
)

// fileMemory keeps the tenants' files of an Env.
type fileMemory struct {
	now func() time.Time

	mu       sync.Mutex
	files    map[fileKey]memoryFile
	revision uint64
}

type fileKey struct{ tenant, path string }

// memoryFile's content is never changed in place.
type memoryFile struct {
	content []byte
	info    tool.FileInfo
}

func newFileMemory(now func() time.Time) *fileMemory {
	return &fileMemory{now: now, files: map[fileKey]memoryFile{}}
}

func (m *fileMemory) of(tenant string) tool.Files { return &memoryFiles{m, tenant} }

// memoryFiles is one tenant's file area.
type memoryFiles struct {
	m      *fileMemory
	tenant string
}

func (f *memoryFiles) at(ctx context.Context, path string) (fileKey, error) {
	if err := ctx.Err(); err != nil {
		return fileKey{}, errcode.From(err)
	}
	return fileKey{f.tenant, path}, paths.Check(path)
}

func (f *memoryFiles) get(ctx context.Context, path string) (memoryFile, bool, error) {
	k, err := f.at(ctx, path)
	if err != nil {
		return memoryFile{}, false, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	file, ok := f.m.files[k]
	return file, ok, nil
}

func (f *memoryFiles) Read(ctx context.Context, path string) ([]byte, tool.FileInfo, bool, error) {
	file, ok, err := f.get(ctx, path)
	return slices.Clone(file.content), file.info, ok, err
}

func (f *memoryFiles) ReadAt(ctx context.Context, path string, offset, length int64) ([]byte, tool.FileInfo, bool, error) {
	if offset < 0 || length < 0 {
		return nil, tool.FileInfo{}, false, errcode.Field("offset", "offset and length must not be negative")
	}
	file, ok, err := f.get(ctx, path)
	size := int64(len(file.content))
	from := min(offset, size)
	return slices.Clone(file.content[from : min(size-from, length)+from]), file.info, ok, err
}

func (f *memoryFiles) Stat(ctx context.Context, path string) (tool.FileInfo, bool, error) {
	file, ok, err := f.get(ctx, path)
	return file.info, ok, err
}

func (f *memoryFiles) Write(ctx context.Context, path string, content []byte) (tool.FileInfo, error) {
	return f.put(ctx, path, func(memoryFile, bool) ([]byte, error) { return slices.Clone(content), nil })
}

func (f *memoryFiles) Append(ctx context.Context, path string, content []byte) (tool.FileInfo, error) {
	return f.put(ctx, path, func(old memoryFile, _ bool) ([]byte, error) {
		return slices.Concat(old.content, content), nil
	})
}

func (f *memoryFiles) Create(ctx context.Context, path string, content []byte) (tool.FileInfo, error) {
	return f.put(ctx, path, func(old memoryFile, exists bool) ([]byte, error) {
		if exists {
			return nil, errcode.ConflictAt(old.info.Revision, "%s exists already", path)
		}
		return slices.Clone(content), nil
	})
}

func (f *memoryFiles) put(ctx context.Context, path string, change func(old memoryFile, exists bool) ([]byte, error)) (tool.FileInfo, error) {
	k, err := f.at(ctx, path)
	if err != nil {
		return tool.FileInfo{}, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	old, exists := f.m.files[k]
	content, err := change(old, exists)
	if err != nil {
		return tool.FileInfo{}, err
	}
	f.m.revision++
	info := tool.FileInfo{Path: path, Size: int64(len(content)), Modified: f.m.now().UTC(), Revision: f.m.revision}
	f.m.files[k] = memoryFile{content, info}
	return info, nil
}

func (f *memoryFiles) List(ctx context.Context, prefix string) ([]tool.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, errcode.From(err)
	}
	if err := paths.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	infos := []tool.FileInfo{}
	for k, file := range f.m.files {
		if k.tenant == f.tenant && strings.HasPrefix(k.path, prefix) {
			infos = append(infos, file.info)
		}
	}
	slices.SortFunc(infos, func(a, b tool.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return infos, nil
}

func (f *memoryFiles) Move(ctx context.Context, from, to string) (tool.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return tool.FileInfo{}, errcode.From(err)
	}
	if err := paths.CheckMove(from, to); err != nil {
		return tool.FileInfo{}, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	k, target := fileKey{f.tenant, from}, fileKey{f.tenant, to}
	file, ok := f.m.files[k]
	if !ok {
		return tool.FileInfo{}, errcode.New(errcode.NotFound, "no file %q", from)
	}
	if old, exists := f.m.files[target]; exists {
		return tool.FileInfo{}, errcode.ConflictAt(old.info.Revision, "%q exists already", to)
	}
	f.m.revision++
	file.info.Path, file.info.Revision, file.info.Modified = to, f.m.revision, f.m.now().UTC()
	f.m.files[target] = file
	delete(f.m.files, k)
	return file.info, nil
}

func (f *memoryFiles) Delete(ctx context.Context, path string) (bool, error) {
	k, err := f.at(ctx, path)
	if err != nil {
		return false, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	_, ok := f.m.files[k]
	delete(f.m.files, k)
	return ok, nil
}
