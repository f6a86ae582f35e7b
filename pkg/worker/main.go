package worker

import (
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/command"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Main is the whole main function of a worker program: flags (--server and
// others, see --help) and their environment, logs, metrics and health, and a
// stop on SIGTERM that finishes what runs. It does not return.
func Main(tools ...tool.Tool) {
	cfg := DefaultConfig()
	os.Exit(command.Main(filepath.Base(os.Args[0]), "", cfg.RegisterFlags, func(log telemetry.Logger, reg prometheus.Registerer) (command.Service, error) {
		return New(cfg, tools, log, reg)
	}))
}
