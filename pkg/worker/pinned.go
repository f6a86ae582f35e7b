package worker

import (
	"encoding/json"
	"maps"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// arguments checks what a caller gave, with what the agent's configuration pins put
// in. Pinned arguments are unknown to callers, so one that gives them is told so.
func (h *hosted) arguments(given json.RawMessage, entry message.ToolEntry) (json.RawMessage, error) {
	if len(entry.Pinned) == 0 {
		return h.schema.Check(given)
	}
	var args map[string]json.RawMessage
	if len(given) > 0 {
		if err := json.Unmarshal(given, &args); err != nil {
			return h.schema.Check(given) // says what is wrong
		}
	}
	var faults []errcode.FieldFault
	for name := range entry.Pinned {
		if _, ok := args[name]; ok {
			faults = append(faults, errcode.FieldFault{Field: name, Message: "unknown field"})
		}
	}
	if faults != nil {
		return nil, errcode.Fields(errcode.InvalidArguments, faults...)
	}
	if args == nil {
		args = map[string]json.RawMessage{}
	}
	maps.Copy(args, entry.Pinned)
	whole, err := message.Marshal(args)
	if err != nil {
		return nil, err
	}
	return h.schema.Check(whole)
}
