package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// 50 appenders over three replicas, of which one is killed half-way, and again
// the next one in the next round: each round adds exactly 50 lines, none torn,
// and any NATS client reads the same.
func TestAppendersSurviveKills(t *testing.T) {
	const appenders = 50
	s := natstest.Start(t)
	nc := s.Connect()
	fleet := startFiles(t, nc, s.URL(), 3)
	want := map[string]bool{}
	var grown time.Duration
	for round := range appendRounds {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		victim := round % 3
		killAt := int64(5 + rand.N(40))
		var begun atomic.Int64
		kill := make(chan struct{})
		var wg sync.WaitGroup
		begin := time.Now()
		for i := range appenders {
			c := files.New(nc, "acme")
			line := lineOf(round, i)
			want[line] = true
			wg.Go(func() {
				if begun.Add(1) == killAt {
					close(kill)
				}
				if _, err := c.Append(ctx, "log", []byte(line)); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		<-kill
		fleet.kill(victim)
		wg.Wait()
		cancel()
		grown = max(grown, time.Since(begin))
		checkLines(t, fmt.Sprint("round ", round), natsObject(t, nc, "acme", "log"), want)
		if t.Failed() {
			return
		}
		fleet.start(victim)
		fleet.await(3)
	}
	content, _, _, err := files.New(nc, "acme").Read(t.Context(), "log")
	if err != nil || string(content) != natsObject(t, nc, "acme", "log") {
		t.Errorf("our own reader disagrees, %v", err)
	}
	t.Logf("%d rounds, the slowest took %v", appendRounds, grown)
}
