package schema_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/schema"
)

type definition struct {
	Description string
	Title       string
	Ref         string `json:"$ref"`
	Properties  map[string]definition
}

// The schema and the message types name the same fields, and every field is
// described.
func TestAgentConfigMatchesMessages(t *testing.T) {
	var doc struct {
		ID   string                `json:"$id"`
		Defs map[string]definition `json:"$defs"`
	}
	if err := json.Unmarshal(schema.AgentConfig(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.ID != schema.AgentConfigID {
		t.Errorf("$id is %s", doc.ID)
	}
	for name, typ := range map[string]reflect.Type{
		"file":     reflect.TypeFor[message.Config](),
		"tenant":   reflect.TypeFor[message.TenantConfig](),
		"agent":    reflect.TypeFor[message.AgentConfig](),
		"schedule": reflect.TypeFor[message.ScheduleEntry](),
		"toolJob":  reflect.TypeFor[message.ToolJob](),
	} {
		var want, got []string
		for i := range typ.NumField() {
			field, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			want = append(want, field)
		}
		for field, p := range doc.Defs[name].Properties {
			if field == "$schema" {
				continue
			}
			got = append(got, field)
			if p.Description == "" && doc.Defs[strings.TrimPrefix(p.Ref, "#/$defs/")].describe() == "" {
				t.Errorf("%s.%s is not described", name, field)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the schema has %v, the message %v", name, got, want)
		}
	}
}

func (d definition) describe() string { return d.Title + d.Description }

func TestAgentConfigIsACopy(t *testing.T) {
	schema.AgentConfig()[0] = 'x'
	if schema.AgentConfig()[0] != '{' {
		t.Error("callers share the schema's memory")
	}
}
