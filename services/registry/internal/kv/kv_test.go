package kv_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/internal/jet"
	"github.com/toolbus/toolbus/services/registry/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const name = "test"

func open(t *testing.T, srv *natstest.Server, replicas int) (jetstream.JetStream, *kv.Bucket) {
	t.Helper()
	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b, err := kv.Open(ctx, js, name, jet.BucketStream(name, replicas))
	if err != nil {
		t.Fatal(err)
	}
	return js, b
}

func put(t *testing.T, js jetstream.JetStream, b *kv.Bucket, key, value string) uint64 {
	t.Helper()
	ack, err := js.PublishMsg(t.Context(), b.Msg(key, []byte(value)))
	if err != nil {
		t.Fatal(err)
	}
	return ack.Sequence
}

// readings is what every kind of read must give, whoever the bucket's leader is.
func readings(t *testing.T, js jetstream.JetStream, b *kv.Bucket) {
	t.Helper()
	rev := put(t, js, b, "t.a", "1")
	put(t, js, b, "t.b", strings.Repeat("x", 400_000))
	put(t, js, b, "u.a", "2")
	put(t, js, b, "t", "3")
	m := b.DeleteMsg("t.b", time.Hour)
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}

	e, ok, err := b.Get(t.Context(), "t.a")
	if err != nil || !ok || e.Deleted || e.Key != "t.a" || string(e.Data) != "1" || e.Revision != rev || time.Since(e.Time).Abs() > time.Minute {
		t.Errorf("got %+v %v %v", e, ok, err)
	}
	if e, ok, err = b.Get(t.Context(), "t.b"); err != nil || !ok || !e.Deleted || e.Revision == 0 {
		t.Errorf("a marker: got %+v %v %v", e, ok, err)
	}
	if _, ok, err = b.Get(t.Context(), "t.none"); err != nil || ok {
		t.Errorf("nothing: got %v %v", ok, err)
	}
	keys, err := b.Keys(t.Context(), "t.*")
	if err != nil || !slices.Equal(keys, []string{"t.a", "t.b"}) {
		t.Errorf("keys %v, %v", keys, err)
	}
	if keys, err = b.Keys(t.Context(), "none.*"); err != nil || len(keys) != 0 {
		t.Errorf("keys %v, %v", keys, err)
	}
	all, err := b.GetAll(t.Context(), []string{"t.a", "t.b", "t", "none.a"})
	if err != nil || len(all) != 3 || !all["t.b"].Deleted || string(all["t"].Data) != "3" || all["t.a"].Revision != rev {
		t.Errorf("got %v, %v", all, err)
	}
	if all, err = b.GetAll(t.Context(), nil); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v", all, err)
	}
	if all, err = b.GetAll(t.Context(), []string{"none.a"}); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v", all, err)
	}
}

func TestOneReplica(t *testing.T) {
	srv := natstest.Start(t)
	js, b := open(t, srv, 1)
	readings(t, js, b)

	// More keys than the server answers for at once.
	var want []string
	for i := range 1500 {
		want = append(want, fmt.Sprintf("many.%04d", i))
		if _, err := js.PublishMsgAsync(b.Msg(want[i], []byte("v"))); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	keys, err := b.Keys(t.Context(), "many.*")
	if err != nil || !slices.Equal(keys, want) {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	if all, err := b.GetAll(t.Context(), keys); err != nil || len(all) != len(want) {
		t.Fatalf("%d entries, %v", len(all), err)
	}

	srv.Down()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := b.GetAll(ctx, keys); !errcode.From(err).Retryable {
		t.Errorf("without a server: %v", err)
	}
	if _, _, err := b.Get(ctx, "t.a"); !errcode.From(err).Retryable {
		t.Errorf("without a server: %v", err)
	}
}

// On three replicas every server's readers see a write from the moment it was
// acknowledged.
func TestThreeReplicas(t *testing.T) {
	var nodes []*natstest.Server
	ports := make([]int, 3)
	var routes []*url.URL
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = l.Addr().(*net.TCPAddr).Port
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		_ = l.Close() // free again, and the routes name it
	}
	for i := range ports {
		nodes = append(nodes, natstest.Start(t, func(o *server.Options) {
			o.ServerName = fmt.Sprintf("n%d", i)
			o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]}
			o.Routes = routes
		}))
	}
	var buckets []*kv.Bucket
	js, b := open(t, nodes[0], 3)
	buckets = append(buckets, b)
	for _, n := range nodes[1:] {
		_, b := open(t, n, 3)
		buckets = append(buckets, b)
	}
	readings(t, js, b)
	for i := range 200 {
		rev := put(t, js, b, "r.a", fmt.Sprint(i))
		for n, b := range buckets {
			if e, ok, err := b.Get(t.Context(), "r.a"); err != nil || !ok || e.Revision != rev {
				t.Fatalf("round %d, server %d: got %+v, %v; want revision %d", i, n, e, err, rev)
			}
			if all, err := b.GetAll(t.Context(), []string{"r.a"}); err != nil || all["r.a"].Revision != rev {
				t.Fatalf("round %d, server %d: got %+v, %v; want revision %d", i, n, all, err, rev)
			}
		}
	}
}
