// Package config_test checks the example configuration.
package config_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/examples/inbox"
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
	for agent, tools := range map[string][]tool.Tool{"support": slices.Concat(relabeling.Tools(), inbox.Tools()), "club": members.Tools()} {
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
	for _, a := range cfg.Agents {
		for _, j := range a.ToolJobs {
			if j.ToolName != "readInbox" || a.Tools[j.ToolName] == nil {
				t.Errorf("job %s of %s is of %q, which is not granted", j.JobID, a.AgentID, j.ToolName)
			} else if _, err := tool.FindJob(inbox.ReadInbox, j.JobTypeID); err != nil {
				t.Errorf("job %s: %v", j.JobID, err)
			}
		}
	}
}
