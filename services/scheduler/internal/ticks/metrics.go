package ticks

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/telemetry"
)

// Metrics of ticks.
type Metrics struct {
	Ticks    *prometheus.CounterVec // by outcome
	Lateness prometheus.Histogram   // seconds
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) Metrics {
	return Metrics{
		Ticks: telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolbus_scheduler_slots_total",
			Help: "Slots by outcome: ran, failed, missed, skipped; and ticks that were retried or dropped.",
		}, []string{"outcome"})),
		Lateness: telemetry.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "toolbus_scheduler_lateness_seconds",
			Help:    "From when a run was due until it began.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300, 3600},
		})),
	}
}
