// Package schema embeds the JSON Schemas (draft 2020-12) of documents that
// people write. They are the structure's one definition: the registry checks
// against them, and editors may.
//
// What a schema cannot say (cron expressions, time zones, ids that must differ)
// the registry checks on top, with the same field paths.
package schema

import (
	_ "embed"
	"slices"
)

//go:embed agent-config.schema.json
var agentConfig []byte

// AgentConfigID is the $id of AgentConfig.
const AgentConfigID = "https://toolbus.dev/schemas/v1/agent-config.json"

// AgentConfig is the schema of a configuration file: #/$defs/file for
// {"agents":[…]}, #/$defs/agent for a single agent object; the root takes
// either. The caller may change the copy it gets.
func AgentConfig() []byte { return slices.Clone(agentConfig) }
