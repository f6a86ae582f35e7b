// Command scheduler runs the scheduler: timers of schedules and jobs, and wakes.
package main

import (
	"os"
	_ "time/tzdata" // schedules have time zones, also where the image has none

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/command"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/scheduler"
)

func main() {
	var cfg scheduler.Config
	os.Exit(command.Main("scheduler", ":8085", cfg.RegisterFlags,
		func(log telemetry.Logger, reg prometheus.Registerer) (command.Service, error) {
			return scheduler.New(cfg, log, reg)
		}))
}
