package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/errcode"
)

var (
	names    = rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`)
	crons    = rapid.SampledFrom([]string{"*/5 * * * *", "0 8 * * 1-5", "0 0 1 JAN *", "*/10 * * * * *", "@hourly", "@every 45s"})
	zones    = rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York"})
	settings = rapid.Deferred(func() *rapid.Generator[any] {
		return rapid.OneOf(
			rapid.Map(rapid.String(), func(s string) any { return s }),
			rapid.Map(rapid.Int(), func(i int) any { return i }),
			rapid.Just[any](nil),
			rapid.Map(names, func(n string) any { return map[string]any{"$secret": n} }),
			rapid.Map(rapid.MapOfN(rapid.StringMatching(`[a-z.]{0,8}`), rapid.String(), 0, 3), func(m map[string]string) any {
				out := map[string]any{}
				for k, v := range m {
					out[k] = v
				}
				return out
			}),
		)
	})
)

// drawAgent makes a configuration that has no fault.
func drawAgent(t *rapid.T, id string) map[string]any {
	a := map[string]any{"agentId": id}
	tools := rapid.MapOfN(names, rapid.MapOfN(rapid.StringMatching(`[a-z]{1,8}`), settings, 0, 3), 0, 4).Draw(t, "tools")
	if len(tools) > 0 {
		m := map[string]any{}
		for name, s := range tools {
			m[name] = s
		}
		a["tools"] = m
	}
	var list []any
	for i := range rapid.IntRange(0, 3).Draw(t, "schedules") {
		e := map[string]any{"cron": crons.Draw(t, "cron"), "taskMessage": fmt.Sprintf("task %d", i)}
		if rapid.Bool().Draw(t, "more") {
			e["timezone"], e["jitter"], e["x-note"] = zones.Draw(t, "zone"), "30s", "note"
			e["missed"] = rapid.SampledFrom([]string{"once", "skip"}).Draw(t, "missed")
		}
		list = append(list, e)
	}
	if list != nil {
		a["scheduler"] = list
	}
	return a
}

// shuffled writes v as JSON with the keys of every object in some other order
// and blanks between.
func shuffled(t *rapid.T, v any) []byte {
	var b bytes.Buffer
	var write func(v any)
	write = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			keys := []string{}
			for k := range v {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			b.WriteString("{ ")
			for i, k := range rapid.Permutation(keys).Draw(t, "order") {
				if i > 0 {
					b.WriteString(" ,\n")
				}
				key, _ := json.Marshal(k)
				b.Write(key)
				b.WriteString(" : ")
				write(v[k])
			}
			b.WriteByte('}')
		case []any:
			b.WriteByte('[')
			for i, e := range v {
				if i > 0 {
					b.WriteByte(',')
				}
				write(e)
			}
			b.WriteByte(']')
		default:
			s, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(s)
		}
	}
	write(v)
	return b.Bytes()
}

// A faultless configuration is accepted, means the same however its JSON is
// laid out, and is stored so that applying what is stored changes nothing.
func TestSameConfigurationSameBytes(t *testing.T) {
	p := parser(t)
	rapid.Check(t, func(t *rapid.T) {
		agent := drawAgent(t, names.Draw(t, "agentId"))
		one, err := p.Parse(shuffled(t, agent))
		if err != nil {
			t.Fatal(err)
		}
		two, err := p.Parse(shuffled(t, map[string]any{"agents": []any{agent}}))
		if err != nil {
			t.Fatal(err)
		}
		again, err := p.Parse(one.Agents[0].JSON)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one.Agents[0].JSON, two.Agents[0].JSON) || !bytes.Equal(one.Agents[0].JSON, again.Agents[0].JSON) {
			t.Fatalf("%s\n%s\n%s", one.Agents[0].JSON, two.Agents[0].JSON, again.Agents[0].JSON)
		}
	})
}

// A fault anywhere in a file of many agents is found and named, and nothing of
// any setting's value is in the error.
func TestOneFaultIsNamed(t *testing.T) {
	p := parser(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "agents")
		var agents []any
		for i := range n {
			agents = append(agents, drawAgent(t, fmt.Sprintf("agent-%d", i)))
		}
		bad := rapid.IntRange(0, n-1).Draw(t, "bad")
		m := agents[bad].(map[string]any)
		m["tools"] = map[string]any{"Mail": map[string]any{"password": "hunter2-hunter2"}}
		at := fmt.Sprintf("agents[%d]", bad)
		switch rapid.IntRange(0, 4).Draw(t, "fault") {
		case 0:
			m["timezone"] = "Moon/Crater"
			at += ".timezone"
		case 1:
			m["tols"] = map[string]any{"a": "hunter2-hunter2"}
			at += ".tols"
		case 2:
			m["tools"] = map[string]any{"Mail": "hunter2-hunter2"}
			at += ".tools.Mail"
		case 3:
			m["toolJobs"] = []any{map[string]any{"toolName": "Post", "jobTypeId": "x", "cron": "@daily"}}
			at += ".toolJobs[0].toolName"
		case 4:
			m["tools"] = map[string]any{"Mail": map[string]any{"p": []any{map[string]any{"$secret": "hunter2 hunter2"}}}}
			at += ".tools.Mail.p[0].$secret"
		}
		_, err := p.Parse(shuffled(t, map[string]any{"agents": agents}))
		var e *errcode.Error
		if !errors.As(err, &e) || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != at {
			t.Fatalf("got %v, want one fault, of %s", err, at)
		}
		if strings.Contains(e.Message, "hunter2") {
			t.Fatalf("a setting's value is in %q", e.Message)
		}
	})
}
