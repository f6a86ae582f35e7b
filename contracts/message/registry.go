package message

import "encoding/json"

// RegistryApply applies a configuration: all of it or nothing. Config is a
// Config or a single AgentConfig. Agents not named in it stay, unless Prune.
type RegistryApply struct {
	Config json.RawMessage `json:"config"`
	DryRun bool            `json:"dryRun,omitempty"`
	Prune  bool            `json:"prune,omitempty"`
}

// RegistryApplied answers RegistryApply.
type RegistryApplied struct {
	Agents   []AgentApplied `json:"agents"`
	Removed  []string       `json:"removed,omitempty"` // agents that Prune removed
	Warnings []string       `json:"warnings"`          // for example a tool no worker hosts yet
}

// AgentApplied is the outcome for one agent.
type AgentApplied struct {
	AgentID  string `json:"agentId"`
	Revision uint64 `json:"revision"` // 0 in a dry run of a new agent
	Changed  bool   `json:"changed"`
}

// RegistryGet asks for one agent's configuration.
type RegistryGet struct {
	AgentID string `json:"agentId"`
}

// AgentEntry answers RegistryGet and is an entry of RegistryListing.
// $secret references stand in it as they were applied, never resolved.
type AgentEntry struct {
	Config   AgentConfig   `json:"config"`
	Tenant   *TenantConfig `json:"tenant,omitempty"` // with get: the tenant's own settings
	Revision uint64        `json:"revision"`
	Modified string        `json:"modified"` // RFC 3339, UTC
}

// RegistryTenantConfig answers registry.<tenant>.tenant with what the tenant's
// agents share; Tenant is null when nothing is configured.
type RegistryTenantConfig struct {
	Tenant *TenantConfig `json:"tenant"`
}

// RegistryList asks for a tenant's agents: all of them (too_large when they do
// not fit one message), or with Limit a page.
type RegistryList struct {
	Cursor string `json:"cursor,omitempty"` // of the page before
	Limit  int    `json:"limit,omitempty"`  // at most so many agents
}

// RegistryListing answers list, ordered by agentId. Cursor is set when a page
// was asked for and more agents follow.
type RegistryListing struct {
	Agents []AgentEntry `json:"agents"`
	Cursor string       `json:"cursor,omitempty"`
}

// RegistryDelete removes an agent's configuration.
type RegistryDelete struct {
	AgentID string `json:"agentId"`
}

// RegistryDeleted answers RegistryDelete; Deleted is false when there was none.
type RegistryDeleted struct {
	Deleted bool `json:"deleted"`
}

// RegistryTenants answers registry._all.tenants: every tenant with an agent.
type RegistryTenants struct {
	Tenants []string `json:"tenants"`
}

// ToolDefinition is what the catalogue knows of a tool, and what an agent's
// model is shown (name, description, inputSchema).
type ToolDefinition struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
	Idempotent  bool            `json:"idempotent,omitempty"` // may run again when it is not known what an earlier run did
	Internal    bool            `json:"internal,omitempty"`   // other tools only, unless an agent's configuration lists it
	Version     string          `json:"version,omitempty"`
	TimeoutMs   int64           `json:"timeoutMs,omitempty"`
	Jobs        []JobDefinition `json:"jobs,omitempty"` // background checks it offers

	// SettingsSchema is the JSON Schema of what an agent's configuration may say of
	// the tool; without one it may say anything.
	SettingsSchema json.RawMessage `json:"settingsSchema,omitempty"`
}

// AgentToolsReply answers agent.<tenant>.<agent>.tools: the tools granted to
// the agent that some worker hosts, ordered by name, and those granted that no
// worker hosts now.
type AgentToolsReply struct {
	Tools       []ToolDefinition `json:"tools"`
	Unavailable []string         `json:"unavailable,omitempty"`
}

// CatalogueAnnounce is a worker's offer. It stands for the registry's
// catalogue lifetime (in the reply); the worker repeats it well before that,
// and sends an empty list when it leaves.
type CatalogueAnnounce struct {
	WorkerID string           `json:"workerId"`
	Tools    []ToolDefinition `json:"tools"`
}

// CatalogueAnnounced answers CatalogueAnnounce.
type CatalogueAnnounced struct {
	TTLMs    int64    `json:"ttlMs"`
	Warnings []string `json:"warnings,omitempty"` // for example another version of a tool is live too
}

// CatalogueEntry is a tool with the workers that host it.
type CatalogueEntry struct {
	ToolDefinition
	Workers  []string `json:"workers"`
	Versions []string `json:"versions,omitempty"` // all live ones; the definition is the newest announced
}

// CatalogueTools answers catalogue.tools, ordered by name.
type CatalogueTools struct {
	Tools []CatalogueEntry `json:"tools"`
}

// WorkerLoad is what a worker says of its free slots: when one of its tools becomes full or
// free again, every few seconds while some are full, and when another says that a tool is
// full of which it has free slots. Workers that are full hand calls to those that are not.
type WorkerLoad struct {
	WorkerID string         `json:"workerId"`
	Free     map[string]int `json:"free"`           // free slots by tool
	Full     []string       `json:"full,omitempty"` // tools without a free slot
}
