package state_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/services/state"
)

func TestStoreListPages(t *testing.T) {
	ns := natstest.Start(t)
	first := start(t, ns, func(c *state.Config) { c.ValueLimit = 2048; c.DocumentLimit = 2048 })
	nc := ns.Connect()
	s := store.New(nc, "acme", "support", "Mail")
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("k %02d ü", i)
		if err := s.Set(t.Context(), key, "v"); err != nil {
			t.Fatal(err)
		}
		want = append(want, key)
	}
	if err := s.Set(t.Context(), "other", "v"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete(t.Context(), want[7]); err != nil {
		t.Fatal(err)
	}
	want = slices.Delete(want, 7, 8)
	stop(t, first)
	start(t, ns) // what is durable survives

	for _, limit := range []int{1, 7, 23, 24, 25, 1000} {
		var got []string
		for req := (message.StoreList{Prefix: "k ", Limit: limit}); ; {
			page, err := s.Page(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Keys) > limit || page.Cursor != "" && len(page.Keys) == 0 {
				t.Fatalf("limit %d: a page of %d, cursor %q", limit, len(page.Keys), page.Cursor)
			}
			if len(got) == 0 { // what comes and goes between two pages hides no other
				if err := s.Set(t.Context(), "k !", "v"); err != nil {
					t.Fatal(err)
				}
			}
			got = append(got, page.Keys...)
			if req.Cursor = page.Cursor; req.Cursor == "" {
				break
			}
			req.Limit = limit
		}
		if _, err := s.Delete(t.Context(), "k !"); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %q", limit, got)
		}
	}
	do := func(body string) error {
		return bus.Request(t.Context(), nc, subject.Store("acme", "support", "Mail", "list"), json.RawMessage(body), nil)
	}
	wantCode(t, do(`{"limit":1001}`), errcode.InvalidRequest, "limit")
	wantCode(t, do(`{"limit":-1}`), errcode.InvalidRequest, "limit")
	wantCode(t, do(`{"cursor":"?"}`), errcode.InvalidRequest, "cursor")
	wantCode(t, do(`{"cursor":"AA"}`), errcode.InvalidRequest, "cursor")
}

// More keys than fit a reply come page by page; who asked for all is told so.
func TestStoreListOfMoreThanAReply(t *testing.T) {
	ns := natstest.Start(t, func(o *server.Options) { o.MaxPayload = 256 << 10 }) // a quarter of the usual, so that few keys do
	start(t, ns, func(c *state.Config) { c.ValueLimit = 16 << 10 })
	nc := ns.Connect()
	s := store.New(nc, "acme", "support", "Mail")
	// A quotation mark takes two bytes in JSON: 600 keys take 300 KB.
	const n, perCommit = 600, 100
	for i := 0; i < n; i += perCommit {
		c := message.StoreCommit{JobID: "j", TickID: fmt.Sprint("t", i), Slot: int64(i + 1)}
		for k := i; k < min(i+perCommit, n); k++ {
			c.Writes = append(c.Writes, message.StoreWrite{Key: fmt.Sprintf("%04d", k) + strings.Repeat(`"`, 252), Value: new(string)})
		}
		if ok, err := s.Commit(t.Context(), c); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // on a busy machine
	defer cancel()
	if keys, err := s.List(ctx, ""); len(keys) != n || !slices.IsSorted(keys) || err != nil {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	err := bus.Request(t.Context(), nc, subject.Store("acme", "support", "Mail", "list"), message.StoreList{}, nil)
	wantCode(t, err, errcode.TooLarge, "")
	if d := errcode.From(err).Details; d.Limit == nil || *d.Limit != bus.MaxBody(nc) || !strings.Contains(err.Error(), "limit") {
		t.Errorf("%v, %+v", err, d)
	}
}
