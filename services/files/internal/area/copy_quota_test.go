package area

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// An append to what another NATS client wrote copies it; with earlier versions kept
// the copy counts beside what it was made from.
func TestQuotaOfCopiedAppend(t *testing.T) {
	const size, limit = 700_000, 1 << 20
	for versions, fits := range map[int]bool{1: true, 2: false} {
		s := natstest.Start(t)
		a := replica(t, s, func(c *Config) { c.Default = Limits{Bytes: limit, Versions: versions} })
		os, err := a.js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: subject.FilesBucket(tenant)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.PutString(t.Context(), "f", strings.Repeat("0", size)); err != nil {
			t.Fatal(err)
		}
		_, err = a.Apply(t.Context(), tenant, Change{Path: "f", Kind: record.KindAppend, Content: []byte("x"), OpID: "p"})
		if fits && err != nil || !fits && !errors.Is(err, errcode.QuotaExceeded) {
			t.Errorf("%d versions: %v", versions, err)
		}
		if n, _, err := a.used(t.Context(), a.bucket(tenant), ""); err != nil || n > limit {
			t.Errorf("%d versions: %d bytes are used, %v", versions, n, err)
		}
	}
}

// Compaction copies what earlier versions still need; it waits until there is room
// for both.
func TestQuotaOfCompaction(t *testing.T) {
	const line = 100
	lines := testConfig().CompactChunks
	both := int64(2*lines-1) * line // the file, and the version before the last line
	for limit, fits := range map[int64]bool{both: true, both - 1: false} {
		a := replica(t, natstest.Start(t), func(c *Config) { c.Default = Limits{Bytes: limit, Versions: 2} })
		alone := crashCase{tenant: tenant}
		a.compactor.busy = true // not in the background
		for range lines {
			apply(t, a, record.KindAppend, "f", strings.Repeat("0", line))
		}
		settle(t, a)
		err := alone.compact(a)
		if fits && err != nil || !fits && !errors.Is(err, errcode.QuotaExceeded) {
			t.Errorf("limit %d: %v", limit, err)
		}
		b := a.bucket(tenant)
		rec, err := a.load(t.Context(), b, "f")
		if err != nil {
			t.Fatal(err)
		}
		if compacted := rec.Chunks < lines; compacted != fits {
			t.Errorf("limit %d: %d chunks for %d lines", limit, rec.Chunks, lines)
		}
		if n, _, err := a.used(t.Context(), b, ""); err != nil || n > limit || n != rec.Bytes() {
			t.Errorf("limit %d: %d bytes are used, the file takes %d, %v", limit, n, rec.Bytes(), err)
		}
	}
}
