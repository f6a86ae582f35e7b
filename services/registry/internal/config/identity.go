package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/toolbus/toolbus/services/internal/cronexpr"
)

// derivedID names an entry that has no id of its own by what it does, so that
// applying the same file again finds the same entry: 12 hex digits. How it is
// run (enabled, runOnStart, missed, jitter, expiresAfter) is no part of it:
// switching an entry off and on keeps its history. The entry's wrong types do
// not matter here; the schema reports them.
func derivedID(list string, entry, agent map[string]any) string {
	str := func(m map[string]any, key, otherwise string) string {
		if s, ok := m[key].(string); ok && s != "" {
			return s
		}
		return otherwise
	}
	what := []string{
		list,
		cronexpr.Normalize(str(entry, "cron", "")),
		str(entry, "timezone", str(agent, "timezone", "UTC")),
		str(entry, "wakeMode", "chat"),
		str(entry, "chatId", ""),
	}
	if list == "scheduler" {
		what = append(what, str(entry, "taskMessage", ""))
	} else {
		what = append(what, str(entry, "toolName", ""), str(entry, "jobTypeId", ""))
	}
	b, _ := json.Marshal(what) // strings always have a JSON form
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

// fillIDs gives every entry of an agent its id. The agent has been checked.
func fillIDs(agent map[string]any) {
	for _, list := range []string{"scheduler", "toolJobs"} {
		field := "id"
		if list == "toolJobs" {
			field = "jobId"
		}
		entries, _ := agent[list].([]any)
		for _, e := range entries {
			if m, ok := e.(map[string]any); ok && m[field] == nil {
				m[field] = derivedID(list, m, agent)
			}
		}
	}
}
