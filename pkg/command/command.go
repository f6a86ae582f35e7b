// Package command is what every long-running command shares: flags with environment
// defaults, logger, metrics and health, signals, and a bounded stop.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// Service is a service a command runs.
type Service interface {
	lifecycle.Service
	// Ready reports why the service cannot serve now, or nil.
	Ready(ctx context.Context) error
}

// Main is the body of a service's main function. register adds the service's
// own flags; build makes it after they are parsed. It returns the exit code.
func Main(name, httpAddr string, register func(*flag.FlagSet), build func(telemetry.Logger, prometheus.Registerer) (Service, error)) int {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	var tel telemetry.Config
	tel.RegisterFlags(f, httpAddr)
	stopTimeout := f.Duration("stop-timeout", 25*time.Second, "how long a stop may take; what still runs then is cancelled")
	register(f)
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "Usage of %s (every flag may also be set in the environment, as TOOLBUS_<FLAG>):\n", name)
		f.PrintDefaults()
	}
	if err := ParseEnv(f, os.Args[1:], os.LookupEnv); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	log, closer, err := telemetry.NewLogger(os.Stderr, tel)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	defer closer.Close()
	log = log.With("service", name)
	reg := telemetry.NewRegistry()
	svc, err := build(log, reg)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	h := &hosted{Service: svc, tel: tel, reg: reg, log: log}
	if err := lifecycle.Run(context.Background(), h, *stopTimeout); err != nil {
		log.Error("failed", "err", err)
		return 1
	}
	log.Info("stopped")
	return 0
}

// ParseEnv parses args into f; a flag not given takes its value from the
// environment: --log-level from TOOLBUS_LOG_LEVEL, --server also from NATS_URL.
// An empty variable counts as unset.
func ParseEnv(f *flag.FlagSet, args []string, lookup func(string) (string, bool)) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	given := map[string]bool{}
	f.Visit(func(fl *flag.Flag) { given[fl.Name] = true })
	var errs []error
	f.VisitAll(func(fl *flag.Flag) {
		if given[fl.Name] {
			return
		}
		names := []string{"TOOLBUS_" + strings.ToUpper(strings.ReplaceAll(fl.Name, "-", "_"))}
		if fl.Name == "server" {
			names = append(names, "NATS_URL")
		}
		for _, n := range names {
			if v, _ := lookup(n); v != "" {
				if err := f.Set(fl.Name, v); err != nil {
					errs = append(errs, fmt.Errorf("environment %s: %w", n, err))
				}
				return
			}
		}
	})
	return errors.Join(errs...)
}

// hosted is a service with its HTTP port.
type hosted struct {
	Service
	tel  telemetry.Config
	reg  *prometheus.Registry
	log  telemetry.Logger
	http *telemetry.HTTPServer
}

func (h *hosted) Start(ctx context.Context) error {
	if h.tel.HTTP != "" {
		var err error
		if h.http, err = telemetry.StartHTTP(h.tel.HTTP, h.reg, h.Ready); err != nil {
			return err
		}
		h.log.Info("listening", "http", h.http.Addr())
	}
	if err := h.Service.Start(ctx); err != nil {
		return err
	}
	h.log.Info("ready")
	return nil
}

func (h *hosted) Stop(ctx context.Context) error {
	if h.http != nil {
		h.http.NotReady()
	}
	err := h.Service.Stop(ctx)
	if h.http != nil {
		err = errors.Join(err, h.http.Stop(ctx))
	}
	return err
}
