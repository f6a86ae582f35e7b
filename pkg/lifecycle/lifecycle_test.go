package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestStackClosesLastInFirst(t *testing.T) {
	var s Stack
	var order []string
	boom := errors.New("boom")
	s.Push("a", func(context.Context) error { order = append(order, "a"); return nil })
	s.Push("b", func(context.Context) error { order = append(order, "b"); return boom })
	s.Push("c", func(context.Context) error { order = append(order, "c"); return nil })
	err := s.Close(context.Background())
	if !slices.Equal(order, []string{"c", "b", "a"}) {
		t.Errorf("order %v", order)
	}
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "stop b") {
		t.Errorf("err %v", err)
	}
	if err := s.Close(context.Background()); err != nil || len(order) != 3 {
		t.Errorf("a second Close must do nothing: %v %v", err, order)
	}
}

type probe struct {
	started, stopped chan struct{}
	startErr         error
}

func (p *probe) Start(context.Context) error { close(p.started); return p.startErr }
func (p *probe) Stop(context.Context) error  { close(p.stopped); return nil }

func TestRunStopsOnSignal(t *testing.T) {
	p := &probe{started: make(chan struct{}), stopped: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- Run(context.Background(), p, time.Second) }()
	<-p.started
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-p.stopped
}

func TestRunStopsAfterAFailedStart(t *testing.T) {
	boom := errors.New("boom")
	p := &probe{started: make(chan struct{}), stopped: make(chan struct{}), startErr: boom}
	if err := Run(context.Background(), p, time.Second); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	<-p.stopped
}
