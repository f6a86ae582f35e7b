package configfile

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Config is a configuration ready for the registry.
type Config struct {
	JSON json.RawMessage

	origins []origin // of agents[i], when several files were merged
	tenant  string   // the file that "tenant" comes from
}

// HasTenant tells whether the configuration says anything about the tenant
// itself.
func (c Config) HasTenant() bool {
	var doc struct {
		Tenant json.RawMessage `json:"tenant"`
	}
	return json.Unmarshal(c.JSON, &doc) == nil && doc.Tenant != nil
}

type origin struct {
	file  string
	index int // in the file's agents; -1: the file is that agent
}

// document is a file's shape, as far as merging needs it.
type document struct {
	tenant json.RawMessage
	agents []json.RawMessage
	single bool
}

func merge(sources []Source, docs []json.RawMessage) (Config, error) {
	var cfg Config
	var tenant json.RawMessage
	agents := []json.RawMessage{}
	var faults []errcode.FieldFault
	for i, s := range sources {
		d, err := split(docs[i])
		if err != nil {
			faults = append(faults, errcode.FieldFault{Field: s.Name, Message: err.Error()})
			continue
		}
		if d.tenant != nil && tenant != nil {
			faults = append(faults, errcode.FieldFault{Field: s.Name, Message: "has a tenant section, and so has " + cfg.tenant})
		} else if d.tenant != nil {
			tenant, cfg.tenant = d.tenant, s.Name
		}
		for j, a := range d.agents {
			if d.single {
				j = -1
			}
			agents = append(agents, a)
			cfg.origins = append(cfg.origins, origin{s.Name, j})
		}
	}
	if len(faults) > 0 {
		return Config{}, errcode.Fields(errcode.InvalidRequest, faults...)
	}
	var err error
	cfg.JSON, err = json.Marshal(struct {
		Tenant json.RawMessage   `json:"tenant,omitempty"`
		Agents []json.RawMessage `json:"agents"`
	}{tenant, agents})
	return cfg, err
}

func split(doc json.RawMessage) (document, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(doc, &fields); err != nil {
		return document{}, err
	}
	list, ok := fields["agents"]
	if !ok {
		return document{agents: []json.RawMessage{doc}, single: true}, nil
	}
	d := document{tenant: fields["tenant"]}
	if err := json.Unmarshal(list, &d.agents); err != nil || d.agents == nil {
		return document{}, fmt.Errorf("agents must be a list")
	}
	for name := range fields {
		if name != "agents" && name != "tenant" {
			return document{}, fmt.Errorf("%s: unknown field beside agents", name)
		}
	}
	return d, nil
}

// Locate rewrites the registry's field paths to the files that were merged, so
// that agents[3].tools becomes "b.yaml: agents[1].tools". With one file the
// paths are right as they are.
func (c Config) Locate(faults []errcode.FieldFault) []errcode.FieldFault {
	if c.origins == nil {
		return faults
	}
	out := make([]errcode.FieldFault, len(faults))
	for i, f := range faults {
		out[i] = errcode.FieldFault{Field: c.locate(f.Field), Message: f.Message}
	}
	return out
}

func (c Config) locate(field string) string {
	if rest, ok := strings.CutPrefix(field, "tenant"); ok && (rest == "" || rest[0] == '.') && c.tenant != "" {
		return c.tenant + ": " + field
	}
	rest, ok := strings.CutPrefix(field, "agents[")
	if !ok {
		return field
	}
	num, rest, ok := strings.Cut(rest, "]")
	n, err := strconv.Atoi(num)
	if !ok || err != nil || n < 0 || n >= len(c.origins) {
		return field
	}
	o := c.origins[n]
	if o.index < 0 {
		if rest = strings.TrimPrefix(rest, "."); rest == "" {
			return o.file
		}
		return o.file + ": " + rest
	}
	return fmt.Sprintf("%s: agents[%d]%s", o.file, o.index, rest)
}
