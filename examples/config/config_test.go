// Package config_test checks the example configuration.
package config_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/examples/members"
	"github.com/toolbus/toolbus/examples/relabeling"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Every example tool is granted to one agent, and nothing else is.
func TestEveryExampleToolIsGranted(t *testing.T) {
	b, err := os.ReadFile("agents.json")
	if err != nil {
		t.Fatal(err)
	}
	var cfg message.Config
	if err := json.Unmarshal(b, &cfg); err != nil {
		t.Fatal(err)
	}
	granted := map[string]string{}
	for _, a := range cfg.Agents {
		for name := range a.Tools {
			granted[name] = a.AgentID
		}
	}
	hosted := 0
	for agent, tools := range map[string][]tool.Tool{"support": relabeling.Tools(), "club": members.Tools()} {
		for _, tl := range tools {
			hosted++
			if name := tl.Definition().Name; granted[name] != agent {
				t.Errorf("%s is granted to %q, want %s", name, granted[name], agent)
			}
		}
	}
	if len(granted) != hosted {
		t.Errorf("%d tools are granted, %d are hosted", len(granted), hosted)
	}
}
