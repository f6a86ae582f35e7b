// Command state runs the state service: ToolState and the durable store.
package main

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/command"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/state"
)

func main() {
	cfg := state.DefaultConfig()
	os.Exit(command.Main("state", ":8082", cfg.RegisterFlags,
		func(log telemetry.Logger, reg prometheus.Registerer) (command.Service, error) {
			return state.New(cfg, log, reg)
		}))
}
