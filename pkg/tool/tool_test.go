package tool

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
)

type item struct {
	Name string `json:"name" jsonschema:"what it is"`
}

type everything struct {
	Code  string   `json:"code" jsonschema:"the code, as scanned"`
	Mode  string   `json:"mode" enum:"fast, slow" default:"fast"`
	N     int      `json:"n" enum:"1,2,3" default:"2"`
	Tags  []string `json:"tags,omitempty" enum:"a,b"`
	Items []item   `json:"items,omitempty"`
	Opt   *bool    `json:"opt,omitempty"`
}

func TestSchemaFromStruct(t *testing.T) {
	tl := New("x", "does x", func(context.Context, *Call, everything) (Result, error) { return OK("ok"), nil })
	var got struct {
		Type                 string
		Required             []string
		AdditionalProperties any
		Properties           map[string]struct {
			Type        any
			Description string
			Enum        []any
			Default     any
			Items       struct {
				Enum                 []any
				AdditionalProperties any
			}
		}
	}
	if err := json.Unmarshal(tl.Definition().InputSchema, &got); err != nil {
		t.Fatal(err)
	}
	if got.Type != "object" || strings.Join(got.Required, ",") != "code" || got.AdditionalProperties == nil {
		t.Errorf("type %q, required %v, additional %v", got.Type, got.Required, got.AdditionalProperties)
	}
	p := got.Properties
	if p["code"].Description != "the code, as scanned" {
		t.Errorf("description lost: %+v", p["code"])
	}
	if len(p["mode"].Enum) != 2 || p["mode"].Default != "fast" {
		t.Errorf("mode: %+v", p["mode"])
	}
	if len(p["n"].Enum) != 3 || p["n"].Default != 2.0 {
		t.Errorf("n: %+v", p["n"])
	}
	if p["tags"].Type != "array" || len(p["tags"].Items.Enum) != 2 {
		t.Errorf("tags: %+v", p["tags"])
	}
	if p["items"].Items.AdditionalProperties == nil {
		t.Errorf("nested structs must refuse unknown fields too: %+v", p["items"])
	}
}

func TestNewPanicsOnWhatCannotWork(t *testing.T) {
	ok := func(context.Context, *Call, struct{}) (Result, error) { return OK(""), nil }
	for name, f := range map[string]func(){
		"bad name":       func() { New("a.b", "x", ok) },
		"no description": func() { New("a", "", ok) },
		"not a struct":   func() { New("a", "x", func(context.Context, *Call, string) (Result, error) { return OK(""), nil }) },
		"bad default": func() {
			New("a", "x", func(context.Context, *Call, struct {
				N int `json:"n" default:"many"`
			}) (Result, error) {
				return OK(""), nil
			})
		},
		"bad schema": func() { New("a", "x", ok, Schema(json.RawMessage(`{"type":"string"}`))) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

func TestResults(t *testing.T) {
	if r := OK("100%"); r.Content != "100%" || !r.Success {
		t.Errorf("%+v", r)
	}
	if r := OK("%d of %d", 1, 2); r.Content != "1 of 2" {
		t.Errorf("%+v", r)
	}
	if r := Fail("no: %s", "x"); r.Success || r.ErrorMessage != "no: x" {
		t.Errorf("%+v", r)
	}
	if r := Data(map[string]string{"direction": "DHL->DPD"}); r.Content != `{"direction":"DHL->DPD"}` || string(r.Data) != r.Content {
		t.Errorf("%+v", r)
	}
	if r := Data(json.RawMessage(`{ "direction": "DHL->DPD" }`)); r.Content != `{"direction":"DHL->DPD"}` || string(r.Data) != r.Content {
		t.Errorf("JSON of the tool's own is not made compact: %+v", r)
	}
	if r := Data(func() {}); r.Success || r.ErrorMessage == "" {
		t.Errorf("%+v", r)
	}
}

func TestBindNamesTheField(t *testing.T) {
	c := Call{Arguments: json.RawMessage(`{"code":5}`), Settings: json.RawMessage(`{"code":[]}`)}
	var in everything
	var e *errcode.Error
	if err := c.Bind(&in); !errors.As(err, &e) || e.Code != errcode.InvalidArguments || e.Details.Fields[0].Field != "code" {
		t.Errorf("got %v", err)
	}
	if err := c.BindSettings(&in); !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details.Fields[0].Field != "settings.code" {
		t.Errorf("got %v", err)
	}
}
