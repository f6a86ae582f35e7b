package up

import (
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/services/scheduler"
)

// SyncAlways makes every acknowledged write survive a power failure.
const SyncAlways = "always"

// Config says where the embedded server listens and keeps its data.
type Config struct {
	Listen string // host:port; port 0 picks a free one
	Data   string // folder; made when missing

	// Sync is SyncAlways, or how often written data reach the disk (a Go
	// duration). With a duration, writes acknowledged within it die with the
	// machine's power, and writes are two to three times faster, more on a slow
	// disk (docs/adr/0005). The end of the process alone, kill -9 included, loses
	// nothing either way.
	Sync string

	// JobTimeout is how long one run of a tool's check may take; 0 for the
	// scheduler's default.
	JobTimeout time.Duration

	// SecretsDir holds a file per secret that {"$secret":"name"} in tool
	// settings names; "" for the environment only.
	SecretsDir string
}

// DefaultConfig listens on the NATS port of the loopback interface and keeps
// its data in the user's data folder, safely.
func DefaultConfig() Config {
	return Config{Listen: "127.0.0.1:4222", Data: defaultData(os.LookupEnv), Sync: SyncAlways, JobTimeout: scheduler.DefaultConfig().JobTimeout}
}

// RegisterFlags registers the configuration's flags.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	def := DefaultConfig()
	f.StringVar(&c.Listen, "listen", def.Listen, "`address` for NATS clients; port 0 picks a free one")
	f.StringVar(&c.Data, "data", def.Data, "`folder` for all data")
	f.StringVar(&c.Sync, "sync", def.Sync, "`when` acknowledged writes reach the disk: always, or a duration such as 2m (faster; a power failure loses what is younger)")
	f.DurationVar(&c.JobTimeout, "job-timeout", def.JobTimeout, "how long one run of a tool's check may take; as long, a worker that died is waited for")
	f.StringVar(&c.SecretsDir, "secrets-dir", "", "`folder` with one file per secret that tool settings name")
}

// Validate names the first field at fault.
func (c Config) Validate() error {
	if _, _, err := c.hostPort(); err != nil {
		return err
	}
	if c.Data == "" {
		return errcode.Field("data", "is required: there is no home folder to keep data in")
	}
	if c.JobTimeout < 0 {
		return errcode.Field("job-timeout", "must not be negative")
	}
	_, err := c.syncInterval()
	return err
}

// hostPort splits Listen; an empty host is every interface.
func (c Config) hostPort() (host string, port int, err error) {
	host, p, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", 0, errcode.Field("listen", "%q is not host:port", c.Listen)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, errcode.Field("listen", "%q: the port must be a number from 0 to 65535", c.Listen)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, port, nil
}

// syncInterval is 0 for SyncAlways.
func (c Config) syncInterval() (time.Duration, error) {
	if c.Sync == SyncAlways {
		return 0, nil
	}
	d, err := time.ParseDuration(c.Sync)
	if err != nil || d <= 0 {
		return 0, errcode.Field("sync", "%q must be %q or a positive duration such as 2m", c.Sync, SyncAlways)
	}
	return d, nil
}

// exposed tells whether others than this machine can connect.
func exposed(host string) bool {
	if host == "localhost" {
		return false
	}
	ip := net.ParseIP(host)
	return ip == nil || !ip.IsLoopback()
}

// defaultData is $XDG_DATA_HOME/toolbus, or ~/.local/share/toolbus; "" when
// the user has neither. A relative XDG_DATA_HOME does not count, as its
// specification demands.
func defaultData(lookup func(string) (string, bool)) string {
	if dir, ok := lookup("XDG_DATA_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "toolbus")
	}
	if home, ok := lookup("HOME"); ok && filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "toolbus")
	}
	return ""
}

// prepareData makes the data folder, for its owner only: it holds every
// tenant's data.
func prepareData(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errcode.Wrap(errcode.Unavailable, err, "make the data folder: %v", rootCause(err))
	}
	return nil
}

// rootCause is err with the folder named but without the system call.
func rootCause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return errors.New(p.Path + ": " + p.Err.Error())
	}
	return err
}
