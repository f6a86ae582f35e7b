package up

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// guardEvery is how often the guard looks.
const guardEvery = time.Second

// guard brings JetStream back after the disk was full. A stream that failed to
// write refuses every later write, without an answer, until it is opened anew.
func (s *natsServer) guard(ctx context.Context, every time.Duration) {
	defer close(s.guarded)
	t := time.NewTicker(every)
	defer t.Stop()
	told := ""
	tell := func(msg, reason string) {
		if told != reason {
			told = reason
			s.log.Error(msg, "err", reason)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		fault := s.writeFault()
		if fault == "" {
			continue
		}
		if err := probe(s.cfg.Data); err != nil {
			tell("nothing can be written until the disk has room again", err.Error())
			continue
		}
		s.log.Warn("restarting the NATS server after a failed write", "err", fault)
		if err := s.restart(ctx); err != nil {
			tell("the NATS server does not start again", err.Error())
		}
	}
}

// writeFault says what keeps JetStream from writing, or "". The server tells by
// text only; a stream that it could not recover is another matter, which a
// restart would not mend.
func (s *natsServer) writeFault() string {
	srv := s.server()
	switch {
	case !srv.Running():
		return "the server is down"
	case !srv.JetStreamEnabled():
		return "JetStream is closed"
	}
	for _, e := range srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorStream && strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}

// restart replaces the server by one on the same port that reads anew what is on
// the disk. Clients reconnect by themselves. (Opening JetStream again in the same
// server would do, but is not safe under requests.)
func (s *natsServer) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := shutdown(ctx, s.server()); err != nil {
		return err
	}
	return s.launch(ctx)
}
