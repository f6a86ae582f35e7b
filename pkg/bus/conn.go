package bus

import (
	"context"
	"errors"
	"flag"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// DefaultServer is where a client looks when told nothing.
const DefaultServer = nats.DefaultURL

// Config says how to reach NATS.
type Config struct {
	Server      string        // one or more URLs, comma-separated
	Credentials string        // a creds file; "" for none
	InboxPrefix string        // where replies are received; "" for _INBOX
	Wait        time.Duration // keep trying to connect this long

	// InProcess makes connections to a server in this process, without the
	// network between; Server is then only a name. Nil for Server.
	InProcess nats.InProcessConnProvider
}

// RegisterFlags registers --server and its companions.
func (c *Config) RegisterFlags(f *flag.FlagSet) {
	f.StringVar(&c.Server, "server", DefaultServer, "NATS server `URL`(s), comma-separated")
	f.StringVar(&c.Credentials, "creds", "", "NATS credentials `file`")
	f.StringVar(&c.InboxPrefix, "inbox-prefix", "", "subject `prefix` for replies (default _INBOX)")
	f.DurationVar(&c.Wait, "connect-wait", 30*time.Second, "keep trying to connect for this long at start")
}

// Connect opens a connection that reconnects for ever. When no server answers
// within Wait the error is unavailable; unreadable URLs are invalid_request.
// No error shows a password.
func Connect(ctx context.Context, cfg Config, name string, opts ...nats.Option) (*nats.Conn, error) {
	if cfg.Server == "" {
		cfg.Server = DefaultServer
	}
	if _, err := serverURLs(cfg.Server); err != nil {
		return nil, err
	}
	all := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(5 * time.Second),
		// A request published while disconnected would sit in a buffer beyond
		// its caller's patience and run later, unwanted.
		nats.ReconnectBufSize(-1),
	}
	if cfg.Credentials != "" {
		all = append(all, nats.UserCredentials(cfg.Credentials))
	}
	if cfg.InboxPrefix != "" {
		all = append(all, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}
	if cfg.InProcess != nil {
		all = append(all, nats.InProcessServer(cfg.InProcess))
	}
	all = append(all, opts...)
	deadline := time.Now().Add(cfg.Wait)
	for {
		nc, err := nats.Connect(cfg.Server, all...)
		if err == nil {
			return nc, nil
		}
		if errors.Is(err, nats.ErrAuthorization) || time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errcode.Wrap(errcode.Unavailable, err, "no connection to NATS at %s: %v", redactURL(cfg.Server), err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
