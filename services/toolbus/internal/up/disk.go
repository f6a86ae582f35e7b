package up

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
)

// storeLimit is how much JetStream may store in a data folder: what is there,
// three quarters of what is free, and what streams reserve without using it. The
// server's own estimate leaves the last out, so that it would refuse to make any
// stream as soon as less than that is free.
func storeLimit(dir string, reserved int64) int64 {
	free, ok := diskFree(dir)
	if !ok {
		return 1 << 50 // the disk itself is the limit
	}
	return stored(dir) + free/4*3 + reserved
}

// stored is the size, in bytes, of what a data folder holds.
func stored(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(filepath.Join(dir, server.JetStreamStoreDir), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil // an estimate: what cannot be read counts nothing
	})
	return sum
}

// probeBytes is what must fit on the disk before it counts as writable again.
const probeBytes = 1 << 20

// probe reports why nothing can be written to a data folder, or nil.
func probe(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "probe"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return rootCause(err)
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	return rootCause(err)
}
