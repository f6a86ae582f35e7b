package area

import (
	"errors"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/files/internal/record"
)

// An upload that takes longer than orphans live is spared as long as chunks
// arrive, by a replica that knows nothing of it; and removed after the last.
func TestSweepSparesLongUploads(t *testing.T) {
	s := natstest.Start(t)
	a, other := replica(t, s), replica(t, s)
	b := other.bucket(tenant)
	id, err := a.Open(t.Context(), tenant, "f", 100)
	if err != nil {
		t.Fatal(err)
	}
	at := func(subject string) time.Time {
		m, err := b.reader.Last(t.Context(), subject)
		if err != nil {
			t.Fatal(err)
		}
		return m.Time
	}
	chunk := func(i int) time.Time {
		if err := bus.PublishChunk(t.Context(), a.nc, subject.FilesChunk(tenant, id), i, []byte("x")); err != nil {
			t.Fatal(err)
		}
		return at(b.chunk(id))
	}
	opened := at(b.claim(id))
	first := chunk(0)
	var last time.Time
	for i := 1; !last.After(first.Add(time.Millisecond)); i++ {
		last = chunk(i)
	}
	sweepAt := func(now time.Time) (chunks uint64, claims uint64) {
		other.now = func() time.Time { return now }
		if err := other.sweep(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return other.count(t, b.chunks()), other.count(t, b.claims())
	}
	stored := other.count(t, b.chunks())
	// The first chunk is too old by itself, the last one is not.
	if chunks, claims := sweepAt(first.Add(last.Sub(first)/2 + other.cfg.OrphanAge)); chunks != stored || claims != 1 {
		t.Errorf("%d of %d chunks and %d claims are left of an upload under way", chunks, stored, claims)
	}
	// So is the claim.
	other.now = func() time.Time { return opened.Add(last.Sub(opened)/2 + 2*other.cfg.OrphanAge) }
	if err := other.sweepClaims(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if n := other.count(t, b.claims()); n != 1 {
		t.Error("the claim of an upload under way is gone")
	}
	if chunks, claims := sweepAt(last.Add(other.cfg.OrphanAge + time.Second)); chunks != 0 || claims != 1 {
		t.Errorf("%d chunks and %d claims are left of an abandoned upload", chunks, claims)
	}
	if _, claims := sweepAt(last.Add(2*other.cfg.OrphanAge + time.Second)); claims != 0 {
		t.Errorf("%d claims are left in the end", claims)
	}
}

// What an upload reserves counts for every replica, and no more once it was
// abandoned.
func TestReservations(t *testing.T) {
	s := natstest.Start(t)
	a, other := replica(t, s), replica(t, s)
	b := other.bucket(tenant)
	id, err := a.Open(t.Context(), tenant, "f", 100)
	if err != nil {
		t.Fatal(err)
	}
	used := func(own string) int64 {
		n, _, err := other.used(t.Context(), b, own)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := used(""); n != 100 {
		t.Errorf("%d bytes are used beside an open upload", n)
	}
	if n := used(id); n != 0 {
		t.Errorf("%d bytes are used, the upload's own not counted", n)
	}
	later := time.Now().Add(other.cfg.UploadAge + time.Minute)
	other.now = func() time.Time { return later }
	if n := used(""); n != 0 {
		t.Errorf("%d bytes are used by an abandoned upload", n)
	}
	// One that was refused lets go at once.
	other.now = time.Now
	if id, err = a.Open(t.Context(), tenant, "f", 100); err != nil {
		t.Fatal(err)
	}
	if n := used(""); n != 200 {
		t.Errorf("%d bytes are used by two uploads", n)
	}
	a.refuseUpload(t.Context(), b, id)
	if n := used(""); n != 100 {
		t.Errorf("%d bytes are used after one was refused", n)
	}
}

// A commit that is refused removes its upload: never the chunks of a file whose id
// it was given.
func TestRefusedCommitSparesFiles(t *testing.T) {
	s := natstest.Start(t)
	a := replica(t, s, func(c *Config) { c.MaxFileSize = 1 << 20 })
	if _, err := a.Apply(t.Context(), tenant, Change{Path: "one", Kind: record.KindCreate, Content: []byte("abc"), OpID: "one"}); err != nil {
		t.Fatal(err)
	}
	rec, err := a.load(t.Context(), a.bucket(tenant), "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []byte{record.KindOverwrite, record.KindAppend} {
		u := &message.FileChunks{UploadID: rec.ID, Chunks: 1, Size: 2 << 20}
		_, err := a.Apply(t.Context(), tenant, Change{Path: "two", Kind: kind, Upload: u, OpID: "two"})
		if !errors.Is(err, errcode.TooLarge) {
			t.Errorf("kind %d: %v", kind, err)
		}
		settle(t, a)
		if got := read(t, a, "one"); got != "abc" {
			t.Errorf("kind %d: the file is %q", kind, got)
		}
	}
}
