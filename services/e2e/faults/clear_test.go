package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// What was cleared or deleted stays so when everything is killed the moment that
// it is acknowledged, however the server syncs: the end of a process is no loss
// of what it has written.
func TestClearedStaysCleared(t *testing.T) {
	for _, sync := range []string{"always", "1h"} {
		t.Run("sync "+sync, func(t *testing.T) {
			t.Parallel()
			clearedStaysCleared(t, sync, 4)
		})
	}
}

// removal removes something that was there, and finds out whether it is.
type removal struct {
	name   string
	make   func(context.Context, *nats.Conn, string) error
	remove func(context.Context, *nats.Conn, string) error
	there  func(context.Context, *nats.Conn, string) (bool, error)
}

func document1(name string) message.ToolStateRef {
	return message.ToolStateRef{ChatID: name, Namespace: "n"}
}

func setKeys(keys ...string) func(context.Context, *nats.Conn, string) error {
	return func(ctx context.Context, nc *nats.Conn, name string) error {
		set := map[string]json.RawMessage{}
		for _, k := range keys {
			set[k] = json.RawMessage(`"value"`)
		}
		_, err := toolstate.New(nc, "acme").Update(ctx, message.ToolStateUpdate{ToolStateRef: document1(name), Set: set})
		return err
	}
}

func hasKey(key string) func(context.Context, *nats.Conn, string) (bool, error) {
	return func(ctx context.Context, nc *nats.Conn, name string) (bool, error) {
		all, err := toolstate.New(nc, "acme").All(ctx, document1(name))
		return all.Data[key] != nil, err
	}
}

func deleteKey(ctx context.Context, nc *nats.Conn, name string) error {
	_, err := toolstate.New(nc, "acme").Delete(ctx, message.ToolStateDelete{ToolStateRef: document1(name), Key: "k"})
	return err
}

var removals = []removal{
	{"clear", setKeys("k", "l"), func(ctx context.Context, nc *nats.Conn, name string) error {
		_, err := toolstate.New(nc, "acme").Clear(ctx, message.ToolStateClear{ToolStateRef: document1(name)})
		return err
	}, hasKey("k")},
	{"delete of one key", setKeys("k", "l"), deleteKey, hasKey("k")},
	{"delete of the last key", setKeys("k"), deleteKey, hasKey("k")},
	{"store delete", func(ctx context.Context, nc *nats.Conn, name string) error {
		return store.New(nc, "acme", "support", "Mail").Set(ctx, name, "value")
	}, func(ctx context.Context, nc *nats.Conn, name string) error {
		_, err := store.New(nc, "acme", "support", "Mail").Delete(ctx, name)
		return err
	}, func(ctx context.Context, nc *nats.Conn, name string) (bool, error) {
		_, found, err := store.New(nc, "acme", "support", "Mail").Get(ctx, name)
		return found, err
	}},
}

func clearedStaysCleared(t *testing.T, sync string, rounds int) {
	bin, data := builder.Build(t, "./toolbus"), t.TempDir()
	p := harness.Up(t, bin, data, "--sync", sync)
	type gone struct {
		removal
		name string
	}
	var removed []gone
	for round := range rounds {
		nc := natstest.Connect(t, p.URL)
		name := func(r removal) string { return strings.ReplaceAll(r.name, " ", "-") + fmt.Sprint(" ", round) }
		for _, r := range removals {
			if err := r.make(t.Context(), nc, name(r)); err != nil {
				t.Fatal(err)
			}
		}
		// All at once; each round, the acknowledgement of another is the last moment.
		last := removals[round%len(removals)]
		acked := removeAll(t, nc, p, last, name)
		for _, r := range acked {
			removed = append(removed, gone{r, name(r)})
		}
		nc.Close()

		p = harness.Up(t, bin, data, "--sync", sync)
		nc = natstest.Connect(t, p.URL)
		listable := map[string]bool{}
		for _, r := range removed {
			there, err := r.there(t.Context(), nc, r.name)
			if err != nil {
				t.Fatal(err)
			}
			if there {
				t.Errorf("round %d: %q is back after its %s was acknowledged", round, r.name, r.removal.name)
			}
			listable[r.name] = r.removal.name == "delete of one key"
		}
		page, err := toolstate.New(nc, "acme").List(t.Context(), message.ToolStateList{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Documents {
			if may, known := listable[d.ChatID]; known && !may {
				t.Errorf("round %d: %q is listed after it was removed", round, d.ChatID)
			}
		}
		nc.Close()
	}
	if len(removed) < rounds {
		t.Errorf("only %d removals were acknowledged in %d rounds", len(removed), rounds)
	}
}

// removeAll removes everything at the same time, kills the server when last is
// acknowledged, and returns what was acknowledged.
func removeAll(t *testing.T, nc *nats.Conn, p *harness.Process, last removal, name func(removal) string) []removal {
	t.Helper()
	var mu sync.Mutex
	var acked []removal
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, r := range removals {
		wg.Go(func() {
			err := r.remove(ctx, nc, name(r))
			if r.name == last.name {
				p.Signal(syscall.SIGKILL)
				if err != nil {
					t.Errorf("%s: %v", r.name, err)
				}
				cancel() // the others need not wait
			}
			switch {
			case err == nil:
				mu.Lock()
				acked = append(acked, r)
				mu.Unlock()
			case !openEnded(err):
				t.Errorf("%s: %v", r.name, err)
			}
		})
	}
	wg.Wait()
	p.Wait()
	return acked
}
