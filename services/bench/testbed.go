package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/e2e/proc"
)

// Names of the bench on the bus.
const (
	tenant      = "bench"
	agentName   = "bench"
	echoTool    = "echo"
	echoSubject = "bench.echo" // the responder's
)

// testbed is the running programs, and a connection each for the baselines and
// for ours.
type testbed struct {
	dir   string
	procs []*proc.Process // in the order of their start
	url   string
	raw   *nats.Conn
	js    jetstream.JetStream // on raw
	nc    *nats.Conn
	agent *agent.Client // on nc
	ends  []func() error
}

// newTestbed starts the programs and waits until the echo tool and the
// responder answer. Stop it.
func newTestbed(ctx context.Context, cfg config) (*testbed, error) {
	dir, err := os.MkdirTemp("", "toolbus-bench-")
	if err != nil {
		return nil, err
	}
	b := &testbed{dir: dir}
	if err := b.start(ctx, cfg); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

func (b *testbed) start(ctx context.Context, cfg config) error {
	ctx, cancel := context.WithTimeout(ctx, startAndStop)
	defer cancel()
	var log io.Writer
	if cfg.verbose {
		log = os.Stderr
	}
	program := func(name string, args ...string) (*proc.Process, error) {
		p, err := proc.Start(proc.Command{Path: filepath.Join(cfg.bin, name), Args: args, Log: log})
		if err == nil {
			b.procs = append(b.procs, p)
		}
		return p, err
	}
	up, err := program("toolbus", "up", "--listen", "127.0.0.1:0", "--data", filepath.Join(b.dir, "data"), "--sync", cfg.sync)
	if err != nil {
		return err
	}
	if b.url, err = up.ReadyURL(ctx); err != nil {
		return err
	}
	if _, err := program("bench-worker", "--server", b.url); err != nil {
		return err
	}
	if _, err := program("bench-responder", b.url, echoSubject); err != nil {
		return err
	}
	if err := b.connect(ctx); err != nil {
		return err
	}
	if err := b.apply(ctx); err != nil {
		return err
	}
	return b.ready(ctx)
}

func (b *testbed) connect(ctx context.Context) error {
	for _, nc := range []**nats.Conn{&b.raw, &b.nc} {
		var err error
		if *nc, err = bus.Connect(ctx, bus.Config{Server: b.url, Wait: 5 * time.Second}, "bench"); err != nil {
			return err
		}
	}
	var err error
	if b.js, err = jetstream.New(b.raw); err != nil {
		return err
	}
	b.agent, err = agent.New(b.nc, tenant, agentName)
	return err
}

// apply grants the echo tool to the bench's agent.
func (b *testbed) apply(ctx context.Context) error {
	cfg, err := json.Marshal(message.AgentConfig{AgentID: agentName, Tools: map[string]json.RawMessage{echoTool: json.RawMessage("{}")}})
	if err != nil {
		return err
	}
	return bus.Retry(ctx, b.nc, subject.Registry(tenant, "apply"), message.RegistryApply{Config: cfg}, nil)
}

// ready asks until both answer: other processes' starts have no event here.
func (b *testbed) ready(ctx context.Context) error {
	answers := []func() error{
		func() error { _, err := b.raw.RequestWithContext(ctx, echoSubject, nil); return err },
		func() error {
			_, err := b.agent.Call(ctx, echoTool, map[string]string{"text": "ready?"})
			return err
		},
	}
	for _, ask := range answers {
		for {
			err := ask()
			if err == nil {
				break
			}
			absent := errors.Is(err, nats.ErrNoResponders) || errors.Is(err, errcode.Unavailable)
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				absent = false
			}
			if !absent {
				return fmt.Errorf("not ready: %w", err)
			}
		}
	}
	return nil
}

// atEnd has f called when the testbed stops, before the programs do.
func (b *testbed) atEnd(f func() error) { b.ends = append(b.ends, f) }

// stop ends what runs, the last started first, and removes the data.
func (b *testbed) stop() error {
	var errs []error
	for _, f := range b.ends {
		errs = append(errs, f())
	}
	for _, nc := range []*nats.Conn{b.raw, b.nc} {
		if nc != nil {
			nc.Close()
		}
	}
	for i := len(b.procs) - 1; i >= 0; i-- {
		errs = append(errs, b.procs[i].Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}
