package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

const tenant = "soak"

// under is the process under test.
type under struct {
	nc      *nats.Conn
	state   *toolstate.Client
	js      jetstream.JetStream
	metrics string // URL
	data    string // folder

	begin   time.Time
	lastAt  time.Time
	lastCPU float64
}

func connect(ctx context.Context, url, metrics, data string) (*under, error) {
	nc, err := bus.Connect(ctx, bus.Config{Server: url, Wait: 5 * time.Second}, "bench-soak")
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return &under{nc: nc, state: toolstate.New(nc, tenant), js: js, metrics: metrics, data: data, begin: time.Now()}, nil
}

func (u *under) close() { u.nc.Close() }

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// cycle sets and clears documents in turn and samples meanwhile.
func cycle(ctx context.Context, cfg config, u *under, c *curve, phase string, n int) (time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	begin := time.Now()
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range cfg.callers {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(n) || ctx.Err() != nil {
					return
				}
				if err := u.once(ctx, int(i)%cfg.docs); err != nil {
					stop(err)
					return
				}
				done.Add(1)
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	tick := time.NewTicker(cfg.every)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			return time.Since(begin), context.Cause(ctx)
		case <-tick.C:
			s, err := u.sample(ctx, phase, int(done.Load()))
			if err != nil {
				stop(err)
				<-finished
				return 0, err
			}
			c.add(s)
		}
	}
}

var value = []byte(`"` + strings.Repeat("0123456789", 20) + `"`)

func (u *under) once(ctx context.Context, doc int) error {
	ref := message.ToolStateRef{ChatID: fmt.Sprintf("+49 170/%d", doc), Namespace: "soak"}
	if _, err := u.state.Set(ctx, message.ToolStateSet{ToolStateRef: ref, Key: "k", Value: value}); err != nil {
		return fmt.Errorf("set: %w", err)
	}
	cleared, err := u.state.Clear(ctx, message.ToolStateClear{ToolStateRef: ref})
	if err == nil && !cleared.Cleared {
		err = errors.New("there was nothing")
	}
	if err != nil {
		return fmt.Errorf("clear: %w", err)
	}
	return nil
}

// sample looks at the process.
func (u *under) sample(ctx context.Context, phase string, cycles int) (sample, error) {
	m, err := u.scrape(ctx, "process_resident_memory_bytes", "go_memstats_next_gc_bytes", "go_goroutines", "process_cpu_seconds_total")
	if err != nil {
		return sample{}, err
	}
	st, err := u.js.Stream(ctx, "KV_"+subject.BucketToolState)
	if err != nil {
		return sample{}, fmt.Errorf("stream info: %w", err)
	}
	state := st.CachedInfo().State
	disk, err := size(u.data)
	if err != nil {
		return sample{}, err
	}
	now := time.Now()
	s := sample{
		phase: phase, at: now.Sub(u.begin), cycles: cycles,
		resident: m[0], heap: m[1], goroutines: m[2],
		messages: float64(state.Msgs), bytes: float64(state.Bytes), disk: disk,
	}
	if !u.lastAt.IsZero() {
		s.cpu = 100 * (m[3] - u.lastCPU) / now.Sub(u.lastAt).Seconds()
	}
	u.lastAt, u.lastCPU = now, m[3]
	return s, nil
}

// scrape reads metrics without labels.
func (u *under) scrape(ctx context.Context, names ...string) ([]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.metrics, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true // a connection that stays costs goroutines
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	found := make(map[string]float64)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, text, ok := strings.Cut(lines.Text(), " "); ok {
			if v, err := strconv.ParseFloat(text, 64); err == nil {
				found[name] = v
			}
		}
	}
	values := make([]float64, len(names))
	for i, n := range names {
		v, ok := found[n]
		if !ok {
			return nil, errors.Join(fmt.Errorf("no metric %s", n), lines.Err())
		}
		values[i] = v
	}
	return values, nil
}

// size is what the files in a folder hold; some may go while it looks.
func size(dir string) (float64, error) {
	var sum float64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil {
			sum += float64(info.Size())
		}
		return nil
	})
	return sum, err
}
