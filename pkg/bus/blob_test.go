package bus_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// counter counts what is fetched of one blob.
type counter struct {
	blob string
	n    atomic.Int64
}

// Who receives a blob's description has only the sender's word for it: one that
// lies costs the receiver neither memory nor time.
func TestALyingBlobIsRefused(t *testing.T) {
	ns := natstest.Start(t)
	var fetches atomic.Pointer[counter]
	chunk := strings.Repeat("x", 1<<10)
	nc := ns.Connect()
	sub, err := nc.Subscribe(subject.Fetch(subject.FamilyWorker, "acme", "support", "*"), func(m *nats.Msg) {
		if c := fetches.Load(); c != nil && strings.HasSuffix(m.Subject, "."+c.blob) {
			c.n.Add(1)
		}
		_ = m.Respond([]byte(chunk))
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	spill := bus.Spill{Family: subject.FamilyWorker, Tenant: "acme", Agent: "support"}
	in := func(b message.Blob) ([]byte, error) {
		desc, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		return spill.In(context.Background(), ns.Connect(), nats.Header{message.HeaderBlob: {string(desc)}}, nil)
	}
	sum := sha256.Sum256([]byte(chunk + chunk))
	honest := message.Blob{ID: "b", Size: 2 << 10, Chunks: 2, SHA256: hex.EncodeToString(sum[:])}
	if body, err := in(honest); err != nil || string(body) != chunk+chunk {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	for name, c := range map[string]struct {
		lie     func(*message.Blob)
		code    errcode.Code
		fetches int64 // at most
	}{
		"a chunk per byte":    {func(b *message.Blob) { b.Size, b.Chunks = 16<<20, 16<<20 }, errcode.InvalidRequest, 0},
		"more chunks":         {func(b *message.Blob) { b.Size, b.Chunks = 16<<20, message.MaxBlobChunks+1 }, errcode.InvalidRequest, 0},
		"no chunks":           {func(b *message.Blob) { b.Chunks = 0 }, errcode.InvalidRequest, 0},
		"negative":            {func(b *message.Blob) { b.Size, b.Chunks = -1, -1 }, errcode.InvalidRequest, 0},
		"too large":           {func(b *message.Blob) { b.Size = 16<<20 + 1 }, errcode.TooLarge, 0},
		"another digest":      {func(b *message.Blob) { b.SHA256 = "00" }, errcode.InvalidRequest, 2},
		"less than it holds":  {func(b *message.Blob) { b.Size = 2<<10 - 1 }, errcode.InvalidRequest, 2},
		"chunks that are big": {func(b *message.Blob) { b.Size, b.Chunks = message.MaxBlobChunks, message.MaxBlobChunks }, errcode.InvalidRequest, 32},
	} {
		b := honest
		c.lie(&b)
		count := &counter{blob: uuid.NewString()} // requests of the case before may still arrive
		b.ID = count.blob
		fetches.Store(count)
		if _, err := in(b); !errors.Is(err, c.code) {
			t.Errorf("%s: got %v, want %s", name, err, c.code)
		}
		if n := count.n.Load(); n > c.fetches {
			t.Errorf("%s: fetched %d chunks", name, n)
		}
	}
}
