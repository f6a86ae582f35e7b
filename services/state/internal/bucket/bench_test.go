package bucket

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/internal/jet"
)

// What it costs that a read of replicated state is current.
func BenchmarkReplicatedRead(b *testing.B) {
	c := natstest.StartCluster(b, 3)
	js, err := jetstream.New(c.Connect())
	if err != nil {
		b.Fatal(err)
	}
	bucket, err := Open(b.Context(), js, "b", jet.BucketStream("b", 3))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := bucket.Put(b.Context(), "k", nil, make([]byte, 512), 0, 0); err != nil {
		b.Fatal(err)
	}
	c.WaitCurrent("KV_b")
	for _, read := range []struct {
		name string
		do   func(context.Context, string) (Message, error)
	}{{"leader", bucket.Last}, {"current", bucket.Read}} {
		for _, parallel := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", read.name, parallel), func(b *testing.B) {
				b.SetParallelism(parallel) // per processor
				if parallel == 1 {
					for b.Loop() {
						if _, err := read.do(b.Context(), "k"); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := read.do(b.Context(), "k"); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
