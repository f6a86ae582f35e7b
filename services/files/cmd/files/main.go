// Command files runs one replica of the files service.
package main

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/command"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files"
)

func main() {
	cfg := files.DefaultConfig()
	os.Exit(command.Main("files", ":8084", cfg.RegisterFlags, func(log telemetry.Logger, reg prometheus.Registerer) (command.Service, error) {
		return files.New(cfg, log, reg)
	}))
}
