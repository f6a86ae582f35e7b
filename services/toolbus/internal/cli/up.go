package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/pkg/lifecycle"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/toolbus/internal/up"
)

func (a *app) up() *cobra.Command {
	var cfg up.Config
	var tel telemetry.Config
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run NATS and every service in this process",
		Long: `Run an embedded NATS server and every service in this process, until SIGINT or
SIGTERM (a second one ends it at once).

When all is ready, one line goes to stdout: {"ready":true,"nats":"nats://…"}.
Every flag may also be set in the environment, as TOOLBUS_<FLAG>.`,
		Args: args(0),
	}
	fs := flag.NewFlagSet("up", flag.ContinueOnError)
	cfg.RegisterFlags(fs)
	tel.RegisterFlags(fs, "")
	stopTimeout := fs.Duration("stop-timeout", 25*time.Second, "how long a stop may take; what still runs then is cancelled")
	cmd.Flags().AddGoFlagSet(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.fromEnv(cmd.LocalNonPersistentFlags()); err != nil {
			return err
		}
		return a.runUp(cmd.Context(), cfg, tel, *stopTimeout)
	}
	return cmd
}

func (a *app) runUp(ctx context.Context, cfg up.Config, tel telemetry.Config, stopTimeout time.Duration) error {
	log, closer, err := telemetry.NewLogger(a.std.Err, tel)
	if err != nil {
		return err
	}
	defer closer.Close()
	reg := telemetry.NewRegistry()
	u, err := up.New(cfg, log, reg)
	if err != nil {
		return err
	}
	a.running = true
	return lifecycle.Run(ctx, &upProcess{Up: u, app: a, tel: tel, reg: reg, log: log}, stopTimeout)
}

// upProcess is up with its ready line and its HTTP port.
type upProcess struct {
	*up.Up
	app  *app
	tel  telemetry.Config
	reg  *prometheus.Registry
	log  telemetry.Logger
	http *telemetry.HTTPServer
}

func (p *upProcess) Start(ctx context.Context) error {
	if p.tel.HTTP != "" {
		var err error
		if p.http, err = telemetry.StartHTTP(p.tel.HTTP, p.reg, p.Ready); err != nil {
			return err
		}
		p.log.Info("listening", "http", p.http.Addr())
	}
	if err := p.Up.Start(ctx); err != nil {
		return err
	}
	ready, err := json.Marshal(struct {
		Ready bool   `json:"ready"`
		NATS  string `json:"nats"`
	}{true, p.URL()})
	if err != nil {
		return err
	}
	return p.app.write(append(ready, '\n'))
}

func (p *upProcess) Stop(ctx context.Context) error {
	if p.http != nil {
		p.http.NotReady()
	}
	err := p.Up.Stop(ctx)
	if p.http != nil {
		err = errors.Join(err, p.http.Stop(ctx))
	}
	return err
}
