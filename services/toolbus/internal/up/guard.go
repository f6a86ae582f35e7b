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
		s.log.Warn("opening the data again after a failed write", "err", fault)
		if err := s.reopen(); err != nil {
			tell("JetStream does not open again", err.Error())
		}
	}
}

// writeFault says what keeps JetStream from writing, or "". The server tells by
// text only; a stream that it could not recover is another matter, which opening
// it once more would not mend.
func (s *natsServer) writeFault() string {
	if !s.srv.JetStreamEnabled() {
		return "JetStream is closed"
	}
	for _, e := range s.srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorStream && strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}

// reopen closes JetStream, if it is not, and opens it on what is on the disk.
func (s *natsServer) reopen() error {
	if err := s.srv.ShutdownJetStream(); err != nil {
		return err
	}
	interval, err := s.cfg.syncInterval()
	if err != nil {
		return err
	}
	return s.srv.EnableJetStream(&server.JetStreamConfig{
		StoreDir: s.cfg.Data, MaxStore: storeLimit(s.cfg.Data, s.reserved), MaxMemory: s.memory,
		SyncAlways: interval == 0, SyncInterval: interval, Strict: true,
	})
}
