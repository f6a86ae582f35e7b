// Command bench-responder answers every request on a subject with the request's
// body: a NATS round trip with nothing of ours in it.
//
//	bench-responder nats://127.0.0.1:4222 bench.echo
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: bench-responder URL SUBJECT")
		os.Exit(2)
	}
	if err := respond(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-responder:", err)
		os.Exit(1)
	}
}

func respond(url, subject string) error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		return err
	}
	<-end
	return nil
}
