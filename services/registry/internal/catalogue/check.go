package catalogue

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/arguments"
)

// Limits of an announcement.
const (
	maxTools       = 512       // of one worker
	maxDescription = 16 << 10  // bytes
	maxSchema      = 128 << 10 // bytes
	maxVersion     = 64        // bytes
)

// check finds every fault of an announcement; nil when there is none.
func check(a message.CatalogueAnnounce) error {
	var faults []errcode.FieldFault
	add := func(err error) {
		var e *errcode.Error
		if errors.As(err, &e) {
			faults = append(faults, e.Details.Fields...)
		}
	}
	add(subject.CheckName("workerId", a.WorkerID))
	if n := len(a.Tools); n > maxTools {
		add(errcode.Field("tools", "are %d, at most %d are allowed", n, maxTools))
		a.Tools = a.Tools[:maxTools]
	}
	seen := map[string]int{}
	for i, d := range a.Tools {
		at := fmt.Sprintf("tools[%d].", i)
		add(subject.CheckName(at+"name", d.Name))
		if first, twice := seen[d.Name]; twice {
			add(errcode.Field(at+"name", "%q is tools[%d] already", d.Name, first))
		} else {
			seen[d.Name] = i
		}
		switch n := len(d.Description); {
		case n == 0:
			add(errcode.Field(at+"description", "is required"))
		case n > maxDescription:
			add(errcode.Field(at+"description", "is %d bytes long, at most %d are allowed", n, maxDescription))
		}
		add(checkSchema(at+"inputSchema", d.InputSchema))
		if len(d.SettingsSchema) > 0 {
			add(checkSchema(at+"settingsSchema", d.SettingsSchema))
		}
		if d.Version != "" {
			if n := len(d.Version); n > maxVersion {
				add(errcode.Field(at+"version", "is %d bytes long, at most %d are allowed", n, maxVersion))
			} else {
				add(subject.CheckFree(at+"version", d.Version))
			}
		}
		if d.TimeoutMs < 0 {
			add(errcode.Field(at+"timeoutMs", "must not be negative"))
		}
	}
	if faults == nil {
		return nil
	}
	return errcode.Fields(errcode.InvalidRequest, faults...)
}

func checkSchema(field string, raw json.RawMessage) error {
	var s map[string]json.RawMessage
	switch err := json.Unmarshal(raw, &s); {
	case len(raw) == 0:
		return errcode.Field(field, "is required")
	case len(raw) > maxSchema:
		return errcode.Field(field, "is %d bytes long, at most %d are allowed", len(raw), maxSchema)
	case err != nil || s == nil:
		return errcode.Field(field, "must be a JSON Schema object")
	case string(s["type"]) != `"object"`:
		return errcode.Field(field, `needs "type": "object"`)
	}
	return compiles(field, raw)
}

// known remembers schemas that compile: workers repeat their announcements every few
// seconds.
var known sync.Map

const maxKnown = 4096

var knownCount atomic.Int64

func compiles(field string, raw json.RawMessage) error {
	key := sha256.Sum256(raw)
	if _, ok := known.Load(key); ok {
		return nil
	}
	if _, err := arguments.CompileField(field, raw); err != nil {
		return err
	}
	if knownCount.Add(1) > maxKnown {
		known.Clear()
		knownCount.Store(1)
	}
	known.Store(key, true)
	return nil
}
