package filetools_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

func TestReadFileConforms(t *testing.T) {
	tooltest.Conformance(t, filetools.ReadFile, tooltest.GivenArguments(m{"path": "a/b.txt"}))
}

func TestReadFile(t *testing.T) {
	env := tooltest.New(t, filetools.ReadFile)
	at := time.Date(2026, 5, 12, 8, 0, 0, 0, time.FixedZone("CEST", 7200))
	env.SetNow(at)
	r, err := env.Call(t.Context(), "readFile", m{"path": "a.json"})
	const missing = `{"success":true,"exists":false,"path":"a.json","content":null}`
	if err != nil || !r.Success || string(r.Data) != missing || r.Content != missing {
		t.Errorf("a missing file: %+v, %v", r, err)
	}
	if _, err := env.Files().Write(t.Context(), "a.json", []byte(`["DHL->DPD"]`)); err != nil {
		t.Fatal(err)
	}
	for encoding, content := range map[string]string{"utf8": `["DHL->DPD"]`, "base64": "WyJESEwtPkRQRCJd"} {
		r, err := env.Call(t.Context(), "readFile", m{"path": "a.json", "encoding": encoding})
		if err != nil || !r.Success {
			t.Fatal(err)
		}
		quoted, _ := json.Marshal(content)
		want := `{"success":true,"exists":true,"path":"a.json","content":` + strings.ReplaceAll(string(quoted), `\u003e`, ">") +
			`,"size":12,"modified":"2026-05-12T06:00:00Z"}`
		if string(r.Data) != want {
			t.Errorf("got  %s\nwant %s", r.Data, want)
		}
	}
}

func TestReadFileRefuses(t *testing.T) {
	env := tooltest.New(t, filetools.ReadFile)
	if _, err := env.Files().Write(t.Context(), "bin", []byte{0xff}); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string]m{
		"path": {"path": "/etc/passwd"}, "base64": {"path": "bin"}, "encoding": {"path": "bin", "encoding": "hex"},
	} {
		_, err := env.Call(t.Context(), "readFile", args)
		if !errors.Is(err, errcode.InvalidArguments) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: got %v", args, err)
		}
	}
	if r, err := env.Call(t.Context(), "readFile", m{"path": "bin", "encoding": "base64"}); err != nil || !r.Success {
		t.Errorf("%+v, %v", r, err)
	}
}
