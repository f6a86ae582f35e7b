package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/e2e/proc"
)

const tenant = "acme"

// demo is one performance.
type demo struct {
	ctx    context.Context
	bin    string
	config string
	dir    string
	out    io.Writer
	log    io.Writer // the programs' logs, or nil

	up      *proc.Process
	workers []*proc.Process
	url     string
	nc      *nats.Conn

	passed, failed int
}

// errStop ends the performance after a failure that makes the rest senseless.
var errStop = errors.New("stop")

func (d *demo) play() {
	defer func() {
		if p := recover(); p != nil && p != any(errStop) {
			panic(p)
		}
	}()
	d.open()
	d.relabeling()
	d.parallel()
	d.members()
	d.killed()
	d.inbox()
	d.refusals()
	d.mirror()
	d.restart()
}

func (d *demo) chapter(format string, args ...any) { fmt.Fprintf(d.out, "\n"+format+"\n", args...) }

func (d *demo) say(format string, args ...any) {
	for line := range strings.SplitSeq(strings.TrimRight(fmt.Sprintf(format, args...), "\n"), "\n") {
		fmt.Fprintln(d.out, "    "+line)
	}
}

// check prints what should hold, and whether it does.
func (d *demo) check(ok bool, format string, args ...any) {
	mark := "ok  "
	if ok {
		d.passed++
	} else {
		d.failed++
		mark = "FAIL"
	}
	fmt.Fprintf(d.out, "  %s %s\n", mark, fmt.Sprintf(format, args...))
}

// must ends the performance on an error.
func (d *demo) must(err error, what string) {
	if err != nil {
		d.check(false, "%s: %v", what, err)
		panic(errStop)
	}
}

// toolbus runs the CLI as a user would, in a process of its own, and shows it.
func (d *demo) toolbus(args ...string) proc.Result { return d.pipe("", args...) }

// pipe is toolbus with something on stdin.
func (d *demo) pipe(stdin string, args ...string) proc.Result {
	shown := make([]string, len(args))
	for i, a := range args {
		shown[i] = a
		if strings.ContainsAny(a, ` {}"'>*`) {
			shown[i] = "'" + a + "'"
		}
		shown[i] = strings.ReplaceAll(shown[i], d.dir, "…")
	}
	from := ""
	if stdin != "" {
		from = "printf '" + strings.ReplaceAll(stdin, "\n", `\n`) + "' | "
	}
	fmt.Fprintln(d.out, "  $ "+from+"toolbus "+strings.Join(shown, " "))
	o, err := proc.Run(d.ctx, proc.Command{Path: filepath.Join(d.bin, "toolbus"), Args: append(slices.Clone(args), "--server", d.url), Stdin: strings.NewReader(stdin)})
	d.must(err, "run toolbus")
	if o.Stdout != "" {
		d.say("%s", short(o.Stdout))
	}
	if o.Stderr != "" {
		d.say("%s", short(o.Stderr))
	}
	return o
}

func short(s string) string {
	if len(s) > 1200 {
		return s[:1200] + "…"
	}
	return s
}

// call is one turn: the agent's model asked for a tool.
func (d *demo) call(agentName, chat, tool, args string) proc.Result {
	a := []string{"call", tool, args, "-t", tenant, "-a", agentName}
	if chat != "" {
		a = append(a, "-c", chat)
	}
	return d.toolbus(a...)
}

func (d *demo) agent(name string) *agent.Client {
	a, err := agent.New(d.nc, tenant, name)
	d.must(err, "agent "+name)
	return a
}

// connect opens the demo's own connection, after a restart anew.
func (d *demo) connect() {
	if d.nc != nil {
		d.nc.Close()
	}
	var err error
	d.nc, err = bus.Connect(d.ctx, bus.Config{Server: d.url, Wait: 5 * time.Second}, "demo")
	d.must(err, "connect")
}

func (d *demo) start(name string, args ...string) *proc.Process {
	p, err := proc.Start(proc.Command{Path: filepath.Join(d.bin, name), Args: args, Log: d.log})
	d.must(err, "start "+name)
	return p
}

func (d *demo) startUp(listen string) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(d.ctx, 20*time.Second)
	defer cancel()
	d.up = d.start("toolbus", "up", "--listen", listen, "--data", filepath.Join(d.dir, "data"))
	var err error
	d.url, err = d.up.ReadyURL(ctx)
	d.must(err, "toolbus up")
	d.say("toolbus up: NATS, registry, state, files, toolworker and scheduler in one process, ready after %d ms", time.Since(start).Milliseconds())
}

func (d *demo) startWorkers(n int) {
	for range n {
		d.workers = append(d.workers, d.start("examples-worker", "--server", d.url))
	}
	d.say("%d more processes, examples-worker, host the examples' tools", n)
}

// waitFor polls until f holds: what another process does has no event here.
func (d *demo) waitFor(what string, f func() bool) {
	ctx, cancel := context.WithTimeout(d.ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			d.must(ctx.Err(), "waiting for "+what)
		case <-tick.C:
		}
	}
}

func (d *demo) stopAll() {
	if d.nc != nil {
		d.nc.Close()
	}
	for _, w := range d.workers {
		if err := w.Stop(); err != nil {
			d.check(false, "a worker stops cleanly: %v", err)
		}
	}
	if d.up != nil {
		if err := d.up.Stop(); err != nil {
			d.check(false, "toolbus up stops cleanly: %v", err)
		}
	}
}
