package message

import "encoding/json"

// Config is a configuration file: either {"agents":[…]} with an optional
// "tenant", or a single agent object (registry.apply takes both).
type Config struct {
	Tenant *TenantConfig `json:"tenant,omitempty"`
	Agents []AgentConfig `json:"agents"`
}

// TenantConfig is what the agents of a tenant share.
type TenantConfig struct {
	Settings map[string]json.RawMessage `json:"settings,omitempty"` // shared by all chats
	Files    *TenantFiles               `json:"files,omitempty"`
	Events   *TenantEvents              `json:"events,omitempty"`
}

// TenantEvents is what a tenant's audit trail holds beside who did what.
type TenantEvents struct {
	Arguments bool `json:"arguments,omitempty"` // the arguments of calls, too
}

// TenantFiles is what a tenant's file area may hold. What is left out is as the
// files service is configured.
type TenantFiles struct {
	QuotaBytes *int64 `json:"quotaBytes,omitempty"` // of all files together; 0: no limit
	MaxFiles   *int64 `json:"maxFiles,omitempty"`   // 0: no limit
	// Versions is how many versions of each file are kept, 1 to 100, the current
	// one included; 1 when it is left out. They count in QuotaBytes.
	Versions *int `json:"versions,omitempty"`
}

// AgentConfig is one agent: its tools with their settings, its wake-ups and its
// tools' background jobs.
type AgentConfig struct {
	AgentID   string                     `json:"agentId"`
	Timezone  string                     `json:"timezone,omitempty"` // IANA name; default UTC
	Tools     map[string]json.RawMessage `json:"tools,omitempty"`    // tool name → its settings, an object
	Scheduler []ScheduleEntry            `json:"scheduler,omitempty"`
	ToolJobs  []ToolJob                  `json:"toolJobs,omitempty"`
}

// ScheduleEntry wakes the agent on a cron expression.
type ScheduleEntry struct {
	ID           string `json:"id,omitempty"` // derived from what the entry does when left out
	Cron         string `json:"cron"`
	Timezone     string `json:"timezone,omitempty"`
	TaskMessage  string `json:"taskMessage"`
	Enabled      *bool  `json:"enabled,omitempty"` // default true
	RunOnStart   bool   `json:"runOnStart,omitempty"`
	Missed       string `json:"missed,omitempty"`       // once (default) or skip
	Jitter       string `json:"jitter,omitempty"`       // a Go duration
	WakeMode     string `json:"wakeMode,omitempty"`     // chat (default) or stateless
	ChatID       string `json:"chatId,omitempty"`       // which conversation to wake
	ExpiresAfter string `json:"expiresAfter,omitempty"` // a Go duration
}

// ToolJob runs a tool's background check on a cron expression.
type ToolJob struct {
	JobID        string `json:"jobId,omitempty"` // derived from what the job does when left out
	ToolName     string `json:"toolName"`
	JobTypeID    string `json:"jobTypeId"`
	Cron         string `json:"cron"`
	Timezone     string `json:"timezone,omitempty"`
	Enabled      *bool  `json:"enabled,omitempty"` // default true
	RunOnStart   bool   `json:"runOnStart,omitempty"`
	Missed       string `json:"missed,omitempty"`
	Jitter       string `json:"jitter,omitempty"`
	WakeMode     string `json:"wakeMode,omitempty"`
	ChatID       string `json:"chatId,omitempty"`
	ExpiresAfter string `json:"expiresAfter,omitempty"`
}
