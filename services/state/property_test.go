package state_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// Any sequence of operations, some sent again later, leaves what the same
// operations do to a map.
func TestOpsAgainstModel(t *testing.T) {
	ns := natstest.Start(t)
	for range 2 {
		start(t, ns)
	}
	nc := ns.Connect()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		ref := fmt.Sprintf(`"chatId":"c%d","namespace":"n"`, run)
		model := map[string]any{}
		exists, revision := false, uint64(0)
		var sent [][2]string
		var answers []string
		do := func(op, body string) json.RawMessage {
			body = fmt.Sprintf(`{%s,%s,"opId":"%d-%d"}`, ref, body, run, len(sent))
			out, err := call[json.RawMessage](t, nc, "acme", op, body)
			if err != nil {
				rt.Fatalf("%s %s: %v", op, body, err)
			}
			sent, answers = append(sent, [2]string{op, body}), append(answers, string(out))
			return out
		}
		written := func(out json.RawMessage) {
			var w message.ToolStateWritten
			if err := json.Unmarshal(out, &w); err != nil || w.Revision <= revision || w.ExpiresAt == "" {
				rt.Fatalf("answer %s after revision %d (%v)", out, revision, err)
			}
			exists, revision = true, w.Revision
		}
		key := rapid.SampledFrom([]string{"a", "b"})
		number := rapid.Int64()
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) {
				k, v := key.Draw(rt, "key"), number.Draw(rt, "n")
				current := uint64(0)
				if exists {
					current = revision
				}
				written(do("set", fmt.Sprintf(`"key":%q,"value":%d,"ifRevision":%d`, k, v, current)))
				model[k] = big.NewInt(v)
			},
			"increment": func(rt *rapid.T) {
				k, by := key.Draw(rt, "key"), number.Draw(rt, "by")
				old, ok := model[k].(*big.Int)
				if model[k] != nil && !ok || ok && len(old.String()) > 40 {
					rt.Skip()
				}
				if !ok {
					old = new(big.Int)
				}
				sum := new(big.Int).Add(old, big.NewInt(by))
				out := do("increment", fmt.Sprintf(`"key":%q,"by":%d`, k, by))
				var v message.ToolStateIncremented
				if err := json.Unmarshal(out, &v); err != nil || v.Value.String() != sum.String() {
					rt.Fatalf("increment: %s, want %s (%v)", out, sum, err)
				}
				written(out)
				model[k] = sum
			},
			"append": func(rt *rapid.T) {
				k, v := key.Draw(rt, "key"), number.Draw(rt, "n")
				old, ok := model[k].([]int64)
				if model[k] != nil && !ok {
					rt.Skip()
				}
				out := do("append", fmt.Sprintf(`"key":%q,"values":[%d]`, k, v))
				var a message.ToolStateAppended
				if err := json.Unmarshal(out, &a); err != nil || a.Length != len(old)+1 {
					rt.Fatalf("append: %s, want length %d (%v)", out, len(old)+1, err)
				}
				written(out)
				model[k] = append(old[:len(old):len(old)], v)
			},
			"delete": func(rt *rapid.T) {
				k := key.Draw(rt, "key")
				out := do("delete", fmt.Sprintf(`"key":%q`, k))
				var d message.ToolStateDeleted
				if err := json.Unmarshal(out, &d); err != nil || d.Deleted != (model[k] != nil) {
					rt.Fatalf("delete: %s, model %v (%v)", out, model[k], err)
				}
				delete(model, k)
				switch {
				case len(model) > 0:
					written(out)
				case d.Revision != 0 || d.ExpiresAt != "":
					rt.Fatalf("delete: %s, though no key and so no document is left", out)
				default:
					exists = false
				}
			},
			"update": func(rt *rapid.T) {
				v := number.Draw(rt, "n")
				written(do("update", fmt.Sprintf(`"set":{"a":%d},"delete":["b"]`, v)))
				delete(model, "b")
				model["a"] = big.NewInt(v)
			},
			"clear": func(rt *rapid.T) {
				var c message.ToolStateCleared
				if out := do("clear", `"x":0`); json.Unmarshal(out, &c) != nil || c.Cleared != exists {
					rt.Fatalf("clear: %s, exists %t", out, exists)
				}
				exists = false
				clear(model)
			},
			"again": func(rt *rapid.T) {
				if len(sent) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(sent)-1).Draw(rt, "which")
				out, err := call[json.RawMessage](t, nc, "acme", sent[i][0], sent[i][1])
				if err != nil || string(out) != answers[i] {
					rt.Fatalf("%v again: %s, first %s (%v)", sent[i], out, answers[i], err)
				}
			},
			"": func(rt *rapid.T) {
				all, err := call[message.ToolStateData](t, nc, "acme", "all", `{`+ref+`}`)
				if err != nil {
					rt.Fatal(err)
				}
				if all.Found != exists || exists && all.Revision != revision {
					rt.Fatalf("found %t at %d, want %t at %d", all.Found, all.Revision, exists, revision)
				}
				want := map[string]string{}
				for k, v := range model {
					b, err := json.Marshal(v)
					if err != nil {
						rt.Fatal(err)
					}
					want[k] = string(b)
				}
				got := map[string]string{}
				for k, v := range all.Data {
					got[k] = string(v)
				}
				if !maps.Equal(got, want) {
					rt.Fatalf("data %v, want %v", got, want)
				}
			},
		})
	})
}
