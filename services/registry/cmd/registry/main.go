// Command registry runs the registry: agents' configurations and the catalogue
// of tools.
package main

import (
	"os"
	_ "time/tzdata" // time zones of configurations are checked, also where the image has none

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/command"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/registry"
)

func main() {
	var cfg registry.Config
	os.Exit(command.Main("registry", ":8083", cfg.RegisterFlags,
		func(log telemetry.Logger, reg prometheus.Registerer) (command.Service, error) {
			return registry.New(cfg, log, reg)
		}))
}
