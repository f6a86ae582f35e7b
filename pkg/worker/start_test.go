package worker

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
)

func TestTheLogSaysWhatIsHostedAndWhere(t *testing.T) {
	srv := natstest.Start(t)
	var out bytes.Buffer
	log, _, err := telemetry.NewLogger(&out, telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	run := func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.OK("x"), nil }
	cfg := DefaultConfig()
	cfg.Bus.Server = srv.URL()
	w, err := New(cfg, []tool.Tool{tool.New("b", "x", run), tool.New("a", "x", run)}, log, telemetry.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"msg=hosting", "tools=a,b", "nats=" + srv.URL(), "worker=" + w.ID()} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, out.String())
		}
	}
}
