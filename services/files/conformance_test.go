package files_test

import (
	"testing"

	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/envtest"
)

// What tools see of the service through its client is what they see in the tests
// of their authors.
func TestCapabilities(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	start(t, s)
	nc := s.Connect()
	envtest.Run(t, envtest.Harness{Files: func() tool.Files { return files.New(nc, "acme") }})
}
