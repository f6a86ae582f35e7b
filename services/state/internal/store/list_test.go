package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/services/state/internal/opstats"
)

// Values that are gone, but of which markers are left, do not keep a list from
// getting on: a page whose time is up ends among them.
func TestListGetsPastWhatIsGone(t *testing.T) {
	js, err := jetstream.New(natstest.Start(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	h, err := Open(t.Context(), js, 1, 1<<10, opstats.New(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	do := func(op, body string) any {
		t.Helper()
		out, err := h.Serve(t.Context(), &bus.Incoming{Subject: subject.Store("acme", "support", "Mail", op), Data: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for i := range 9 {
		key := fmt.Sprintf(`{"key":"%d"`, i)
		do("set", key+`,"value":"v"}`)
		if i < 5 || i == 7 {
			do("delete", key+`}`)
		}
	}
	h.pageTime = 0
	var found []string
	empty := 0
	for req := (message.StoreList{Limit: 1}); ; {
		body, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		page := do("list", string(body)).(message.StoreKeys)
		if len(page.Keys) == 0 {
			empty++
		}
		found = append(found, page.Keys...)
		if page.Cursor == "" {
			break
		}
		if page.Cursor == req.Cursor {
			t.Fatal("the list does not move on")
		}
		req.Cursor = page.Cursor
	}
	if !slices.Equal(found, []string{"5", "6", "8"}) || empty == 0 {
		t.Errorf("found %v, with %d empty pages", found, empty)
	}
}
