package bucket

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/pkg/natstest"
)

func TestMain(m *testing.M) {
	natstest.RunChild()
	goleak.VerifyTestMain(m)
}
