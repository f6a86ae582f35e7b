package area

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// Compaction copies a file that consists of many small chunks, as appends leave
// them, to full ones under a fresh chunk id, and commits the same version under
// it: the metadata message is the one point of commit as ever, so a crash leaves
// the file as it was, and chunks for the sweep. Appends go on meanwhile; what they
// add is copied in the end, in the file's lane, which takes no longer than an
// append.
//
// A message costs a reader about as much as some KiB of content. So a file is
// compacted when its chunks are smaller than that on average: reading it then
// takes at most about twice as long as it need, and since that takes as many
// appends as the file has pieces of 12 KiB, each append pays for the copying of one,
// however large the file.
const (
	compactBelow = 12 << 10 // bytes of a chunk on average; not more than a quarter of a full one

	compactTail   = 256 << 10 // bytes that are left to copy in the file's lane
	compactMisses = 50        // commits that another replica's appends may forestall
	claimAge      = time.Minute
	purgeStep     = 2048 // sequences: a stream stands still while it is purged
	purgeSteps    = 1024
)

// sparse tells whether a file of so many chunks should be compacted.
func (a *Area) sparse(chunks int, size int64) bool {
	return chunks >= a.cfg.CompactChunks && size < int64(chunks)*min(compactBelow, int64(a.ChunkSize())/4)
}

// compactor compacts one file at a time, in the background.
type compactor struct {
	a      *Area
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	busy bool
}

func newCompactor(a *Area) *compactor {
	c := &compactor{a: a}
	c.ctx, c.cancel = context.WithCancel(a.base)
	return c
}

// stop ends what is under way: it starts over with another append.
func (c *compactor) stop() {
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	c.wg.Wait()
}

// consider starts to compact a file that has become as r says, when it is worth
// it and nothing else is being compacted: the next append asks again.
func (c *compactor) consider(b *bucket, r *record.Record) {
	if !c.a.sparse(r.Chunks, r.Size) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy || c.ctx.Err() != nil {
		return
	}
	c.busy = true
	c.wg.Go(func() {
		defer func() {
			c.mu.Lock()
			c.busy = false
			c.mu.Unlock()
		}()
		ctx, cancel := context.WithTimeout(c.ctx, opLimit)
		defer cancel()
		switch err := c.a.compact(ctx, b, r.Path); {
		case err == nil, errors.Is(err, errAgain), errors.Is(err, errVanished), errors.Is(err, context.Canceled):
		case errors.Is(err, errcode.QuotaExceeded):
			c.a.log.Debug("no room to compact a file", "tenant", b.tenant, "err", err)
		default:
			c.a.log.Warn("file not compacted", "tenant", b.tenant, "err", err)
		}
	})
}

// compact compacts a file if it is sparse and no other replica is about to.
// errAgain and errVanished are that it was replaced meanwhile.
func (a *Area) compact(ctx context.Context, b *bucket, path string) error {
	rec, err := a.load(ctx, b, path)
	if err != nil || !rec.Exists() || !rec.Growable() || rec.Move != nil || !a.sparse(rec.Chunks, rec.Size) {
		return err
	}
	// An append that crashed goes first: it could not be finished later.
	if err := a.finishTail(ctx, b, rec); !errors.Is(err, errAgain) {
		return err
	}
	if rec, err = a.load(ctx, b, path); err != nil {
		return err
	}
	if err := a.fitsTwice(ctx, b, rec, func() error { return nil }); err != nil {
		return err
	}
	if mine, err := a.claimCompaction(ctx, b, rec.ID); err != nil || !mine {
		return err
	}
	c := &compaction{a: a, b: b, path: path, id: rec.ID, p: newPrepared()}
	queued := false
	defer func() {
		if !queued {
			c.discard(ctx)
		}
	}()
	for {
		before := c.copied()
		if err := c.copy(ctx, rec); err != nil {
			return err
		}
		if rec, err = a.load(ctx, b, path); err != nil {
			return err
		}
		if rec.ID != c.id || rec.Deleted || rec.Move != nil {
			return errAgain
		}
		// Until it has almost caught up, or never will.
		if left := rec.Size - c.copied(); left <= compactTail || left > c.copied()-before {
			break
		}
	}
	// From here on the copy is the lane's: when ctx ends, as on a shutdown, the
	// commit may still be under way, and may succeed.
	queued = true
	return a.inLane(ctx, b.tenant, path, func(ctx context.Context) error {
		defer c.discard(ctx)
		return c.commit(ctx)
	})
}

// fitsTwice has commit compact rec, if there is room: versions that are kept go on
// needing the chunks that are copied, so that their content counts twice in the
// quota until they go. quota_exceeded is that there is none.
func (a *Area) fitsTwice(ctx context.Context, b *bucket, rec *record.Record, commit func() error) error {
	next := *rec
	if next.ID = "copied"; next.Bytes() == rec.Bytes() {
		return commit()
	}
	room, err := a.room(ctx, b, next.Bytes()-rec.Bytes(), "")
	if err != nil {
		return err
	}
	defer room.leave()
	if err := room.fits(next.Bytes(), rec.Bytes(), false); err != nil {
		return err
	}
	return commit()
}

// compaction is one under way.
type compaction struct {
	a    *Area
	b    *bucket
	path string
	id   string       // chunk id of what is copied
	p    *prepared    // what was copied
	rest bytes.Buffer // copied too, but not enough for a chunk
	done bool
}

func (c *compaction) copied() int64 { return c.p.size + int64(c.rest.Len()) }

// copy copies what rec has beyond what is copied already.
func (c *compaction) copy(ctx context.Context, rec *record.Record) error {
	size := c.a.ChunkSize()
	return c.a.scan(ctx, c.b, rec, c.copied(), rec.Size-c.copied(), func(part []byte) error {
		c.rest.Write(part)
		for c.rest.Len() >= size {
			if err := c.a.addChunk(ctx, c.b, c.p, c.rest.Next(size), ""); err != nil {
				return err
			}
		}
		return nil
	})
}

// commit copies the last bit and makes the copy the file. It runs in the file's
// lane: only other replicas can be faster.
func (c *compaction) commit(ctx context.Context) error {
	for range compactMisses {
		rec, err := c.a.load(ctx, c.b, c.path)
		switch {
		case err != nil:
			return err
		case rec.ID != c.id || rec.Deleted || rec.Move != nil:
			return errAgain
		}
		if err := c.copy(ctx, rec); err != nil {
			return err
		}
		if err := c.flush(ctx); err != nil {
			return err
		}
		next, err := c.p.record()
		if err != nil {
			return err
		}
		if !bytes.Equal(next.Digest, rec.Digest) {
			return errcode.New(errcode.Internal, "the content of %q at revision %d does not have its SHA-256", rec.Path, rec.Revision)
		}
		next.Path, next.Born, next.Same, next.Modified = rec.Path, rec.Born, rec.Current(), rec.Modified
		next.From, next.Kept = rec.From, rec.Kept
		if err := c.a.remember(ctx, c.b, rec, next, nil); err != nil {
			return err
		}
		err = c.a.fitsTwice(ctx, c.b, rec, func() (err error) {
			if next.Revision, err = c.a.store(ctx, c.b, next, rec.Revision); err == nil {
				c.b.usage.wrote(next, next.Bytes()-rec.Bytes())
			}
			return err
		})
		switch {
		case errors.Is(err, jet.ErrRevision):
			continue
		case err != nil:
			c.done = !errors.Is(err, errcode.QuotaExceeded) // perhaps; the sweep knows
			return err
		}
		c.done = true
		c.a.jan.deleteMsg(ctx, c.b, rec.Revision)
		if !next.Names(rec.ID) {
			c.a.purgeOld(ctx, c.b, rec)
		}
		return nil
	}
	return errAgain
}

// flush stores what is not enough for a full chunk.
func (c *compaction) flush(ctx context.Context) error {
	if c.rest.Len() == 0 {
		return nil
	}
	return c.a.addChunk(ctx, c.b, c.p, c.rest.Next(c.rest.Len()), "")
}

// discard removes the copy unless it is, or may be, the file.
func (c *compaction) discard(ctx context.Context) {
	if !c.done {
		c.a.jan.purgeChunks(ctx, c.b, c.p.id)
	}
}

// purgeOld removes the many chunks of what was compacted, some at a time.
func (a *Area) purgeOld(ctx context.Context, b *bucket, rec *record.Record) {
	first := max(a.index.floor(rec.ID, 0).seq, 1)
	step := max((rec.Tail-min(first, rec.Tail))/purgeSteps, purgeStep)
	for to := first + step; to < rec.Tail; to += step {
		a.jan.do(ctx, func(ctx context.Context) error { return b.reader.PurgeBelow(ctx, b.chunk(rec.ID), to) })
	}
	a.jan.purgeChunks(ctx, b, rec.ID)
}

// claimCompaction keeps several replicas from compacting one chunk id, which
// would be in vain for all but one. A claim holds for claimAge: whoever made it
// may have died.
func (a *Area) claimCompaction(ctx context.Context, b *bucket, id string) (mine bool, err error) {
	m := nats.NewMsg(b.claim("=" + id)) // no upload has an id with =
	m.Data = []byte(`{"op":"compact"}`) // no open upload, which would reserve room
	last, err := b.reader.Last(ctx, m.Subject)
	switch {
	case errors.Is(err, stream.ErrNone):
	case err != nil || a.now().Sub(last.Time) < claimAge:
		return false, err
	}
	_, err = a.put(ctx, b, m, last.Seq)
	if errors.Is(err, jet.ErrRevision) {
		return false, nil
	}
	return err == nil, err
}
