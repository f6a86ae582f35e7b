package agent

import (
	"encoding/json"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// Forms in which models are told of tools.
const (
	FormatOpenAI    = "openai"    // the tools of a chat completion
	FormatAnthropic = "anthropic" // the tools of a message
	FormatMCP       = "mcp"       // the result of tools/list
)

// Formats are all forms that Export knows.
var Formats = []string{FormatOpenAI, FormatAnthropic, FormatMCP}

// Export writes tools, as Tools lists them, in one of the Formats. Names are what
// Call takes: they fit [A-Za-z0-9_-]{1,64}, as all three ask for, and are unique.
//
//	openai     [{"type":"function","function":{"name","description","parameters"}}]
//	anthropic  [{"name","description","input_schema"}]
//	mcp        {"tools":[{"name","description","inputSchema"}]}
//
// Sources: OpenAI, API reference, Chat Completions, tools; Anthropic, Messages API,
// tools; Model Context Protocol 2025-06-18, server/tools.
func Export(format string, tools []message.ToolDefinition) (json.RawMessage, error) {
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	type openAI struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	type anthropic struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"input_schema"`
	}
	type mcp struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	switch format {
	case FormatOpenAI:
		return export(tools, func(d message.ToolDefinition) openAI {
			return openAI{"function", function{d.Name, d.Description, d.InputSchema}}
		})
	case FormatAnthropic:
		return export(tools, func(d message.ToolDefinition) anthropic { return anthropic{d.Name, d.Description, d.InputSchema} })
	case FormatMCP:
		list, err := export(tools, func(d message.ToolDefinition) mcp { return mcp{d.Name, d.Description, d.InputSchema} })
		if err != nil {
			return nil, err
		}
		return message.Marshal(map[string]json.RawMessage{"tools": list})
	}
	return nil, errcode.Field("format", "%q must be openai, anthropic or mcp", format)
}

func export[T any](tools []message.ToolDefinition, form func(message.ToolDefinition) T) (json.RawMessage, error) {
	out := make([]T, len(tools))
	for i, d := range tools {
		out[i] = form(d)
	}
	b, err := message.Marshal(out)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "a tool's schema is not valid JSON: %v", err)
	}
	return b, nil
}
