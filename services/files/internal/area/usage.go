package area

import (
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

// usageAge is how long a bound of what a tenant has is of use.
const usageAge = time.Second

// usage is what a process knows of what a tenant has: a bound, and, once that was
// not enough, every file's size. It is brought up to date by reading only what
// is new.
type usage struct {
	gate chan struct{} // holds one token: who put it there may write near a limit

	mu sync.Mutex
	// The bound: the stream's bytes and subjects when they were last asked for,
	// and what this process has written since.
	at           time.Time
	bytes, files int64

	since   time.Time             // when counting began
	sizes   map[string]fileSize   // by path
	open    map[string]openUpload // by the claim's subject
	metas   uint64                // newest metadata that is counted
	claims  uint64
	counted int64
	exist   int64
}

type fileSize struct {
	size   int64
	exists bool
	seq    uint64
	move   string // id of the one that it is under
}

type openUpload struct {
	size int64 // announced; 0: not known
	at   time.Time
	seq  uint64
}

func newUsage() usage { return usage{gate: make(chan struct{}, 1)} }

// bound is the bound, unless it is too old.
func (u *usage) bound(now time.Time) (bytes, files int64, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes, u.files, now.Sub(u.at) < usageAge
}

func (u *usage) setBound(now time.Time, bytes, files int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.at, u.bytes, u.files = now, bytes, files
}

// wrote counts in what this process has committed.
func (u *usage) wrote(r *record.Record, grown int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes += max(grown, 0)
	u.files++
	if !u.since.IsZero() {
		u.count(r)
	}
}

// saw counts in metadata that was read.
func (u *usage) saw(r *record.Record) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count(r)
	u.metas = max(u.metas, r.Revision)
}

func (u *usage) count(r *record.Record) {
	if f := r.From; f != nil && u.sizes[f.Path].move == f.ID {
		u.set(f.Path, fileSize{seq: r.Revision}) // it is here now, and still there
	}
	now := fileSize{seq: r.Revision, exists: r.Exists()}
	if now.exists {
		now.size = r.Bytes()
	}
	if r.Move != nil {
		now.move = r.Move.ID
	}
	u.set(r.Path, now)
}

// set replaces what is known of a file by something newer.
func (u *usage) set(path string, now fileSize) {
	old := u.sizes[path]
	if old.seq >= now.seq {
		return
	}
	if now.exists {
		u.exist++
	}
	if old.exists {
		u.exist--
	}
	u.counted += now.size - old.size
	u.sizes[path] = now
}

// sawClaim counts an open upload in, and one that was committed or refused out.
func (u *usage) sawClaim(m stream.Msg) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.claims = max(u.claims, m.Seq)
	var c claim
	if err := json.Unmarshal(m.Data, &c); err == nil && c.open() {
		u.open[m.Subject] = openUpload{size: c.Size, at: m.Time, seq: m.Seq}
	} else {
		delete(u.open, m.Subject)
	}
}

// closeUpload counts an upload out that this process has claimed or refused.
func (u *usage) closeUpload(subject string, seq uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if c, ok := u.open[subject]; ok && c.seq < seq {
		delete(u.open, subject)
	}
}

func (u *usage) reserved() map[string]openUpload {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.open)
}

func (u *usage) total() (bytes, files int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.counted, u.exist
}

// forget starts counting afresh. Called with mu.
func (u *usage) forget() {
	u.since, u.metas, u.claims, u.counted, u.exist = time.Time{}, 0, 0, 0, 0
	u.sizes, u.open = map[string]fileSize{}, map[string]openUpload{}
}

// idle forgets what nobody has asked for in a while.
func (u *usage) idle(now time.Time, age time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.since) > age {
		u.forget()
	}
}
