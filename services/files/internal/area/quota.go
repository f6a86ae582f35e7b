package area

import (
	"context"
	"errors"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

// Limits are what a tenant may have; 0 is no limit.
type Limits struct {
	Bytes int64 // of all files together
	Files int64 // how many
	// Versions of each file that are kept, the current one included; 0 is 1. They
	// count in Bytes.
	Versions int
}

// room is what a tenant has and may have. Near a limit it is exact, and until it
// is given back nothing else of this tenant is admitted in this process: so the
// processes together overshoot a limit by at most the one write that each of
// them has in flight.
type room struct {
	limits Limits
	exact  bool
	bytes  int64
	files  int64
	leave  func()
}

// fits refuses to make the files grow by some bytes, in place of old ones, when
// they would then be over a limit. What makes them shrink is never refused.
func (r *room) fits(grow, old int64, newFile bool) error {
	if !r.exact {
		return nil
	}
	if limit, would := r.limits.Files, r.files+1; newFile && limit > 0 && would > limit {
		return errcode.OverLimit(errcode.QuotaExceeded, limit, would, "the tenant would have %d files, at most %d are allowed", would, limit)
	}
	if limit, would := r.limits.Bytes, r.bytes-old+grow; limit > 0 && grow > old && would > limit {
		return errcode.OverLimit(errcode.QuotaExceeded, limit, would,
			"the tenant's files would be %d bytes, at most %d are allowed (%d are used)", would, limit, r.bytes)
	}
	return nil
}

// Far from its limits a tenant's writes are not counted one by one: they are
// compared with a bound of what there is and what may have been added since.
const (
	slackBytes = 256 << 20 // more than is written by all in usageAge
	slackFiles = 10_000
)

// room finds out what room there is for grow more bytes, not counting what the
// upload own has reserved. Give it back with leave.
func (a *Area) room(ctx context.Context, b *bucket, grow int64, own string) (*room, error) {
	r := &room{limits: a.limits(ctx, b.tenant), leave: func() {}}
	far, err := a.far(ctx, b, r.limits, grow)
	if err != nil || far {
		return r, err
	}
	select {
	case b.usage.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, errcode.Wrap(errcode.Overloaded, ctx.Err(), "too many others write near the tenant's quota")
	}
	r.exact, r.leave = true, func() { <-b.usage.gate }
	if r.bytes, r.files, err = a.used(ctx, b, own); err != nil {
		r.leave()
		return nil, err
	}
	return r, nil
}

func (a *Area) limits(ctx context.Context, tenant string) Limits {
	if a.cfg.Limits == nil {
		return a.cfg.Default
	}
	return a.cfg.Limits.Of(ctx, tenant, a.cfg.Default)
}

// mindingLimits has try refuse something for a tenant's limits only when they are still what they
// were: the event of a change may be late. Nobody else waits meanwhile.
func mindingLimits[T any](ctx context.Context, a *Area, tenant string, try func() (T, error)) (T, error) {
	if a.cfg.Limits == nil {
		return try()
	}
	known := a.limits(ctx, tenant)
	v, err := try()
	if !errors.Is(err, errcode.QuotaExceeded) || a.cfg.Limits.Again(ctx, tenant, a.cfg.Default) == known {
		return v, err
	}
	return try()
}

// far tells whether grow more bytes and another file are far from every limit.
func (a *Area) far(ctx context.Context, b *bucket, l Limits, grow int64) (bool, error) {
	u := &b.usage
	bytes, files, ok := u.bound(a.now())
	if !ok {
		st, err := b.reader.Info(ctx, "")
		if err != nil && !errors.Is(err, stream.ErrNoStream) {
			return false, err
		}
		bytes, files = int64(st.Bytes), int64(st.NumSubjects)
		u.setBound(a.now(), bytes, files)
	}
	return (l.Bytes <= 0 || bytes+grow <= l.Bytes-slackBytes) && (l.Files <= 0 || files <= l.Files-slackFiles), nil
}

// used is what the tenant's files hold and how many they are, with what open
// uploads reserve.
func (a *Area) used(ctx context.Context, b *bucket, own string) (bytes, files int64, err error) {
	u := &b.usage
	u.mu.Lock()
	if a.now().Sub(u.since) > a.cfg.OrphanAge/2 {
		u.forget() // markers of deleted files may be gone by now
		u.since = a.now()
	}
	metas, claims := u.metas, u.claims
	u.mu.Unlock()
	err = a.walkNew(ctx, b, b.metas(), metas+1, func(m stream.Msg) error {
		r, err := record.Decode(m.Data, m.Seq, m.Time)
		if err != nil {
			a.log.Error("unreadable file metadata", "tenant", b.tenant, "seq", m.Seq, "err", err)
			return nil
		}
		u.saw(r)
		return nil
	})
	if err == nil {
		err = a.walkNew(ctx, b, b.claims(), claims+1, func(m stream.Msg) error { u.sawClaim(m); return nil })
	}
	if err != nil {
		return 0, 0, err
	}
	bytes, files = u.total()
	for subject, c := range u.reserved() {
		id := b.claimID(subject)
		if id == own {
			continue
		}
		n, err := a.reserves(ctx, b, id, c)
		if err != nil {
			return 0, 0, err
		}
		bytes += n
	}
	return bytes, files, nil
}

// reserves is what an open upload takes of the quota: what it announced, or what
// it has stored when it did not say; nothing when it was abandoned.
func (a *Area) reserves(ctx context.Context, b *bucket, id string, c openUpload) (int64, error) {
	last, err := b.reader.Last(ctx, b.chunk(id))
	if err != nil && !errors.Is(err, stream.ErrNone) {
		return 0, err
	}
	if a.now().Sub(c.at) > a.cfg.UploadAge && (err != nil || a.now().Sub(last.Time) > a.cfg.UploadAge) {
		return 0, nil
	}
	if c.size > 0 {
		return c.size, nil
	}
	st, err := b.reader.Info(ctx, b.chunk(id))
	if err != nil {
		return 0, err
	}
	return int64(st.Subjects[b.chunk(id)]) * int64(a.ChunkSize()), nil
}

// walkNew walks a subject from a sequence to what was last in it when the walk
// began.
func (a *Area) walkNew(ctx context.Context, b *bucket, subject string, from uint64, visit func(stream.Msg) error) error {
	var last uint64
	if b.reader.Replicated {
		m, err := b.reader.Last(ctx, subject)
		switch {
		case errors.Is(err, stream.ErrNone), errors.Is(err, stream.ErrNoStream):
			return nil
		case err != nil:
			return err
		}
		last = m.Seq
	}
	err := a.walkSubject(ctx, b, subject, from, last, visit)
	if errors.Is(err, stream.ErrNoStream) {
		return nil
	}
	return err
}
