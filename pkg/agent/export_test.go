package agent_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/agent"
)

func TestExport(t *testing.T) {
	tools := []message.ToolDefinition{{Name: "addCode", Description: "Adds <one>.", InputSchema: json.RawMessage(`{"type":"object"}`), Version: "1", TimeoutMs: 5}}
	for format, want := range map[string]string{
		"openai":    `[{"type":"function","function":{"name":"addCode","description":"Adds <one>.","parameters":{"type":"object"}}}]`,
		"anthropic": `[{"name":"addCode","description":"Adds <one>.","input_schema":{"type":"object"}}]`,
		"mcp":       `{"tools":[{"name":"addCode","description":"Adds <one>.","inputSchema":{"type":"object"}}]}`,
	} {
		if got, err := agent.Export(format, tools); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", format, got, err, want)
		}
	}
	for format, want := range map[string]string{"openai": `[]`, "anthropic": `[]`, "mcp": `{"tools":[]}`} {
		if got, err := agent.Export(format, nil); err != nil || string(got) != want {
			t.Errorf("%s without tools: %s, %v", format, got, err)
		}
	}
	if _, err := agent.Export("yaml", tools); !errors.Is(err, errcode.InvalidRequest) {
		t.Errorf("an unknown format: %v", err)
	}
	if _, err := agent.Export("mcp", []message.ToolDefinition{{InputSchema: json.RawMessage("{")}}); !errors.Is(err, errcode.Internal) {
		t.Errorf("a broken schema: %v", err)
	}
}
