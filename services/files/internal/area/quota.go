package area

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
)

const (
	usageAge   = time.Second
	usageSlack = 256 << 20 // more than the other replicas write in usageAge
)

// usage is an upper bound of what a tenant stores: the stream's bytes when they
// were last asked for, and what this replica wrote since.
type usage struct {
	mu    sync.Mutex
	at    time.Time
	bytes int64
}

func (u *usage) add(n int64) {
	u.mu.Lock()
	u.bytes += max(n, 0)
	u.mu.Unlock()
}

// checkQuota refuses a write of grow bytes that takes the place of old bytes
// when the tenant's files would then be over the quota. Far from the quota a
// bound is enough; near it, the sizes in the metadata decide.
func (a *Area) checkQuota(ctx context.Context, b *bucket, grow, old int64) error {
	limit := a.cfg.Quota
	if limit <= 0 || grow == 0 || grow < old {
		return nil
	}
	b.usage.mu.Lock()
	known, at := b.usage.bytes, b.usage.at
	b.usage.mu.Unlock()
	if a.now().Sub(at) < usageAge && known+grow+usageSlack <= limit {
		return nil
	}
	st, err := b.reader.Info(ctx, "")
	if err != nil && !errors.Is(err, stream.ErrNoStream) {
		return err
	}
	b.usage.mu.Lock()
	b.usage.bytes, b.usage.at = int64(st.Bytes), a.now()
	b.usage.mu.Unlock()
	if int64(st.Bytes)+grow <= limit {
		return nil
	}
	var used int64
	if err := a.records(ctx, b, func(r *record.Record) { used += r.Size }); err != nil {
		return err
	}
	if would := used - old + grow; would > limit {
		return errcode.OverLimit(errcode.QuotaExceeded, limit, would,
			"the tenant's files would be %d bytes, at most %d are allowed (%d are used)", would, limit, used)
	}
	return nil
}
