// Command toolworker runs Toolbus's built-in tools.
package main

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/command"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/toolworker"
)

func main() {
	cfg := toolworker.DefaultConfig()
	os.Exit(command.Main("toolworker", ":8080", cfg.RegisterFlags, func(log telemetry.Logger, reg prometheus.Registerer) (command.Service, error) {
		return toolworker.New(cfg, log, reg)
	}))
}
