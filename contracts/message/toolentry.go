package message

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// ToolEntry is what an agent's configuration says of one tool: the settings the
// tool sees, and beside them the fields below, which the runtime keeps to itself.
// A tool has no settings of these names.
type ToolEntry struct {
	// Pinned are arguments that the model neither sees nor gives.
	Pinned map[string]json.RawMessage `json:"pinned,omitempty"`
	// Timeout is how long a call may run, a Go duration; "": as the tool says.
	Timeout string `json:"timeout,omitempty"`
	// MaxConcurrent is how many calls of the agent run at a time on one worker;
	// 0: no limit of its own.
	MaxConcurrent int `json:"maxConcurrent,omitempty"`

	Settings json.RawMessage `json:"-"` // an object, or a {"$secret":"…"} for all of it
	Limit    time.Duration   `json:"-"` // Timeout as read
}

// ReservedSettings are the fields of a ToolEntry that are no settings.
var ReservedSettings = []string{"pinned", "timeout", "maxConcurrent"}

// ParseToolEntry reads the entry of a tool. Errors: invalid_request naming the
// field, as in timeout.
func ParseToolEntry(raw json.RawMessage) (ToolEntry, error) {
	e := ToolEntry{Settings: raw}
	if len(raw) == 0 || string(raw) == "null" {
		e.Settings = json.RawMessage("{}")
		return e, nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return e, nil // not an object: whoever checks settings says so
	}
	var faults []errcode.FieldFault
	take := func(name, want string, read func(json.RawMessage) error) {
		v, ok := fields[name]
		if !ok {
			return
		}
		delete(fields, name)
		e.Settings = nil // to be written anew
		if string(v) == "null" {
			return
		}
		if read(v) != nil {
			faults = append(faults, errcode.FieldFault{Field: name, Message: "must be " + want})
		}
	}
	take("pinned", "an object of the tool's arguments", func(v json.RawMessage) error { return json.Unmarshal(v, &e.Pinned) })
	take("timeout", "a duration over zero such as 30s", func(v json.RawMessage) error {
		err := json.Unmarshal(v, &e.Timeout)
		if err == nil {
			e.Limit, err = time.ParseDuration(e.Timeout)
		}
		if err == nil && e.Limit <= 0 {
			err = errors.New("no time at all")
		}
		return err
	})
	take("maxConcurrent", "a whole number over zero", func(v json.RawMessage) error {
		err := json.Unmarshal(v, &e.MaxConcurrent)
		if err == nil && e.MaxConcurrent <= 0 {
			err = errors.New("too small")
		}
		return err
	})
	if len(faults) > 0 {
		return ToolEntry{}, errcode.Fields(errcode.InvalidRequest, faults...)
	}
	if e.Settings == nil {
		own, err := Marshal(fields)
		if err != nil {
			return ToolEntry{}, err
		}
		e.Settings = own
	}
	return e, nil
}
