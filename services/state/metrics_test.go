package state_test

import (
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/state"
)

// Metrics tell operations, outcomes, conflicts and times, and nobody's names: a
// label per tenant or chat would grow without end.
func TestMetrics(t *testing.T) {
	ns := natstest.Start(t)
	reg := prometheus.NewRegistry()
	cfg := state.DefaultConfig()
	cfg.Bus = ns.Config()
	s, err := state.New(cfg, telemetry.Discard(), reg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	nc := ns.Connect()
	ctx := t.Context()
	pad := toolstate.New(nc, "secrettenant").Scratch("secretchat", "secretnamespace")
	vault := store.New(nc, "secrettenant", "secretagent", "secrettool")
	for range 3 {
		if _, err := pad.Append(ctx, "secretkey", "secretvalue"); err != nil {
			t.Fatal(err)
		}
	}
	_, err = pad.Increment(ctx, "secretkey", 1)
	wantCode(t, err, errcode.InvalidRequest, "key")
	err = pad.Set(ctx, "secretkey", strings.Repeat("x", 64<<10))
	wantCode(t, err, errcode.TooLarge, "")
	if err := vault.Set(ctx, "secretkey", "v"); err != nil {
		t.Fatal(err)
	}
	_, err = vault.SetIf(ctx, "secretkey", "v", 0)
	wantCode(t, err, errcode.Conflict, "")
	for _, op := range []string{"secretop", "get.secret"} {
		_, err := call[message.ToolStateData](t, nc, "secrettenant", op, `{}`)
		if err == nil {
			t.Errorf("op %s is served", op)
		}
	}
	// Another replica's writes meet this one's.
	start(t, ns)
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			if _, err := pad.Append(ctx, "secretlist", 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	rec := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	text := rec.Body.String()
	for _, want := range []string{
		`toolbus_state_ops_total{op="toolstate.append",outcome="ok"} `, `toolbus_state_ops_total{op="toolstate.increment",outcome="invalid_request"} 1`,
		`toolbus_state_ops_total{op="toolstate.set",outcome="too_large"} 1`, `toolbus_state_ops_total{op="store.set",outcome="ok"} 1`,
		`toolbus_state_ops_total{op="store.set",outcome="conflict"} 1`, `toolbus_state_op_seconds_count{op="store.set"} 2`,
		`toolbus_state_op_seconds_bucket{op="toolstate.append",le="0.0001"} `, "\ntoolbus_state_conflicts_total ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if i := strings.Index(text, "secret"); i >= 0 {
		t.Errorf("a name is told: …%.100s", text[i:])
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "toolbus_") && (strings.Contains(line, "tenant=") || strings.Contains(line, "agent=") || strings.Contains(line, "chat=") || strings.Contains(line, "namespace=")) {
			t.Errorf("a label of somebody's: %s", line)
		}
	}
}

// Every limit is a setting, and an error names the one that was met.
func TestLimitsAreConfigured(t *testing.T) {
	ns := natstest.Start(t)
	start(t, ns, func(c *state.Config) {
		c.DocumentLimit, c.KeysLimit, c.ValueLimit = 2000, 2, 1500
		c.MinTTL, c.DefaultTTL, c.MaxTTL = 2*time.Second, 3*time.Second, 4*time.Second
	})
	nc := ns.Connect()
	w := must[message.ToolStateWritten](t, nc, "acme", "update", `{`+doc+`,"set":{"a":1,"b":2}}`)
	if at, err := time.Parse(time.RFC3339, w.ExpiresAt); err != nil || time.Until(at) > 3*time.Second || time.Until(at) < time.Second {
		t.Errorf("the default life: %s, %v", w.ExpiresAt, err)
	}
	long := `"` + strings.Repeat("x", 2000) + `"`
	for _, c := range []struct {
		op, body string
		code     errcode.Code
		field    string
		limit    int64
		text     string
	}{
		{"set", `"key":"a","value":` + long, errcode.TooLarge, "", 2000, "2000 "},
		{"append", `"key":"c","values":[1]`, errcode.TooLarge, "", 2, "at most 2 "},
		{"set", `"key":"a","value":1,"ttl":"1s"`, errcode.InvalidRequest, "ttl", 0, "2s to 4s"},
		{"append", `"key":"a","values":[1],"ttl":"5s"`, errcode.InvalidRequest, "ttl", 0, "2s to 4s"},
		{"increment", `"key":"a","by":1,"ttl":"+1 hour"`, errcode.InvalidRequest, "ttl", 0, "2s to 4s"},
		{"update", `"ttl":"1ms"`, errcode.InvalidRequest, "ttl", 0, "2s to 4s"},
		{"list", `"limit":1001`, errcode.InvalidRequest, "limit", 0, "1 to 1000"},
	} {
		_, err := call[map[string]any](t, nc, "acme", c.op, `{`+doc+`,`+c.body+`}`)
		wantCode(t, err, c.code, c.field)
		d := errcode.From(err).Details
		if !strings.Contains(err.Error(), c.text) || c.limit != 0 && (d.Limit == nil || *d.Limit != c.limit) {
			t.Errorf("%s %.40s: %v, %+v, want limit %d and %q", c.op, c.body, err, d, c.limit, c.text)
		}
		if c.field != "" && !strings.Contains(d.Fields[0].Message, c.text) {
			t.Errorf("%s: details %+v do not name %q", c.op, d, c.text)
		}
	}
	_, err := call[map[string]any](t, nc, "acme", "get", `{"chatId":"`+strings.Repeat("c", 257)+`","namespace":"n","key":"k"}`)
	if wantCode(t, err, errcode.InvalidRequest, "chatId"); !strings.Contains(err.Error(), "256") {
		t.Errorf("%v", err)
	}
	err = store.New(nc, "acme", "a", "t").Set(t.Context(), "k", strings.Repeat("x", 1501))
	if wantCode(t, err, errcode.TooLarge, ""); *errcode.From(err).Details.Limit != 1500 || !strings.Contains(err.Error(), "1500") {
		t.Errorf("%v", err)
	}
	// What is taken is exactly as large as is said.
	if err := store.New(nc, "acme", "a", "t").Set(t.Context(), "k", strings.Repeat("x", 1500)); err != nil {
		t.Error(err)
	}
}
