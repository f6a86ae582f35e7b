package area

import (
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/services/files/internal/record"
	"github.com/toolbus/toolbus/services/files/internal/stream"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// memory finds operations that no longer stand in the metadata, on the pages
// that it leads to. Pages do not change, so each is fetched once.
type memory struct {
	mu    sync.Mutex
	pages map[pageKey]record.Page
	order []pageKey // oldest first
}

type pageKey struct {
	bucket string
	seq    uint64
}

const maxPages = 2048 // kept, of some 7 KiB each

// find returns the operation with a key among those that rec remembers.
func (a *Area) find(ctx context.Context, b *bucket, rec *record.Record, key record.OpKey) (record.Op, bool, error) {
	if op, ok := rec.Find(key); ok {
		return op, true, nil
	}
	oldest := a.now().Add(-record.PageAge).Unix()
	for seq := rec.Page; seq > 0; {
		p, err := a.page(ctx, b, seq)
		if err != nil {
			return record.Op{}, false, err
		}
		if p.Newest() < oldest {
			break
		}
		if op, ok := p.Find(key); ok {
			return op, true, nil
		}
		seq = p.Prev
	}
	return record.Op{}, false, nil
}

// page reads a page; one that the sweep removed is empty.
func (a *Area) page(ctx context.Context, b *bucket, seq uint64) (record.Page, error) {
	k := pageKey{b.name, seq}
	m := &a.memory
	m.mu.Lock()
	p, ok := m.pages[k]
	m.mu.Unlock()
	if ok {
		return p, nil
	}
	msg, err := b.reader.Surely(ctx, seq)
	if err != nil && !errors.Is(err, stream.ErrNone) {
		return record.Page{}, err
	}
	if err == nil {
		p = record.DecodePage(msg.Data)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pages == nil {
		m.pages = map[pageKey]record.Page{}
	}
	m.pages[k] = p
	if m.order = append(m.order, k); len(m.order) > maxPages {
		delete(m.pages, m.order[0])
		m.order = m.order[1:]
	}
	return p, nil
}

// remember gives next the operations that rec remembers and those that next
// adds. What does not fit the metadata goes to a page first; should next not be
// committed, the page is nobody's, and the sweep removes it.
func (a *Area) remember(ctx context.Context, b *bucket, rec, next *record.Record, ops []record.Op) error {
	kept, spill := rec.Carry(a.now(), len(ops))
	next.Ops, next.Page = append(kept, ops...), rec.Page
	if len(spill) == 0 {
		return nil
	}
	m := nats.NewMsg(b.page(rec.Path))
	m.Data = record.Page{Prev: rec.Page, Ops: spill}.Encode()
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	ack, err := a.js.PublishMsg(ctx, m)
	if err != nil {
		return a.storeError(b, jet.PublishError(err))
	}
	next.Page = ack.Sequence
	return nil
}
