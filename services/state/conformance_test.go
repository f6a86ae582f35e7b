package state_test

import (
	"testing"
	"time"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/envtest"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

// What tools see of the service through its clients is what they see in the
// tests of their authors.
func TestCapabilities(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	start(t, ns)
	nc := ns.Connect()
	envtest.Run(t, envtest.Harness{
		State: toolstate.New(nc, "acme").Scratch,
		Store: func(agent, name string) tool.RevisionStore { return store.New(nc, "acme", agent, name) },
		Pass:  func(d time.Duration) { <-time.After(d) },
	})
}
