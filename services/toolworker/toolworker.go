// Package toolworker is the service that runs Toolbus's built-in tools. It is a
// worker like anybody's: all of its work is in pkg/worker, all of its tools are
// in tools/catalog.
package toolworker

import (
	"context"
	"flag"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/worker"
	"github.com/toolbus/toolbus/services/tools/catalog"
)

// Config is how the service runs.
type Config struct {
	worker.Config
	// Tools are the built-in tools to host, comma-separated; "" for all.
	Tools string
}

// DefaultConfig is what the service does unless told otherwise.
func DefaultConfig() Config { return Config{Config: worker.DefaultConfig()} }

// RegisterFlags registers the configuration's flags.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	c.Config.RegisterFlags(f)
	f.StringVar(&c.Tools, "tools", c.Tools, "built-in tools to host, comma-separated `names` (default all)")
}

// Validate checks the configuration; the error names the field.
func (c Config) Validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	_, err := catalog.Select(names(c.Tools))
	return err
}

// Service hosts the built-in tools.
type Service struct{ w *worker.Worker }

// New makes the service.
func New(cfg Config, log telemetry.Logger, reg prometheus.Registerer) (*Service, error) {
	tools, err := catalog.Select(names(cfg.Tools))
	if err != nil {
		return nil, err
	}
	w, err := worker.New(cfg.Config, tools, log, reg)
	if err != nil {
		return nil, err
	}
	return &Service{w: w}, nil
}

// Start begins to take calls.
func (s *Service) Start(ctx context.Context) error { return s.w.Start(ctx) }

// Stop finishes what runs and leaves.
func (s *Service) Stop(ctx context.Context) error { return s.w.Stop(ctx) }

// Ready reports why the service cannot take calls now, or nil.
func (s *Service) Ready(ctx context.Context) error { return s.w.Ready(ctx) }

func names(list string) []string {
	var out []string
	for n := range strings.SplitSeq(list, ",") {
		if n = strings.TrimSpace(n); n != "" {
			out = append(out, n)
		}
	}
	return out
}
