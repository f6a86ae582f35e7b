// Package opstats counts and times the state service's operations. Its labels
// are operations and outcomes, which are few; never tenants, agents or chats.
package opstats

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// Stats are the metrics of operations.
type Stats struct {
	ops     *prometheus.CounterVec
	seconds *prometheus.HistogramVec

	// Conflicts counts writes that met another writer's.
	Conflicts prometheus.Counter
}

// New registers the metrics.
func New(reg prometheus.Registerer) *Stats {
	return &Stats{
		ops: telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolbus_state_ops_total", Help: "Operations on ToolState, store and results, by operation and outcome (ok or an error code).",
		}, []string{"op", "outcome"})),
		seconds: telemetry.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "toolbus_state_op_seconds", Help: "How long operations on ToolState and store took, in seconds.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"op"})),
		Conflicts: telemetry.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "toolbus_state_conflicts_total", Help: "Writes that met another writer's and were applied again.",
		})),
	}
}

// Op are the metrics of one operation, found once.
type Op struct {
	name    string
	stats   *Stats
	ok      prometheus.Counter
	seconds prometheus.Observer
}

// Op returns the metrics of an operation that is timed.
func (s *Stats) Op(name string) *Op {
	return &Op{name: name, stats: s, ok: s.ops.WithLabelValues(name, "ok"), seconds: s.seconds.WithLabelValues(name)}
}

// Done counts and times an operation that ended with err.
func (o *Op) Done(began time.Time, err error) {
	if err == nil {
		o.ok.Inc()
	} else {
		o.stats.Count(o.name, err)
	}
	o.seconds.Observe(time.Since(began).Seconds())
}

// Count counts an operation that ended with err. For those that may wait for
// something to happen, whose time says nothing.
func (s *Stats) Count(op string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = string(errcode.Of(err))
	}
	s.ops.WithLabelValues(op, outcome).Inc()
}
