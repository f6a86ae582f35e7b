package message_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// Every message of the registry as it looks on the wire: each golden file
// decodes without an unknown field and encodes to the same JSON.
func TestRegistryGolden(t *testing.T) {
	const dir = "../testdata/registry"
	types := map[string]any{
		"apply.json":             &message.RegistryApply{},
		"apply-reply.json":       &message.RegistryApplied{},
		"apply-error.json":       &errcode.Body{},
		"get.json":               &message.RegistryGet{},
		"get-reply.json":         &message.AgentEntry{},
		"list.json":              &message.RegistryList{},
		"list-reply.json":        &message.RegistryListing{},
		"delete.json":            &message.RegistryDelete{},
		"delete-reply.json":      &message.RegistryDeleted{},
		"tenants-reply.json":     &message.RegistryTenants{},
		"agent-tools-reply.json": &message.AgentToolsReply{},
		"announce.json":          &message.CatalogueAnnounce{},
		"announce-reply.json":    &message.CatalogueAnnounced{},
		"catalogue-reply.json":   &message.CatalogueTools{},
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != len(types) {
		t.Fatalf("%d files for %d messages: %v", len(files), len(types), err)
	}
	for name, v := range types {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			if err := dec.Decode(v); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			var want bytes.Buffer
			if err := json.Compact(&want, raw); err != nil {
				t.Fatal(err)
			}
			if got := string(got); got != want.String() {
				t.Errorf("got  %s\nwant %s", got, want.String())
			}
		})
	}
}
