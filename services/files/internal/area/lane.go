package area

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// Change is one change to a file. Path and the rest are checked already.
type Change struct {
	Path       string
	Kind       byte // record.KindOverwrite, …
	Content    []byte
	Upload     *message.FileChunks // instead of Content
	Version    uint64              // the revision to restore
	IfRevision *uint64
	OpID       string // identifies the change across its retries; never ""
	Retried    bool   // an earlier try may have been received, and may be under way
}

// Outcome is what became of it.
type Outcome struct {
	Bytes    int64 // written
	Size     int64 // of the file
	Revision uint64
	Deleted  bool
}

type pending struct {
	Change
	task func(context.Context) error // instead of the change
	key  record.OpKey
	done chan struct{}
	// restored are the bytes of the version that is restored.
	restored int64
	out      Outcome
	err      error
}

func (p *pending) finish(out Outcome, err error) {
	p.out, p.err = out, err
	close(p.done)
}

func (p *pending) finished() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

type laneKey struct{ tenant, path string }

// lane is the queue of one file's changes in this process. One goroutine works
// it off while there are any, so that a process never contends with itself, and
// appends that queued up meanwhile are committed together.
type lane struct{ queue []*pending }

// groupCount is the most appends that one commit takes together; their content
// must fit one chunk.
const groupCount = record.MaxOps / 2

// Apply makes a change and returns when it is committed or refused. When ctx
// ends first, the change may still happen; a retry with its OpID finds out.
func (a *Area) Apply(ctx context.Context, tenant string, c Change) (Outcome, error) {
	try := func() (Outcome, error) {
		return a.wait(ctx, tenant, &pending{Change: c, key: record.KeyOf(c.OpID), done: make(chan struct{})})
	}
	if c.Upload != nil || c.Retried {
		return try() // refused once is refused
	}
	return mindingLimits(ctx, a, tenant, try)
}

// inLane runs a task between the changes that this process makes to a file.
func (a *Area) inLane(ctx context.Context, tenant, path string, task func(context.Context) error) error {
	_, err := a.wait(ctx, tenant, &pending{Change: Change{Path: path}, task: task, done: make(chan struct{})})
	return err
}

// wait queues p in its file's lane and waits for it.
func (a *Area) wait(ctx context.Context, tenant string, p *pending) (Outcome, error) {
	k := laneKey{tenant, p.Path}
	a.mu.Lock()
	l := a.lanes[k]
	if l == nil {
		l = &lane{}
		a.lanes[k] = l
		a.wg.Add(1)
		go a.work(k, l)
	}
	l.queue = append(l.queue, p)
	a.mu.Unlock()
	select {
	case <-p.done:
		return p.out, p.err
	case <-ctx.Done():
		return Outcome{}, ctx.Err()
	}
}

func (a *Area) work(k laneKey, l *lane) {
	defer a.wg.Done()
	b := a.bucket(k.tenant)
	for {
		a.mu.Lock()
		group := take(l, a.ChunkSize())
		if len(group) == 0 {
			delete(a.lanes, k)
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		a.commit(b, group)
	}
}

// take removes the next changes to commit together: one, or a run of appends
// of at most so many bytes.
func take(l *lane, most int) []*pending {
	if len(l.queue) == 0 {
		return nil
	}
	n, bytes := 1, len(l.queue[0].Content)
	keys := map[record.OpKey]bool{l.queue[0].key: true}
	if mergeable(l.queue[0]) {
		for _, p := range l.queue[1:] {
			bytes += len(p.Content)
			if !mergeable(p) || keys[p.key] || bytes > most || n == groupCount {
				break
			}
			keys[p.key] = true
			n++
		}
	}
	group := l.queue[:n:n]
	l.queue = l.queue[n:]
	return group
}

func mergeable(p *pending) bool {
	return p.Kind == record.KindAppend && p.Upload == nil && p.IfRevision == nil && !p.Retried
}

// commit ends every change of the group, come what may.
func (a *Area) commit(b *bucket, group []*pending) {
	ctx, cancel := context.WithTimeout(a.base, opLimit)
	defer cancel()
	err := errcode.New(errcode.Internal, "the change was not finished")
	defer func() {
		if p := recover(); p != nil {
			a.log.Error("change panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		for _, p := range group {
			if !p.finished() {
				p.finish(Outcome{}, err)
			}
		}
	}()
	if task := group[0].task; task != nil {
		group[0].finish(Outcome{}, task(ctx))
		return
	}
	if e := a.change(ctx, b, group); e != nil {
		err = errcode.From(e)
	}
}
