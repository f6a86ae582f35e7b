// Command bench-soak writes and clears ToolState documents a million times and
// tells whether the process that serves them, toolbus up, is afterwards what it
// was before: memory, goroutines, stored data and the work it does when nobody
// asks for anything.
//
// It starts toolbus up on an empty folder, uses every document once, waits until
// all is quiet (start), runs the cycles, and waits again (end). It prints a
// sample of every few seconds, also as CSV with --csv, and ends with 1 when the
// end does not come back to the start within the tolerances it prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/toolbus/toolbus/services/e2e/proc"
)

type config struct {
	bin     string
	sync    string
	cycles  int
	docs    int
	callers int
	every   time.Duration
	settle  time.Duration
	csv     string
	verbose bool
}

func main() {
	var cfg config
	flag.StringVar(&cfg.bin, "bin", "bin", "`folder` with the program toolbus")
	flag.StringVar(&cfg.sync, "sync", "2m", "--sync of toolbus up: always, or a duration")
	flag.IntVar(&cfg.cycles, "cycles", 1_000_000, "`number` of times that a document is set and cleared")
	flag.IntVar(&cfg.docs, "docs", 10_000, "`number` of documents, used in turn")
	flag.IntVar(&cfg.callers, "callers", 64, "`number` of callers at once")
	flag.DurationVar(&cfg.every, "every", 10*time.Second, "time between two samples")
	flag.DurationVar(&cfg.settle, "settle", 6*time.Minute, "longest time to come to rest; markers of cleared documents stay two minutes, and unused memory goes back about as late")
	flag.StringVar(&cfg.csv, "csv", "", "also write the samples to this `file`")
	flag.BoolVar(&cfg.verbose, "v", false, "show the program's log")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := run(ctx, cfg, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench-soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	if cfg.cycles < 1 || cfg.docs < 1 || cfg.callers < 1 || cfg.every < time.Second {
		return errors.New("cycles, docs and callers must be at least 1, every at least 1s")
	}
	dir, err := os.MkdirTemp("", "toolbus-soak-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	var log io.Writer
	if cfg.verbose {
		log = os.Stderr
	}
	p, err := proc.Start(proc.Command{
		Path: filepath.Join(cfg.bin, "toolbus"), Log: log,
		Args: []string{"up", "--listen", "127.0.0.1:0", "--data", dir, "--sync", cfg.sync, "--http", addr},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	starting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	url, err := p.ReadyURL(starting)
	if err != nil {
		return err
	}
	u, err := connect(ctx, url, "http://"+addr+"/metrics", dir)
	if err != nil {
		return err
	}
	defer u.close()
	fmt.Fprintf(out, "%d cycles of set and clear over %d documents, %d callers; toolbus up --sync %s\n\n", cfg.cycles, cfg.docs, cfg.callers, cfg.sync)
	c, err := newCurve(out, cfg.csv)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	return soak(ctx, cfg, u, c, out)
}

func soak(ctx context.Context, cfg config, u *under, c *curve, out io.Writer) error {
	cold, err := u.sample(ctx, "cold", 0)
	if err != nil {
		return err
	}
	c.add(cold)
	if _, err := cycle(ctx, cfg, u, c, "warm", cfg.docs); err != nil {
		return err
	}
	start, err := rest(ctx, cfg, u, c, "start", 0, func(s sample) bool { return s.messages == 0 })
	if err != nil {
		return err
	}
	took, err := cycle(ctx, cfg, u, c, "cycles", cfg.cycles)
	if err != nil {
		return err
	}
	end, err := rest(ctx, cfg, u, c, "end", cfg.cycles, func(s sample) bool { return len(compare(start, s, nil)) == 0 })
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d cycles in %s, %.0f operations a second\n\n", cfg.cycles, took.Round(time.Second), 2*float64(cfg.cycles)/took.Seconds())
	if faults := compare(start, end, out); len(faults) > 0 {
		return fmt.Errorf("not back where it was: %v", faults)
	}
	return nil
}

// rest waits until quiet says so, at most for the time to settle, but always
// for long enough that unused memory could go back; the last sample's CPU time
// is that of an idle process.
func rest(ctx context.Context, cfg config, u *under, c *curve, phase string, cycles int, quiet func(sample) bool) (sample, error) {
	begin := time.Now()
	for {
		select {
		case <-ctx.Done():
			return sample{}, ctx.Err()
		case <-time.After(cfg.every):
		}
		s, err := u.sample(ctx, phase, cycles)
		if err != nil {
			return s, err
		}
		c.add(s)
		if waited := time.Since(begin); waited > cfg.settle || waited > atLeast && quiet(s) {
			return s, nil
		}
	}
}

// atLeast is what the runtime takes for the garbage collection of an idle
// process, and some more to give memory back.
const atLeast = 150 * time.Second
