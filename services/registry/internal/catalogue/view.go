package catalogue

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/registry/internal/kv"
)

// offer is one worker's offer of one tool, as stored.
type offer struct {
	Definition message.ToolDefinition `json:"definition"`
	Since      time.Time              `json:"since"` // when this worker first announced this definition

	worker string
}

// View is the catalogue at one moment. Do not change what it holds.
type View struct {
	Tools  []message.CatalogueEntry // by name
	byName map[string]*tool
}

type tool struct {
	entry  message.CatalogueEntry
	offers []offer // newest first
}

// Find returns a hosted tool's definition.
func (v *View) Find(name string) (message.ToolDefinition, bool) {
	t, ok := v.byName[name]
	if !ok {
		return message.ToolDefinition{}, false
	}
	return t.entry.ToolDefinition, true
}

// newView builds the catalogue from what stands in the bucket.
func newView(entries map[string]kv.Entry) *View {
	v := &View{Tools: []message.CatalogueEntry{}, byName: map[string]*tool{}}
	for key, e := range entries {
		o, ok := read(key, e)
		if !ok {
			continue
		}
		t := v.byName[o.Definition.Name]
		if t == nil {
			t = &tool{}
			v.byName[o.Definition.Name] = t
		}
		t.offers = append(t.offers, o)
	}
	for _, t := range v.byName {
		// The newest announced wins; the worker decides between two at once, so
		// that every replica says the same.
		slices.SortFunc(t.offers, func(a, b offer) int {
			return cmp.Or(b.Since.Compare(a.Since), strings.Compare(b.worker, a.worker))
		})
		t.entry.ToolDefinition = t.offers[0].Definition
		for _, o := range t.offers {
			t.entry.Workers = append(t.entry.Workers, o.worker)
			if o.Definition.Version != "" {
				t.entry.Versions = append(t.entry.Versions, o.Definition.Version)
			}
		}
		slices.Sort(t.entry.Workers)
		slices.Sort(t.entry.Versions)
		t.entry.Versions = slices.Compact(t.entry.Versions)
		v.Tools = append(v.Tools, t.entry)
	}
	slices.SortFunc(v.Tools, func(a, b message.CatalogueEntry) int { return strings.Compare(a.Name, b.Name) })
	return v
}

// others tells whether another worker offers the tool with another definition.
func (v *View) others(worker string, d message.ToolDefinition) (offer, bool) {
	if t := v.byName[d.Name]; t != nil {
		for _, o := range t.offers {
			if o.worker != worker && !same(o.Definition, d) {
				return o, true
			}
		}
	}
	return offer{}, false
}

// read takes an entry apart; false for markers and what is not ours.
func read(key string, e kv.Entry) (offer, bool) {
	name, worker, ok := strings.Cut(key, ".")
	if !ok || e.Deleted {
		return offer{}, false
	}
	o := offer{worker: worker}
	if err := json.Unmarshal(e.Data, &o); err != nil || o.Definition.Name != name {
		return offer{}, false
	}
	return o, true
}

// same compares definitions; how the schema's JSON is laid out does not matter.
func same(a, b message.ToolDefinition) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
