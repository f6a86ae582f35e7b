package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/pkg/files"
)

const (
	largeBytes    = 100e6
	appendedLines = 100_000
	appendedLine  = 100 // bytes
	appenders     = 16  // of them: setting up must not take too long
	appendedBytes = appendedLines * appendedLine

	largeName    = "large.bin"
	appendedName = "appended.log"
	wholeName    = "whole.log"
)

// large is random, so that nothing on the way can make it smaller.
var large = sync.OnceValue(func() []byte {
	b := make([]byte, largeBytes)
	_, _ = rand.Read(b) // never fails
	return b
})

func fileAppend(name string) setup {
	return func(_ context.Context, b *testbed) (op, error) {
		c := files.New(b.nc, tenant)
		line := []byte(payload)
		return timed(func(ctx context.Context, _ int) error {
			_, err := c.Append(ctx, name, line)
			return err
		}), nil
	}
}

func fileAppendLarge(ctx context.Context, b *testbed) (op, error) {
	const name = "large.log"
	if _, err := files.New(b.nc, tenant).Put(ctx, name, bytes.NewReader(large())); err != nil {
		return nil, err
	}
	return fileAppend(name)(ctx, b)
}

// fileGet reads a file to nowhere.
func fileGet(b *testbed, name string, size int64) op {
	c := files.New(b.nc, tenant)
	return timed(func(ctx context.Context, _ int) error {
		info, exists, err := c.Get(ctx, name, io.Discard)
		if err == nil && (!exists || info.Size != size) {
			err = fmt.Errorf("got %+v", info)
		}
		return err
	})
}

func fileGetLarge(ctx context.Context, b *testbed) (op, error) {
	_, err := files.New(b.nc, tenant).Put(ctx, largeName, bytes.NewReader(large()))
	return fileGet(b, largeName, largeBytes), err
}

func filePutLarge(_ context.Context, b *testbed) (op, error) {
	c := files.New(b.nc, tenant)
	return timed(func(ctx context.Context, _ int) error {
		_, err := c.Put(ctx, "put.bin", bytes.NewReader(large()))
		return err
	}), nil
}

// fileReadAppended appends from several callers: what is measured is the reading.
func fileReadAppended(ctx context.Context, b *testbed) (op, error) {
	c := files.New(b.nc, tenant)
	line := []byte(strings.Repeat("x", appendedLine-1) + "\n")
	work := make(chan struct{})
	errs := make(chan error, appenders)
	for range appenders {
		go func() {
			var err error
			for range work {
				if err == nil {
					_, err = c.Append(ctx, appendedName, line)
				}
			}
			errs <- err
		}()
	}
	for range appendedLines {
		work <- struct{}{}
	}
	close(work)
	for range appenders {
		if err := <-errs; err != nil {
			return nil, err
		}
	}
	return fileGet(b, appendedName, appendedBytes), nil
}

func fileReadWhole(ctx context.Context, b *testbed) (op, error) {
	content := strings.Repeat(strings.Repeat("x", appendedLine-1)+"\n", appendedLines)
	_, err := files.New(b.nc, tenant).Put(ctx, wholeName, strings.NewReader(content))
	return fileGet(b, wholeName, appendedBytes), err
}

func objectStore(ctx context.Context, b *testbed) (jetstream.ObjectStore, error) {
	return b.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "bench", Storage: jetstream.FileStorage})
}

func objectGet(ctx context.Context, b *testbed) (op, error) {
	store, err := objectStore(ctx, b)
	if err != nil {
		return nil, err
	}
	_, err = store.PutBytes(ctx, largeName, large())
	return timed(func(ctx context.Context, _ int) error {
		r, err := store.Get(ctx, largeName)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, r)
		if err == nil {
			err = r.Close()
		}
		if err == nil && n != largeBytes {
			err = fmt.Errorf("got %d bytes", n)
		}
		return err
	}), err
}

func objectPut(ctx context.Context, b *testbed) (op, error) {
	store, err := objectStore(ctx, b)
	return timed(func(ctx context.Context, _ int) error {
		_, err := store.Put(ctx, jetstream.ObjectMeta{Name: "put.bin"}, bytes.NewReader(large()))
		return err
	}), err
}
