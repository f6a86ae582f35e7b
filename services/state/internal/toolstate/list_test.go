package toolstate

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/state/internal/document"
	"github.com/toolbus/toolbus/services/state/internal/opstats"
)

// Documents that are gone, but of which markers are left, do not keep a listing
// from getting on: a page whose time is up ends among them.
func TestListGetsPastWhatIsGone(t *testing.T) {
	js, err := jetstream.New(natstest.Start(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	h, err := Open(t.Context(), js, 1, Limits{
		Limits: document.Limits{Bytes: 1 << 10, Keys: 10}, DefaultTTL: time.Hour, MinTTL: time.Second, MaxTTL: time.Hour,
	}, time.Now, opstats.New(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	do := func(op, body string) any {
		t.Helper()
		out, err := h.Serve(t.Context(), &bus.Incoming{Subject: subject.ToolState("acme", op), Data: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for i := range 9 {
		ref := fmt.Sprintf(`{"chatId":"%d","namespace":"n"`, i)
		do("set", ref+`,"key":"k","value":1}`)
		if i < 5 || i == 7 {
			do("clear", ref+`}`)
		}
	}
	h.pageTime = 0
	var found []string
	empty := 0
	for req := (message.ToolStateList{Limit: 1}); ; {
		body, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		page := do("list", string(body)).(message.ToolStateListing)
		if len(page.Documents) == 0 {
			empty++
		}
		for _, d := range page.Documents {
			found = append(found, d.ChatID)
		}
		if page.Cursor == "" {
			break
		}
		if page.Cursor == req.Cursor {
			t.Fatal("the listing does not move on")
		}
		req.Cursor = page.Cursor
	}
	if !slices.Equal(found, []string{"5", "6", "8"}) || empty == 0 {
		t.Errorf("found %v, with %d empty pages", found, empty)
	}
}
