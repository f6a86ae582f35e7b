package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
)

type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	jobs    *prometheus.CounterVec
	jobTime *prometheus.HistogramVec
	lost    prometheus.Counter // events
}

func newMetrics(reg prometheus.Registerer) metrics {
	return metrics{
		calls: telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolbus_tool_calls_total", Help: "Calls of a tool by outcome: ok, failed (the tool said so) or an error code.",
		}, []string{"tool", "outcome"})),
		seconds: telemetry.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "toolbus_tool_seconds", Help: "Time a call of a tool took.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"tool"})),
		jobs: telemetry.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toolbus_job_runs_total", Help: "Runs of a tool's background check by outcome: none, wake, wakeStateless or an error code.",
		}, []string{"tool", "job", "outcome"})),
		jobTime: telemetry.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "toolbus_job_seconds", Help: "Time a run of a tool's background check took.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"tool"})),
		lost: telemetry.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "toolbus_events_lost_total", Help: "Entries of the audit trail that could not be published.",
		})),
	}
}

// ranJob counts a run of a job that the tool has.
func (m metrics) ranJob(name, job, action string, err error, start time.Time) {
	outcome := action
	if err != nil {
		outcome = string(errcode.Of(err))
	}
	m.jobs.WithLabelValues(name, job, outcome).Inc()
	m.jobTime.WithLabelValues(name).Observe(time.Since(start).Seconds())
}

// counts are the metrics of a tool that nearly every call counts in.
type counts struct {
	ok      prometheus.Counter
	seconds prometheus.Observer
}

func (m metrics) of(tool string) counts {
	return counts{ok: m.calls.WithLabelValues(tool, "ok"), seconds: m.seconds.WithLabelValues(tool)}
}

func (m metrics) done(h *hosted, err error, res *tool.Result, start time.Time) {
	outcome := h.count.ok
	switch {
	case err != nil:
		outcome = m.calls.WithLabelValues(h.def.Name, string(errcode.Of(err)))
	case !res.Success:
		outcome = m.calls.WithLabelValues(h.def.Name, "failed")
	}
	outcome.Inc()
	h.count.seconds.Observe(time.Since(start).Seconds())
}
