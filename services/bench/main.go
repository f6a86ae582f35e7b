// Command bench measures what Toolbus adds to NATS. Each row sets one operation
// beside the bare NATS operation it is built on, both in the same run against
// the same server, in interleaved rounds (baseline, ours, baseline, ours, …), so
// that what else the machine does hits both; values are medians over the rounds.
// Everything runs in processes of its own over TCP: toolbus up, the tool's
// worker, the responder of the baseline, and this one.
//
// Only the ratios say something: times differ from machine to machine. It ends
// with 1 when something fails, never because something is slow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"
)

// config is what the command line says.
type config struct {
	bin     string
	out     string
	sync    string
	only    string
	time    time.Duration
	verbose bool
}

func main() {
	var cfg config
	flag.StringVar(&cfg.bin, "bin", "bin", "`folder` with the programs toolbus, bench-worker and bench-responder")
	flag.StringVar(&cfg.out, "out", "bench-results.json", "`file` for the results")
	flag.StringVar(&cfg.sync, "sync", "2m", "--sync of toolbus up, for ours and the baselines: always, or a duration")
	flag.StringVar(&cfg.only, "only", "", "measure only names that begin with `prefix`")
	flag.DurationVar(&cfg.time, "time", time.Minute, "time for all measurements together")
	flag.BoolVar(&cfg.verbose, "v", false, "show the programs' logs")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := run(ctx, cfg, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// startAndStop is allowed beside the measurements, for setting them up too.
const startAndStop = 3 * time.Minute

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	rows := slices.DeleteFunc(rows(), func(r row) bool { return !strings.HasPrefix(r.name, cfg.only) })
	if len(rows) == 0 {
		return fmt.Errorf("no measurement's name begins with %q", cfg.only)
	}
	p, err := newPlan(cfg.time, len(rows))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.time+startAndStop)
	defer cancel()
	bed, err := newTestbed(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.stop()) }()
	fmt.Fprintf(out, "%s/%s, %d CPUs, %s; toolbus up --sync %s, TCP over loopback; medians of %d rounds of %s; time is p50\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), cfg.sync, p.rounds, p.slice)
	results, err := p.measure(ctx, bed, rows)
	if err != nil {
		return err
	}
	if err := printTable(out, results); err != nil {
		return err
	}
	return writeResults(cfg.out, results)
}
