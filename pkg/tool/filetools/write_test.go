package filetools_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

type m = map[string]any

func TestWriteFileConforms(t *testing.T) {
	tooltest.Conformance(t, filetools.WriteFile, tooltest.GivenArguments(m{"path": "a/b.txt", "content": "x", "mode": "append"}))
}

func TestWriteFile(t *testing.T) {
	env := tooltest.New(t, filetools.WriteFile)
	for _, c := range []struct {
		args m
		data string
		file string
	}{
		{m{"path": "a.txt", "content": "Grüße"}, `{"success":true,"path":"a.txt","mode":"overwrite","bytes_written":7,"size":7}`, "Grüße"},
		{m{"path": "a.txt", "content": "!", "mode": "append"}, `{"success":true,"path":"a.txt","mode":"append","bytes_written":1,"size":8}`, "Grüße!"},
		{m{"path": "a.txt", "content": "AP8=", "encoding": "base64"}, `{"success":true,"path":"a.txt","mode":"overwrite","bytes_written":2,"size":2}`, "\x00\xff"},
		{m{"path": "b.txt", "content": "", "mode": "create"}, `{"success":true,"path":"b.txt","mode":"create","bytes_written":0,"size":0}`, ""},
	} {
		r, err := env.Call(t.Context(), "writeFile", c.args)
		if err != nil || string(r.Data) != c.data || r.Content != c.data || !r.Success {
			t.Errorf("%v: %+v, %v", c.args, r, err)
		}
		got, _, ok, err := env.Files().Read(t.Context(), c.args["path"].(string))
		if err != nil || !ok || string(got) != c.file {
			t.Errorf("%v left %q, %v", c.args, got, err)
		}
	}
}

func TestWriteFileRefuses(t *testing.T) {
	env := tooltest.New(t, filetools.WriteFile)
	if _, err := env.Files().Write(t.Context(), "there", []byte("old")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args m
		code errcode.Code
		says string
	}{
		{m{"path": "../x", "content": "x"}, errcode.InvalidArguments, "path"},
		{m{"path": "x", "content": "*", "encoding": "base64"}, errcode.InvalidArguments, "content"},
		{m{"path": "x", "content": "x", "mode": "truncate"}, errcode.InvalidArguments, "mode"},
		{m{"path": "x"}, errcode.InvalidArguments, "content"},
		{m{"path": "there", "content": "x", "mode": "create"}, errcode.Conflict, ""},
	} {
		_, err := env.Call(t.Context(), "writeFile", c.args)
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: got %v, want %s naming %s", c.args, err, c.code, c.says)
		}
	}
	if got, _, _, _ := env.Files().Read(t.Context(), "there"); string(got) != "old" {
		t.Errorf("a refused write left %q", got)
	}
}

func TestInternal(t *testing.T) {
	for i, name := range []string{"readFile", "writeFile"} {
		if d := filetools.Tools()[i].Definition(); d.Name != name || !d.Internal {
			t.Errorf("%+v", d)
		}
	}
}
