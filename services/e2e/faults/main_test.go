package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

var builder harness.Builder

func TestMain(m *testing.M) {
	natstest.RunChild()
	code := m.Run()
	if err := builder.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
