package area

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/toolbus/toolbus/services/files/internal/record"
)

// known holds the metadata of the files that this process wrote last, so that
// the next write need not ask for it. It may be out of date: a write that starts
// from it is committed under compare-and-set, which then misses, and starts again
// from what stands. So nothing may be answered from it but the commit itself.
type known struct {
	mu    sync.Mutex
	files map[laneKey]*list.Element // → *knownFile
	lru   *list.List                // most recent first
}

type knownFile struct {
	key      laneKey
	rec      *record.Record // nil: others write it too
	distrust time.Time      // until then
}

const (
	maxKnown = 512         // files, of some 10 KiB each at most
	distrust = time.Second // how long a file is not guessed that another replica wrote
)

func newKnown() *known { return &known{files: map[laneKey]*list.Element{}, lru: list.New()} }

// guess returns a file's metadata as this process left it, or nil. It is the
// caller's to keep.
func (k *known) guess(key laneKey) *record.Record {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.files[key]
	if e == nil || e.Value.(*knownFile).rec == nil {
		return nil
	}
	k.lru.MoveToFront(e)
	r := *e.Value.(*knownFile).rec
	return &r
}

// note remembers what was committed as revision seq.
func (k *known) note(key laneKey, next *record.Record, seq uint64, now time.Time) {
	r := *next
	r.Revision, r.Modified, r.Ops = seq, now, slices.Clone(next.Ops)
	if r.Born == 0 {
		r.Born = seq
	}
	record.Answer(r.Ops, seq)
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.file(key)
	if f.rec == nil && now.Before(f.distrust) {
		return
	}
	f.rec = &r
}

// missed forgets a file of which the guess was out of date.
func (k *known) missed(key laneKey, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.file(key)
	f.rec, f.distrust = nil, now.Add(distrust)
}

// file returns a file's entry, with the lock held.
func (k *known) file(key laneKey) *knownFile {
	e := k.files[key]
	if e != nil {
		k.lru.MoveToFront(e)
		return e.Value.(*knownFile)
	}
	e = k.lru.PushFront(&knownFile{key: key})
	k.files[key] = e
	if k.lru.Len() > maxKnown {
		delete(k.files, k.lru.Remove(k.lru.Back()).(*knownFile).key)
	}
	return e.Value.(*knownFile)
}

// guess is the metadata that a write may start from: it ends in a commit or in a
// miss, never in an answer that what stands now does not bear out.
func (w *writer) guess() *record.Record {
	rec := w.a.known.guess(w.key())
	if rec == nil || !rec.Exists() {
		return nil
	}
	size := rec.Size
	for _, p := range w.group {
		if p.Retried {
			return nil // it may be refused, and for good
		}
		if p.Kind != record.KindAppend && p.Kind != record.KindOverwrite || p.IfRevision != nil && *p.IfRevision != rec.Current() {
			return nil
		}
		if size += p.bytes(); p.bytes() > w.a.cfg.MaxFileSize || size > w.a.cfg.MaxFileSize {
			return nil
		}
	}
	return rec
}

func (w *writer) key() laneKey { return laneKey{w.b.tenant, w.group[0].Path} }
