// Command demo plays Toolbus's main job on real processes: an agent's tools run
// in workers, keep ToolState over the turns of a chat, and write the tenant's
// files; a background job wakes an agent when something happened. It prints what happens, checks every outcome, and exits 1 on any
// deviation.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "`folder` with the programs toolbus and examples-worker")
	config := flag.String("config", "examples/config/agents.json", "configuration `file` of the examples' agents")
	keep := flag.Bool("keep", false, "keep the temporary folder and print where it is")
	verbose := flag.Bool("v", false, "show the programs' logs")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()

	dir, err := os.MkdirTemp("", "toolbus-demo-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	d := &demo{ctx: ctx, bin: *bin, config: *config, dir: dir, out: os.Stdout}
	if *verbose {
		d.log = os.Stderr
	}
	start := time.Now()
	d.play()
	d.stopAll()
	if *keep {
		fmt.Println("\nEverything is in", dir)
	} else if err := os.RemoveAll(dir); err != nil {
		d.check(false, "the temporary folder %s could be removed: %v", filepath.Base(dir), err)
	}
	fmt.Printf("\n%d checks, %d failed, %.1f s\n", d.passed+d.failed, d.failed, time.Since(start).Seconds())
	if d.failed > 0 {
		os.Exit(1)
	}
}
