package mirror

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/paths"
)

// Live is a Source that can be asked about a single file.
type Live interface {
	Source
	// Stat returns a file's particulars; Exists is false when there is none.
	Stat(ctx context.Context, path string) (message.FileInfo, error)
}

// Hint says what may have changed: a file, or a document. The zero Hint is
// anything.
type Hint struct {
	File              string
	Namespace, ChatID string
}

// Kind is what became of a file of the mirror.
type Kind string

// The kinds of Events.
const (
	Written Kind = "written" // new, or with other content
	Removed Kind = "removed"
)

// Event is one change of the mirror.
type Event struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`           // in the tenant's folder, with "/"
	Size int64  `json:"size,omitempty"` // bytes, written
}

// Output hears of what Follow does, one call at a time.
type Output struct {
	Synced  func(Summary) // once, when the mirror is what the tenant holds
	Changed func(Event)   // each change after that
	Warn    func(string)  // each text once
}

// How often Follow compares the mirror with the tenant, beside what it is told.
const (
	regularly = time.Minute
	effort    = 100                    // a comparison may take one part in so many of the time
	least     = time.Second            // between two that hints ask for
	soonAgain = 250 * time.Millisecond // after one that failed; it doubles
	latest    = 10 * time.Second

	askTimeout = 5 * time.Second // of a question about one file or document
	maxBatch   = 256             // hints that are followed at once
)

// Follow is Sync, and then keeps the folder what the tenant holds, until ctx
// ends; that is no error. It looks where hints point, transfers what changed, and
// compares everything once a minute, or less often when there is much to compare:
// so a hint that is lost, and what somebody changes in the folder, lasts no
// longer than that.
//
// While the services are away it waits for them. What ends it is a folder that
// cannot be written, and a service that refuses.
func Follow(ctx context.Context, dir, tenant string, src Live, hints <-chan Hint, out Output) error {
	if err := subject.CheckTenant(tenant); err != nil {
		return err
	}
	f := &follower{dir: dir, tenant: tenant, src: src, out: out, warned: map[string]bool{}}
	err := f.run(ctx, hints)
	if f.s != nil {
		err = errors.Join(err, f.s.close())
	}
	if ctx.Err() != nil && !errors.Is(err, errDisk) {
		return nil // what was under way was cut off
	}
	return err
}

type follower struct {
	dir, tenant string
	src         Live
	out         Output

	s      *syncer // nil before the first comparison
	files  map[string]message.FileInfo
	docs   map[docRef]message.ToolStateEntry
	placed map[string]item // what the mirror was last made to hold
	warned map[string]bool

	timer *time.Timer // to the next comparison
	last  time.Time   // end of the last
	again atomic.Bool // something is left undone
	fails int         // comparisons in a row
}

func (f *follower) run(ctx context.Context, hints <-chan Hint) error {
	began := time.Now()
	if err := f.compare(ctx); err != nil {
		return err
	}
	f.out.Synced(*f.s.sum)
	f.warn(ctx)
	f.s.tell, f.s.failed = f.out.Changed, f.itemFailed
	f.timer = time.NewTimer(0)
	defer f.timer.Stop()
	f.compared(began, nil)
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case h := <-hints:
			err = f.follow(ctx, gather(h, hints))
		case <-f.timer.C:
			began := time.Now()
			err = f.compare(ctx)
			if f.passing(ctx, err) {
				f.compared(began, err)
				err = nil
			}
		}
		f.warn(ctx)
		if err != nil {
			return err
		}
	}
}

// gather takes the hints that wait, each once.
func gather(first Hint, hints <-chan Hint) map[Hint]bool {
	all := map[Hint]bool{first: true}
	for len(all) < maxBatch {
		select {
		case h := <-hints:
			all[h] = true
		default:
			return all
		}
	}
	return all
}

// compared sets the time of the next comparison.
func (f *follower) compared(began time.Time, err error) {
	f.last = time.Now()
	if f.again.Swap(false) || err != nil {
		f.fails++
		pause := min(soonAgain<<min(f.fails-1, 10), latest)
		f.timer.Reset(pause/2 + rand.N(pause))
		return
	}
	f.fails = 0
	pause := max(regularly, effort*time.Since(began))
	f.timer.Reset(pause + rand.N(pause/8))
}

// soon has everything compared as soon as may be.
func (f *follower) soon() { f.timer.Reset(max(0, least-time.Since(f.last))) }

// passing tells whether an error is one to wait out, and says so once.
func (f *follower) passing(ctx context.Context, err error) bool {
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil || errors.Is(err, errDisk):
		return false
	}
	if e := errcode.From(err); !e.Retryable && e.Code != errcode.Internal && e.Code != errcode.Conflict {
		return false
	}
	f.s.warn("%v%s", err, tryingAgain)
	return true
}

// itemFailed leaves one file or document for later, so that it does not keep
// the others from being mirrored.
func (f *follower) itemFailed(ctx context.Context, err error) error {
	if errors.Is(err, errDisk) || ctx.Err() != nil {
		return err
	}
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.again.Store(true)
	f.s.warn("%v%s", err, tryingAgain)
	return nil
}

const tryingAgain = "; trying again"

// warn passes on the warnings that were not yet.
func (f *follower) warn(ctx context.Context) {
	if f.s == nil || ctx.Err() != nil {
		return
	}
	for _, w := range f.s.sum.Warnings {
		if !f.warned[w] {
			f.warned[w] = true
			f.out.Warn(w)
		}
	}
	f.s.sum.Warnings = nil
	if f.fails == 0 { // of the next outage is told again
		maps.DeleteFunc(f.warned, func(w string, _ bool) bool { return strings.HasSuffix(w, tryingAgain) })
	}
}

// compare makes the folder what the tenant holds, whatever stands in it.
func (f *follower) compare(ctx context.Context) error {
	f.again.Store(false)
	listed, err := f.src.Files(ctx)
	if err != nil {
		return err
	}
	entries, err := f.src.Documents(ctx)
	if err != nil {
		return err
	}
	s := f.s
	if s == nil {
		s = &syncer{src: f.src, sum: &Summary{Dir: home(f.dir, f.tenant), Warnings: []string{}}}
	}
	files, docs := s.valid(listed, entries)
	if f.s != nil {
		if err := f.confirm(ctx, files, docs); err != nil {
			return err
		}
		// Opened anew: the folder may be another one by now. When the old one
		// cannot be written to any more, the new one shows it.
		_ = s.close()
		f.s = nil
	}
	if err := s.open(f.dir, f.tenant); err != nil {
		return err
	}
	f.s, f.files, f.docs = s, files, docs
	f.placed = plan(files, docs)
	if err := s.apply(ctx, f.placed); err != nil {
		return err
	}
	return s.index.save(s.disk)
}

// confirm asks about each file and document of which the list says otherwise
// than what is known: on a cluster a list may come from a server that is behind.
func (f *follower) confirm(ctx context.Context, files map[string]message.FileInfo, docs map[docRef]message.ToolStateEntry) error {
	for _, p := range differing(files, f.files, fileVersion) {
		info, err := f.stat(ctx, p)
		if err != nil {
			return err
		}
		set(files, p, info, info.Exists)
	}
	for _, ref := range differing(docs, f.docs, entryVersion) {
		data, err := f.document(ctx, ref)
		if err != nil {
			return err
		}
		set(docs, ref, entryOf(ref, data), data.Found)
	}
	return nil
}

// differing are the keys that only one of two maps has, or with other versions.
func differing[K comparable, V any](a, b map[K]V, version func(V) string) []K {
	var keys []K
	for k, v := range a {
		if w, ok := b[k]; !ok || version(v) != version(w) {
			keys = append(keys, k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	return keys
}

func set[K comparable, V any](m map[K]V, k K, v V, there bool) {
	if there {
		m[k] = v
	} else {
		delete(m, k)
	}
}

func (f *follower) stat(ctx context.Context, path string) (message.FileInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return f.src.Stat(ctx, path)
}

func (f *follower) document(ctx context.Context, ref docRef) (message.ToolStateData, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return f.src.Document(ctx, ref.namespace, ref.chat)
}

func entryOf(ref docRef, d message.ToolStateData) message.ToolStateEntry {
	return message.ToolStateEntry{Namespace: ref.namespace, ChatID: ref.chat, Revision: d.Revision, ExpiresAt: d.ExpiresAt}
}

// follow looks where hints point. When an answer does not come, everything is
// compared later.
func (f *follower) follow(ctx context.Context, hints map[Hint]bool) error {
	if hints[Hint{}] {
		f.soon()
		return nil
	}
	read := map[docRef]message.ToolStateData{}
	for h := range hints {
		err := f.look(ctx, h, read)
		if err == nil {
			continue
		}
		if !f.passing(ctx, err) {
			return err
		}
		f.soon()
		break
	}
	want := plan(f.files, f.docs)
	changed := map[string]item{}
	for name, it := range want {
		if was, ok := f.placed[name]; !ok || was.version != it.version {
			changed[name] = it
		}
	}
	f.placed = want
	if err := f.s.removeGone(want); err != nil {
		return err
	}
	if err := f.s.reserve(changed); err != nil {
		return err
	}
	f.s.read = read
	defer func() { f.s.read = nil }()
	if err := f.s.fetch(ctx, changed); err != nil {
		return err
	}
	if f.again.Load() {
		f.soon()
	}
	return f.s.index.save(f.s.disk)
}

// look asks what became of what a hint names.
func (f *follower) look(ctx context.Context, h Hint, read map[docRef]message.ToolStateData) error {
	if h.File != "" {
		if paths.Check(h.File) != nil {
			return nil
		}
		info, err := f.stat(ctx, h.File)
		if err == nil {
			set(f.files, h.File, info, info.Exists)
		}
		return err
	}
	ref := docRef{h.Namespace, h.ChatID}
	if ref.check() != nil {
		return nil
	}
	data, err := f.document(ctx, ref)
	if err == nil {
		read[ref] = data
		set(f.docs, ref, entryOf(ref, data), data.Found)
	}
	return err
}
