package configfile

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestLoad(t *testing.T) {
	const want = `{"agents":[{"agentId":"a","tools":{"Mail":{}}}]}`
	for name, s := range map[string]Source{
		"JSON":                      {"c.json", []byte(`{ "agents": [ {"agentId":"a","tools":{"Mail":{}}} ] }`)},
		"JSON with a BOM":           {"c.json", []byte("\xef\xbb\xbf" + want)},
		"JSON without extension":    {"stdin", []byte("\n " + want)},
		"YAML":                      {"c.yaml", []byte("agents:\n- agentId: a\n  tools:\n    Mail: {}\n")},
		"YAML with markers":         {"c.yml", []byte("---\nagents:\n- agentId: a\n  tools: {Mail: {}}\n...\n")},
		"YAML without extension":    {"stdin", []byte("agents: [{agentId: a, tools: {Mail: {}}}]")},
		"JSON in a YAML file":       {"c.yaml", []byte(want)},
		"extension in upper case":   {"c.JSON", []byte(want)},
		"comment before a document": {"c.yaml", []byte("# hi\n---\nagents: [{agentId: a, tools: {Mail: {}}}]")},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := Load(s)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(cfg.JSON); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		file, data string
		want       []string // in the message
	}{
		"empty":                 {"c.json", " \n", []string{"c.json: is empty"}},
		"no object":             {"c.json", `[1]`, []string{"line 1", "must be an object"}},
		"JSON syntax":           {"c.json", "{\n  \"agents\": [,]\n}", []string{"line 2, column 14", "not valid JSON"}},
		"JSON cut off":          {"c.json", "{\n\"agents\": [", []string{"line 2", "ends too early"}},
		"a key twice":           {"c.json", "{\"agents\":[{\"tools\":{\"a\":1,\n\"a\":2}}]}", []string{"line 2", "agents[0].tools.a stands twice"}},
		"a second JSON":         {"c.json", "{}\n{}", []string{"line 2", "more than one document"}},
		"garbage at the end":    {"c.json", "{} x", []string{"line 1, column 4", "more than one document"}},
		"not UTF-8":             {"c.json", "{\n\"a\":\"\xff\"}", []string{"line 2", "UTF-8"}},
		"YAML syntax":           {"c.yaml", "agents:\n  - a: [1\n", []string{"c.yaml: line ", "not valid YAML"}},
		"YAML alias by mistake": {"c.yaml", "agents:\n- cron: */5 * * * *\n", []string{"line 2", "not valid YAML"}},
		"a YAML key twice":      {"c.yaml", "agents: []\nagents: []\n", []string{"line 2", "already set"}},
		"a second YAML":         {"c.yaml", "agents: []\n---\nagents: []\n", []string{"more than one document"}},
		"YAML list":             {"c.yaml", "- a\n", []string{"must be an object"}},
		"YAML text":             {"c.yaml", "hello\n", []string{"must be an object"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(Source{c.file, []byte(c.data)})
			var e *errcode.Error
			if !errors.As(err, &e) || e.Code != errcode.InvalidRequest {
				t.Fatalf("got %v", err)
			}
			if len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != c.file {
				t.Errorf("fields %+v do not name the file", e.Details.Fields)
			}
			for _, w := range c.want {
				if !strings.Contains(e.Message, w) {
					t.Errorf("%q does not contain %q", e.Message, w)
				}
			}
		})
	}
}

func TestLoadNamesEveryFaultyFile(t *testing.T) {
	_, err := Load(Source{"a.json", []byte("{")}, Source{"b.json", []byte("{}")}, Source{"c.yaml", []byte("- x")})
	var e *errcode.Error
	if !errors.As(err, &e) || len(e.Details.Fields) != 2 {
		t.Fatalf("got %v", err)
	}
}

func TestMerge(t *testing.T) {
	cfg, err := Load(
		Source{"a.json", []byte(`{"agents":[{"agentId":"a"},{"agentId":"b"}],"tenant":{"settings":{}}}`)},
		Source{"b.yaml", []byte("agentId: c\n")},
	)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"tenant":{"settings":{}},"agents":[{"agentId":"a"},{"agentId":"b"},{"agentId":"c"}]}`
	if string(cfg.JSON) != want {
		t.Errorf("got %s", cfg.JSON)
	}
	for field, want := range map[string]string{
		"agents[1].tools.Mail": "a.json: agents[1].tools.Mail",
		"agents[2].agentId":    "b.yaml: agentId",
		"agents[2]":            "b.yaml",
		"tenant.settings":      "a.json: tenant.settings",
		"agents[9].x":          "agents[9].x",
		"agents":               "agents",
		"other":                "other",
	} {
		got := cfg.Locate([]errcode.FieldFault{{Field: field, Message: "m"}})
		if len(got) != 1 || got[0].Field != want || got[0].Message != "m" {
			t.Errorf("%s: got %+v, want %s", field, got, want)
		}
	}
}

func TestMergeRefuses(t *testing.T) {
	for name, second := range map[string]string{
		"two tenants":    `{"agents":[],"tenant":{}}`,
		"no list":        `{"agents":{}}`,
		"null list":      `{"agents":null}`,
		"unknown beside": `{"agents":[],"agnets":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(Source{"a.json", []byte(`{"agents":[],"tenant":{}}`)}, Source{"b.json", []byte(second)})
			if !errors.Is(err, errcode.InvalidRequest) || !strings.Contains(err.Error(), "b.json") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	for _, s := range []string{`{"agents":[{"agentId":"a"}]}`, "agents:\n- agentId: a\n", "{", "a: &a [*a]", "---\n---\n", "{\"a\":1,\"a\":2}", "\xff", "? [x]\n: y"} {
		f.Add("c.json", s)
		f.Add("c.yaml", s)
		f.Add("-", s)
	}
	f.Fuzz(func(t *testing.T, name, data string) {
		cfg, err := Load(Source{name, []byte(data)})
		if err != nil {
			if !errors.Is(err, errcode.InvalidRequest) {
				t.Fatalf("no code: %v", err)
			}
			return
		}
		var v map[string]any
		if err := json.Unmarshal(cfg.JSON, &v); err != nil {
			t.Fatalf("%q became %q: %v", data, cfg.JSON, err)
		}
		if _, err := Load(Source{"again.json", cfg.JSON}); err != nil {
			t.Fatalf("%q became %q, which is refused: %v", data, cfg.JSON, err)
		}
		_, _ = Load(Source{name, []byte(data)}, Source{"b.json", []byte(`{"agentId":"b"}`)})
	})
}

func TestHasTenant(t *testing.T) {
	for text, want := range map[string]bool{
		`{"agents":[],"tenant":{}}`: true, "agents: []\ntenant: {files: {versions: 2}}\n": true,
		`{"agents":[]}`: false, `{"agentId":"a","tools":{}}`: false,
	} {
		cfg, err := Load(Source{Name: "c", Data: []byte(text)})
		if err != nil || cfg.HasTenant() != want {
			t.Errorf("%q: %t, %v", text, cfg.HasTenant(), err)
		}
	}
}
