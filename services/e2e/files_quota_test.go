package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// applyLimits configures what tenant acme's files may be.
func applyLimits(t *testing.T, nc *nats.Conn, quotaBytes, maxFiles int64) {
	t.Helper()
	cfg := fmt.Sprintf(`{"agents":[],"tenant":{"files":{"quotaBytes":%d,"maxFiles":%d}}}`, quotaBytes, maxFiles)
	err := bus.Retry(t.Context(), nc, subject.Registry("acme", "apply"), message.RegistryApply{Config: json.RawMessage(cfg)}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

// usage is what a listing shows.
func usage(t *testing.T, c *files.Client) (size, count int64) {
	t.Helper()
	l, err := c.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range l {
		size += f.Size
	}
	return size, int64(len(l))
}

// quotaError checks that a refusal is the quota's, with numbers.
func quotaError(err error, limit int64) (actual int64, fault error) {
	e := errcode.From(err)
	switch {
	case !errors.Is(err, errcode.QuotaExceeded):
		return 0, fmt.Errorf("got %w, want quota_exceeded", err)
	case e.Details == nil || e.Details.Limit == nil || e.Details.Actual == nil:
		return 0, fmt.Errorf("%w has no numbers", err)
	case *e.Details.Limit != limit || *e.Details.Actual <= limit:
		return 0, fmt.Errorf("%w: %d of %d", err, *e.Details.Actual, *e.Details.Limit)
	}
	return *e.Details.Actual, nil
}

// Writers on three replicas run into a tenant's quota with overwrites, appends
// and uploads. Nothing that stood is harmed, and what they exceed the quota by is
// one write per replica at most.
func TestQuotaUnderConcurrentWriters(t *testing.T) {
	const (
		replicas, writers = 3, 24
		quota, most       = 2 << 20, 40 << 10 // bytes; by which one write grows a file
	)
	s := natstest.Start(t)
	nc := s.Connect()
	harness.Start(t, builder.Build(t, "./registry/cmd/registry"), "--server", s.URL(), "--http", "", "--log-level", "warn")
	applyLimits(t, nc, quota, 0)
	startFiles(t, nc, s.URL(), replicas)
	c := files.New(nc, "acme")

	var mu sync.Mutex
	stands := map[string][]byte{}
	refused := map[string]int{}
	var wg sync.WaitGroup
	for i := range writers {
		path := fmt.Sprintf("w%d", i)
		wg.Go(func() {
			var content []byte
			for over := 0; over < 3; {
				data := bytes.Repeat([]byte{byte('a' + rand.IntN(26))}, 1+rand.IntN(most))
				next := append(bytes.Clone(content), data...) // every write makes the file grow
				var err error
				kind := []string{"overwrite", "append", "upload"}[rand.IntN(3)]
				switch kind {
				case "overwrite":
					_, err = c.Write(t.Context(), path, next)
				case "append":
					_, err = c.Append(t.Context(), path, data)
				case "upload":
					_, err = c.Put(t.Context(), path, bytes.NewReader(next))
				}
				if err == nil {
					content = next
					continue
				}
				if _, fault := quotaError(err, quota); fault != nil {
					t.Errorf("%s: %v", kind, fault)
					return
				}
				over++
				mu.Lock()
				refused[kind]++
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			if content != nil {
				stands[path] = content
			}
		})
	}
	wg.Wait()
	size, _ := usage(t, c)
	t.Logf("%d bytes of %d, refused %v", size, quota, refused)
	if size > quota+replicas*most || size < quota/2 {
		t.Errorf("%d bytes are used, the quota is %d", size, quota)
	}
	for path, want := range stands {
		got, _, ok, err := c.Read(t.Context(), path)
		if err != nil || !ok || !bytes.Equal(got, want) || natsObject(t, nc, "acme", path) != string(want) {
			t.Errorf("%s: %d bytes, %v, want what was acknowledged, %d", path, len(got), err, len(want))
		}
		if _, err := c.Delete(t.Context(), path); err != nil {
			t.Error(err)
		}
	}

	// What was deleted is free again, to the byte, for every replica.
	for i := range 8 {
		if _, err := c.Write(t.Context(), fmt.Sprint("exact", i), make([]byte, quota/8)); err != nil {
			t.Fatalf("part %d: %v", i, err)
		}
	}
	for range 6 {
		_, err := c.Append(t.Context(), "exact0", []byte("x"))
		if actual, fault := quotaError(err, quota); fault != nil || actual != quota+1 {
			t.Errorf("one byte more: %v, %d", fault, actual)
		}
	}
	if _, err := c.Write(t.Context(), "exact1", make([]byte, quota/8)); err != nil {
		t.Errorf("an overwrite of the same size: %v", err)
	}
	// A larger quota counts as soon as it is configured.
	applyLimits(t, nc, quota+1, 0)
	if _, err := c.Append(t.Context(), "exact0", []byte("x")); err != nil {
		t.Errorf("after the quota grew: %v", err)
	}
}

// The number of files has a quota too.
func TestQuotaOfFiles(t *testing.T) {
	const replicas, most = 3, 20
	s := natstest.Start(t)
	nc := s.Connect()
	startFiles(t, nc, s.URL(), replicas, "--max-files", fmt.Sprint(most))
	c := files.New(nc, "acme")
	var wg sync.WaitGroup
	for i := range 3 * most {
		wg.Go(func() {
			path := fmt.Sprint("f", i)
			var err error
			switch i % 3 {
			case 0:
				_, err = c.Write(t.Context(), path, []byte("x"))
			case 1:
				_, err = c.Append(t.Context(), path, []byte("x"))
			case 2:
				_, err = c.Put(t.Context(), path, strings.NewReader("x"))
			}
			if err != nil {
				if _, fault := quotaError(err, most); fault != nil {
					t.Error(fault)
				}
			}
		})
	}
	wg.Wait()
	_, n := usage(t, c)
	if n < most || n > most+replicas {
		t.Errorf("%d files, at most %d are allowed", n, most)
	}
	l, err := c.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Append(t.Context(), l[0].Path, []byte("y")); err != nil {
		t.Errorf("a file that is there: %v", err)
	}
	for range n - most + 1 {
		if _, err := c.Delete(t.Context(), l[0].Path); err != nil {
			t.Fatal(err)
		}
		l = l[1:]
	}
	if _, err := c.Create(t.Context(), "last", []byte("x")); err != nil {
		t.Errorf("in place of a deleted one: %v", err)
	}
	_, err = c.Create(t.Context(), "over", []byte("x"))
	if actual, fault := quotaError(err, most); fault != nil || actual != most+1 {
		t.Errorf("one file more: %v, %d", fault, actual)
	}
}

// An open upload reserves what it announced, on every replica, until it is
// committed, and what it stored counts when it announced nothing.
func TestUploadsReserve(t *testing.T) {
	const quota = 1 << 20
	s := natstest.Start(t)
	nc := s.Connect()
	startFiles(t, nc, s.URL(), 3, "--quota", fmt.Sprint(quota))
	c := files.New(nc, "acme")
	open := func(size int64) (message.FileUploadOpened, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var up message.FileUploadOpened
		err := bus.Retry(ctx, nc, subject.Files("acme", "upload"), message.FileUpload{Path: "up", Size: size}, &up)
		return up, err
	}
	up, err := open(quota - 100)
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		_, err := c.Write(t.Context(), "other", make([]byte, 101))
		if actual, fault := quotaError(err, quota); fault != nil || actual != quota+1 {
			t.Fatalf("beside an open upload: %v, %d", fault, actual)
		}
		if _, err := open(101); err == nil {
			t.Fatal("a second upload that does not fit was opened")
		}
	}
	if _, err := c.Write(t.Context(), "other", make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	// It takes no more than it announced, and lets go of what it did not use.
	data := []byte("content")
	if err := bus.PublishChunk(t.Context(), nc, subject.FilesChunk("acme", up.UploadID), 0, data); err != nil {
		t.Fatal(err)
	}
	commit := message.FileWrite{Path: "up", Upload: &message.FileChunks{
		UploadID: up.UploadID, Chunks: 1, Size: int64(len(data)), SHA256: "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73",
	}}
	if err := bus.Retry(t.Context(), nc, subject.Files("acme", "write"), commit, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(t.Context(), "more", make([]byte, quota-100-len(data))); err != nil {
		t.Errorf("what the upload did not use: %v", err)
	}
	if _, err := c.Delete(t.Context(), "more"); err != nil {
		t.Fatal(err)
	}
	if up, err = open(0); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := bus.PublishChunk(t.Context(), nc, subject.FilesChunk("acme", up.UploadID), i, make([]byte, up.ChunkSize)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = c.Write(t.Context(), "more", make([]byte, quota/2))
	if _, fault := quotaError(err, quota); fault != nil {
		t.Errorf("beside an upload of unknown size: %v", fault)
	}
}
