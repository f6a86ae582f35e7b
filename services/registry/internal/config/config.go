package config

import (
	"encoding/json"
	"fmt"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// Limits, in bytes of canonical JSON.
const (
	MaxAgent  = 512 << 10
	MaxTenant = 512 << 10
)

// maxFaults limits how many faults one answer lists.
const maxFaults = 100

// Parsed is a configuration without a fault.
type Parsed struct {
	Agents []Agent
	Tenant []byte // the tenant's settings in canonical JSON; nil when the file has none
	Single bool   // it was a single agent object, so paths have no agents[0] in front
}

// Agent is one checked agent.
type Agent struct {
	ID    string
	Tools []string // granted, in no order
	Jobs  []message.ToolJob
	JSON  []byte // a message.AgentConfig in canonical form: ids filled in, keys of settings sorted
}

// ToolPath is the field path of a tool of agent i.
func (p Parsed) ToolPath(i int, tool string) string {
	return p.at(i).key("tools").key(tool).String()
}

// JobPath is the field path of the check that job j of agent i runs.
func (p Parsed) JobPath(i, j int) string {
	return p.at(i).key("toolJobs").index(j).key("jobTypeId").String()
}

func (p Parsed) at(i int) path {
	var at path
	if !p.Single {
		at = at.key("agents").index(i)
	}
	return at
}

func (p Parsed) prefix(i int) string {
	if p.Single {
		return ""
	}
	return path{}.key("agents").index(i).String() + ": "
}

// Parser checks configurations. It is safe for concurrent use.
type Parser struct{ structure *structure }

// NewParser compiles the schema; it fails only when that is broken.
func NewParser() (*Parser, error) {
	s, err := newStructure()
	if err != nil {
		return nil, err
	}
	return &Parser{structure: s}, nil
}

// Parse reads a configuration file or a single agent object. The error is
// invalid_request with every fault (the first 100), or too_large.
func (p *Parser) Parse(raw []byte) (Parsed, error) {
	if len(raw) == 0 {
		return Parsed{}, errcode.Field("config", "is required")
	}
	v, faults, err := decode(raw)
	if err != nil {
		return Parsed{}, err
	}
	doc, ok := v.(map[string]any)
	if !ok {
		return Parsed{}, errcode.Field("config", `must be an object: {"agents":[…]} or a single agent`)
	}
	_, hasAgents := doc["agents"]
	_, hasTenant := doc["tenant"]
	_, hasID := doc["agentId"]
	if !hasAgents && !hasTenant && !hasID {
		return Parsed{}, errcode.Fields(errcode.InvalidRequest, append(faults, errcode.FieldFault{Field: "agents",
			Message: `is required: the configuration is {"agents":[…]}, or a single agent with its agentId`})...)
	}
	single := !hasAgents && !hasTenant
	faults = append(faults, p.structure.check(doc, single)...)
	var c checker
	if single {
		c.agent(nil, doc)
	} else {
		c.file(doc)
	}
	if faults = append(faults, c.faults...); len(faults) > 0 {
		if n := len(faults); n > maxFaults {
			faults = append(faults[:maxFaults:maxFaults], errcode.FieldFault{Field: "config", Message: fmt.Sprintf("has %d more faults", n-maxFaults)})
		}
		return Parsed{}, errcode.Fields(errcode.InvalidRequest, faults...)
	}
	return build(doc, single)
}

func build(doc map[string]any, single bool) (Parsed, error) {
	out := Parsed{Single: single}
	agents := []any{doc}
	if !single {
		agents, _ = doc["agents"].([]any)
	}
	for i, a := range agents {
		m, _ := a.(map[string]any)
		fillIDs(m)
		var ac message.AgentConfig
		data, err := canonical(m, &ac)
		if err != nil {
			return Parsed{}, err
		}
		if n := len(data); n > MaxAgent {
			return Parsed{}, errcode.OverLimit(errcode.TooLarge, MaxAgent, int64(n),
				"%sthe agent %s is %d bytes, at most %d are allowed", out.prefix(i), ac.AgentID, n, MaxAgent)
		}
		agent := Agent{ID: ac.AgentID, Jobs: ac.ToolJobs, JSON: data}
		for t := range ac.Tools {
			agent.Tools = append(agent.Tools, t)
		}
		out.Agents = append(out.Agents, agent)
	}
	if t := doc["tenant"]; t != nil && !single {
		data, err := canonical(t, &message.TenantConfig{})
		if err != nil {
			return Parsed{}, err
		}
		if n := len(data); n > MaxTenant {
			return Parsed{}, errcode.OverLimit(errcode.TooLarge, MaxTenant, int64(n), "tenant: is %d bytes, at most %d are allowed", n, MaxTenant)
		}
		out.Tenant = data
	}
	return out, nil
}

// canonical fills typed with a checked value and returns its JSON in the one
// form that equal configurations share.
func canonical(v, typed any) ([]byte, error) {
	data, err := message.Marshal(v) // sorts the keys of settings
	if err == nil {
		err = json.Unmarshal(data, typed)
	}
	if err == nil {
		data, err = message.Marshal(typed)
	}
	if err != nil {
		// The schema and the message types are one contract; this is our fault.
		return nil, errcode.New(errcode.Internal, "a checked configuration does not fit its type")
	}
	return data, nil
}
