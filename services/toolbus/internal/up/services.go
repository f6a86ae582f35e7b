package up

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files"
	"github.com/toolbus/toolbus/services/registry"
	"github.com/toolbus/toolbus/services/scheduler"
	"github.com/toolbus/toolbus/services/state"
	"github.com/toolbus/toolbus/services/toolworker"
)

// service is what all our services are.
type service interface {
	lifecycle.Service
	Ready(ctx context.Context) error
}

// part is one service of the process.
type part struct {
	name string
	service
}

// stages builds every service. A stage starts at once and after the one before
// it; stages stop in the opposite order, so that a tool that still runs finds
// its state and files.
func stages(cfg Config, b bus.Config, log telemetry.Logger, reg prometheus.Registerer) ([][]part, error) {
	const replicas = 1 // one embedded server
	st, fi, re, tw := state.DefaultConfig(), files.DefaultConfig(), registry.DefaultConfig(), toolworker.DefaultConfig()
	sc := scheduler.DefaultConfig()
	st.Bus, fi.Bus, re.Bus, tw.Bus, sc.Bus = b, b, b, b, b
	st.Replicas, fi.Replicas, re.Replicas, sc.Replicas = replicas, replicas, replicas, replicas
	// Nobody else takes over: what is taken back after a kill is one's own.
	sc.TickWait, sc.LeaseTTL = 3*time.Second, 3*time.Second
	if cfg.JobTimeout > 0 {
		sc.JobTimeout = cfg.JobTimeout
	}
	tw.SecretsDir = cfg.SecretsDir
	var errs []error
	build := func(name string, construct func(telemetry.Logger) (service, error)) part {
		s, err := construct(log.With("service", name))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		return part{name, s}
	}
	all := [][]part{{
		build("state", func(l telemetry.Logger) (service, error) { return state.New(st, l, reg) }),
		build("files", func(l telemetry.Logger) (service, error) { return files.New(fi, l, reg) }),
		build("registry", func(l telemetry.Logger) (service, error) { return registry.New(re, l, reg) }),
	}, {
		build("toolworker", func(l telemetry.Logger) (service, error) { return toolworker.New(tw, l, reg) }),
	}, {
		build("scheduler", func(l telemetry.Logger) (service, error) { return scheduler.New(sc, l, reg) }),
	}}
	return all, errors.Join(errs...)
}

// startLimit is how long the services of a stage may take to start. They take a
// fraction of a second, unless something is wrong that waiting does not mend.
const startLimit = 10 * time.Second

// startStage starts a stage's services at once and waits until all are ready.
// On an error the others may be running: stop the stage.
func startStage(ctx context.Context, stage []part) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range stage {
		g.Go(func() error {
			err := p.Start(ctx)
			if err == nil {
				err = p.Ready(ctx)
			}
			if err != nil {
				return fmt.Errorf("start %s: %w", p.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// stopStage stops a stage's services at once. It takes at most two thirds of
// the time left, so that what stops later still can.
func stopStage(ctx context.Context, stage []part) error {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)*2/3)
		defer cancel()
	}
	errs := make([]error, len(stage))
	var g errgroup.Group
	for i, p := range stage {
		g.Go(func() error {
			if err := p.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("stop %s: %w", p.name, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	return errors.Join(errs...)
}
