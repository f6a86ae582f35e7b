package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/services/internal/cronexpr"
)

// checker finds what a schema cannot say. It works on the document as decoded,
// so that it reports its faults beside the structural ones; what has the wrong
// type it leaves to the schema.
type checker struct {
	faults []errcode.FieldFault
}

func (c *checker) add(p path, format string, args ...any) {
	c.faults = append(c.faults, errcode.FieldFault{Field: p.String(), Message: fmt.Sprintf(format, args...)})
}

func (c *checker) file(doc map[string]any) {
	agents, _ := doc["agents"].([]any)
	seen := map[string]int{}
	for i, a := range agents {
		m, ok := a.(map[string]any)
		if !ok {
			continue
		}
		at := path{}.key("agents").index(i)
		c.agent(at, m)
		id, _ := m["agentId"].(string)
		if first, twice := seen[id]; twice && id != "" {
			c.add(at.key("agentId"), "%s is agents[%d] already", quote(id), first)
		} else {
			seen[id] = i
		}
	}
}

func (c *checker) agent(at path, a map[string]any) {
	c.timezone(at, a)
	tools, _ := a["tools"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		if subject.CheckName("", name) != nil {
			c.add(at.key("tools").key(name), "the name must match [A-Za-z0-9_-]{1,64}")
		}
		c.tool(at.key("tools").key(name), tools[name])
	}
	ids := map[string]string{} // id → where
	work := map[string]string{}
	for _, list := range []string{"scheduler", "toolJobs"} {
		entries, _ := a[list].([]any)
		for i, e := range entries {
			m, ok := e.(map[string]any)
			if !ok {
				continue
			}
			here := at.key(list).index(i)
			local := path{}.key(list).index(i).String()
			idField := "id"
			if list == "scheduler" {
				c.schedule(here, m)
			} else {
				idField = "jobId"
				c.job(here, m, tools)
			}
			c.common(here, m)
			id, _ := m[idField].(string)
			if id == "" {
				key := derivedID(list, m, a)
				if first, twice := work[key]; twice {
					c.add(here, "does the same as %s: give each an %s of its own, or remove one", first, idField)
					continue
				}
				work[key] = local
				id = key
			}
			if first, twice := ids[id]; twice {
				c.add(here.key(idField), "%s is the id of %s already", quote(id), first)
			} else {
				ids[id] = local
			}
		}
	}
}

// tool checks the fields of a tool's entry that are the runtime's own.
func (c *checker) tool(at path, entry any) {
	raw, err := message.Marshal(entry)
	if err != nil {
		return
	}
	e, err := message.ParseToolEntry(raw)
	var bad *errcode.Error
	if errors.As(err, &bad) && bad.Details != nil {
		for _, f := range bad.Details.Fields {
			c.add(at.key(f.Field), "%s", f.Message)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Pinned)) {
		if bytes.Contains(e.Pinned[name], []byte(`"$secret"`)) {
			c.add(at.key("pinned").key(name), "an argument cannot be a secret: tools and audits see it; make it a setting")
		}
	}
}

func (c *checker) schedule(at path, e map[string]any) {
	if msg, ok := e["taskMessage"].(string); ok && msg != "" && strings.TrimSpace(msg) == "" {
		c.add(at.key("taskMessage"), "is blank")
	}
}

func (c *checker) job(at path, e, tools map[string]any) {
	if name, ok := e["toolName"].(string); ok && subject.CheckName("toolName", name) == nil {
		if _, granted := tools[name]; !granted {
			c.add(at.key("toolName"), "%s is not among the agent's tools", quote(name))
		}
	}
}

// common checks the fields that schedules and jobs share.
func (c *checker) common(at path, e map[string]any) {
	if expr, ok := e["cron"].(string); ok && expr != "" {
		if _, err := cronexpr.Parse(expr); err != nil {
			c.add(at.key("cron"), "%s: %v", quote(expr), err)
		}
	}
	c.timezone(at, e)
	for _, f := range []string{"jitter", "expiresAfter"} {
		v, ok := e[f].(string)
		if !ok {
			continue
		}
		switch d, err := time.ParseDuration(v); {
		case err != nil:
			c.add(at.key(f), "%s is not a duration such as 30s or 2h", quote(v))
		case d < 0:
			c.add(at.key(f), "%s is negative", quote(v))
		}
	}
	if chat, ok := e["chatId"].(string); ok && chat != "" {
		var fault *errcode.Error
		if err := subject.CheckFree("chatId", chat); errors.As(err, &fault) {
			c.add(at.key("chatId"), "%s", fault.Details.Fields[0].Message)
		}
	}
}

func (c *checker) timezone(at path, m map[string]any) {
	tz, ok := m["timezone"].(string)
	if !ok || tz == "" {
		return
	}
	// "Local" would mean another zone on every machine.
	if _, err := time.LoadLocation(tz); err != nil || tz == "Local" {
		c.add(at.key("timezone"), "%s is not an IANA time zone such as Europe/Berlin", quote(tz))
	}
}
