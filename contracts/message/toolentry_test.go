package message

import (
	"errors"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestParseToolEntry(t *testing.T) {
	for raw, want := range map[string]ToolEntry{
		``:                            {Settings: []byte(`{}`)},
		`null`:                        {Settings: []byte(`{}`)},
		`{"$secret":"s"}`:             {Settings: []byte(`{"$secret":"s"}`)},
		`{"b":1, "a":2}`:              {Settings: []byte(`{"b":1, "a":2}`)},
		`{"timeout":"1m30s","a":[1]}`: {Timeout: "1m30s", Limit: 90 * time.Second, Settings: []byte(`{"a":[1]}`)},
		`{"maxConcurrent":3}`:         {MaxConcurrent: 3, Settings: []byte(`{}`)},
		`{"pinned":{"n":42}}`:         {Settings: []byte(`{}`)},
		`{"pinned":null,"timeout":null,"maxConcurrent":null}`: {Settings: []byte(`{}`)},
	} {
		got, err := ParseToolEntry([]byte(raw))
		if err != nil || string(got.Settings) != string(want.Settings) || got.Limit != want.Limit || got.Timeout != want.Timeout ||
			got.MaxConcurrent != want.MaxConcurrent {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	}
	got, err := ParseToolEntry([]byte(`{"pinned":{"n":42}}`))
	if err != nil || string(got.Pinned["n"]) != "42" || len(got.Pinned) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for raw, field := range map[string]string{
		`{"pinned":[]}`:          "pinned",
		`{"pinned":"x"}`:         "pinned",
		`{"timeout":5}`:          "timeout",
		`{"timeout":"soon"}`:     "timeout",
		`{"timeout":"0s"}`:       "timeout",
		`{"timeout":"-1s"}`:      "timeout",
		`{"maxConcurrent":0}`:    "maxConcurrent",
		`{"maxConcurrent":-1}`:   "maxConcurrent",
		`{"maxConcurrent":1.5}`:  "maxConcurrent",
		`{"maxConcurrent":"10"}`: "maxConcurrent",
	} {
		_, err := ParseToolEntry([]byte(raw))
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != field {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
