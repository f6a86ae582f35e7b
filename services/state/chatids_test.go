package state_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/toolstate"
)

// Chats of any name work through every op, list and watch, and never meet.
func TestAnyChat(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns)
	nc := ns.Connect()
	chat := rapid.OneOf(
		rapid.SampledFrom([]string{"+49 170/123", "user@example.com", "USER@example.com", "🙂", ".", "..", "*", ">", "=", "=2F", "/", "$KV", strings.Repeat("x", 256), strings.Repeat("🙂", 64)}),
		rapid.StringMatching(`[aA=2F./* >é]{1,3}`),
		rapid.StringN(1, -1, 256).Filter(func(s string) bool { return subject.CheckFree("", s) == nil }),
	)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		tenant := fmt.Sprint("t", runs) // fresh
		c := toolstate.New(nc, tenant)
		chats := rapid.SliceOfNDistinct(chat, 1, 8, rapid.ID).Draw(rt, "chats")
		w, err := c.Watch(t.Context(), toolstate.Scope{})
		if err != nil {
			rt.Fatal(err)
		}
		defer w.Stop()
		ref := func(chat string) message.ToolStateRef { return message.ToolStateRef{ChatID: chat, Namespace: "n"} }
		must := func(err error) {
			if err != nil {
				rt.Fatal(err)
			}
		}
		// Every writing op on every chat, each change of which is told.
		for i, id := range chats {
			s := c.Scratch(id, "n")
			must(s.Set(t.Context(), "chat", id))
			_, err := s.Append(t.Context(), "list", i)
			must(err)
			_, err = s.Increment(t.Context(), "n", float64(i))
			must(err)
			_, err = c.Update(t.Context(), message.ToolStateUpdate{ToolStateRef: ref(id), Delete: []string{"list"}})
			must(err)
			_, err = s.Delete(t.Context(), "n")
			must(err)
			for range 5 {
				if ch := next(t, w); ch.ChatID != id || ch.Namespace != "n" || ch.Kind != toolstate.Written {
					rt.Fatalf("chat %q: told %+v", id, ch)
				}
			}
		}
		page, err := c.List(t.Context(), message.ToolStateList{})
		must(err)
		listed := map[string]bool{}
		for _, d := range page.Documents {
			listed[d.ChatID] = true
		}
		if len(page.Documents) != len(chats) || len(listed) != len(chats) {
			rt.Fatalf("%q are listed as %+v", chats, page.Documents)
		}
		for _, id := range chats {
			all, err := c.All(t.Context(), ref(id))
			must(err)
			want, err := message.Marshal(id)
			must(err)
			if !listed[id] || len(all.Data) != 1 || string(all.Data["chat"]) != string(want) {
				rt.Fatalf("chat %q holds %s", id, all.Data)
			}
			only, err := c.List(t.Context(), message.ToolStateList{ChatID: id})
			must(err)
			if len(only.Documents) != 1 || only.Documents[0].ChatID != id {
				rt.Fatalf("chat %q alone is listed as %+v", id, only.Documents)
			}
			must(c.Scratch(id, "n").Clear(t.Context()))
			if ch := next(t, w); ch.ChatID != id || ch.Kind != toolstate.Cleared {
				rt.Fatalf("chat %q: told %+v", id, ch)
			}
		}
		page, err = c.List(t.Context(), message.ToolStateList{})
		must(err)
		if len(page.Documents) != 0 {
			rt.Fatalf("left: %+v", page.Documents)
		}
	})
}
