package worker

import (
	"flag"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// Config is how a worker runs its tools.
type Config struct {
	Bus bus.Config

	// Name is the service name that nats micro shows.
	Name string
	// Timeout limits a call of a tool that has no limit of its own.
	Timeout time.Duration
	// MaxConcurrent limits the calls at once of a tool that has no limit of its
	// own. Calls beyond it wait for a slot until their deadline.
	MaxConcurrent int
	// MaxCalls limits the calls at once of all tools; 0: no limit. Those beyond it
	// wait, each tenant's in a line of its own.
	MaxCalls int
	// MaxPerTenant limits the calls at once of one tenant; 0: as many as there is
	// room for, and a fair share when there is not.
	MaxPerTenant int
	// MaxBody is the largest argument list or result, in bytes.
	MaxBody int64
	// SecretsDir holds a file per secret that {"$secret":"name"} in settings
	// names; "" for the environment (TOOLBUS_SECRET_<NAME>) only.
	SecretsDir string
}

// DefaultConfig is what a worker does unless told otherwise.
func DefaultConfig() Config {
	return Config{
		Bus:           bus.Config{Server: bus.DefaultServer, Wait: 30 * time.Second},
		Name:          "toolworker",
		Timeout:       60 * time.Second,
		MaxConcurrent: 256,
		MaxBody:       bus.DefaultMaxSpill,
	}
}

// RegisterFlags registers the configuration's flags on top of what c holds.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	c.Bus.RegisterFlags(f)
	f.StringVar(&c.Name, "name", c.Name, "service `name` shown by nats micro")
	f.DurationVar(&c.Timeout, "call-timeout", c.Timeout, "limit of a call whose tool has none of its own")
	f.IntVar(&c.MaxConcurrent, "max-concurrent", c.MaxConcurrent, "calls at once of a tool that has no limit of its own")
	f.IntVar(&c.MaxCalls, "max-calls", c.MaxCalls, "calls at once of all tools; 0 for no limit")
	f.IntVar(&c.MaxPerTenant, "max-per-tenant", c.MaxPerTenant, "calls at once of one tenant; 0 for no limit but a fair share")
	f.Int64Var(&c.MaxBody, "max-body", c.MaxBody, "largest argument list or result, in `bytes`")
	f.StringVar(&c.SecretsDir, "secrets-dir", c.SecretsDir, "`folder` with one file per secret that settings name")
}

// Validate checks the configuration; the error names the field.
func (c Config) Validate() error {
	if err := subject.CheckName("name", c.Name); err != nil {
		return err
	}
	switch {
	case c.Timeout <= 0:
		return errcode.Field("call-timeout", "must be positive")
	case c.MaxConcurrent <= 0:
		return errcode.Field("max-concurrent", "must be positive")
	case c.MaxCalls < 0:
		return errcode.Field("max-calls", "must not be negative")
	case c.MaxPerTenant < 0:
		return errcode.Field("max-per-tenant", "must not be negative")
	case c.MaxBody < 1024:
		return errcode.Field("max-body", "must be at least 1024")
	}
	return nil
}
