package api

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/arguments"
	"github.com/toolbus/toolbus/services/registry/internal/catalogue"
	"github.com/toolbus/toolbus/services/registry/internal/config"
)

// checkTools checks what a configuration says of tools against what workers say of
// them now: settings and pinned arguments. Of a tool that no worker hosts nothing is
// known; its worker checks again.
func checkTools(v *catalogue.View, cfg config.Parsed) error {
	var faults []errcode.FieldFault
	for i, agent := range cfg.Agents {
		var c message.AgentConfig
		if err := json.Unmarshal(agent.JSON, &c); err != nil {
			return errcode.Wrap(errcode.Internal, err, "a checked configuration cannot be read: %v", err)
		}
		for _, name := range slices.Sorted(maps.Keys(c.Tools)) {
			def, hosted := v.Find(name)
			entry, err := message.ParseToolEntry(c.Tools[name])
			if !hosted || err != nil {
				continue
			}
			for _, f := range checkEntry(def, entry) {
				at := cfg.ToolPath(i, name)
				if f.Field != "" {
					at += "." + f.Field
				}
				faults = append(faults, errcode.FieldFault{Field: at, Message: f.Message})
			}
		}
	}
	if len(faults) > maxWarnings {
		faults = faults[:maxWarnings]
	}
	if faults == nil {
		return nil
	}
	return errcode.Fields(errcode.InvalidRequest, faults...)
}

func checkEntry(def message.ToolDefinition, entry message.ToolEntry) (faults []errcode.FieldFault) {
	if len(def.SettingsSchema) > 0 {
		// A schema that does not compile is its worker's fault, and announced as one.
		if s, err := arguments.CompileField("settingsSchema", def.SettingsSchema); err == nil {
			faults = s.CheckUnresolved(entry.Settings)
			for i, f := range faults {
				if f.Field == "arguments" { // the object itself
					faults[i].Field = ""
				}
			}
		}
	}
	if len(entry.Pinned) == 0 {
		return faults
	}
	if s, err := arguments.Compile(def.InputSchema); err == nil {
		for _, f := range s.CheckSome(entry.Pinned) {
			faults = append(faults, errcode.FieldFault{Field: "pinned." + f.Field, Message: f.Message})
		}
	}
	return faults
}

// visible is a tool's definition as its agent sees it: without what its configuration
// pins, and without what only operators need.
func visible(def message.ToolDefinition, raw json.RawMessage) message.ToolDefinition {
	def.SettingsSchema = nil
	entry, err := message.ParseToolEntry(raw)
	if err != nil {
		return def
	}
	if schema, err := arguments.Without(def.InputSchema, entry.Pinned); err == nil {
		def.InputSchema = schema
	}
	return def
}
