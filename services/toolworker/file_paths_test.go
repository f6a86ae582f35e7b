package toolworker_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/paths/pathstest"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

// A hostile path is the argument's fault; an odd one has a file of its own.
func TestFileToolsAndPaths(t *testing.T) {
	env := tooltest.New(t, filetools.Tools()...)
	for _, c := range pathstest.Refused() {
		for name, args := range map[string]map[string]any{
			"writeFile": {"path": c.Path, "content": "evil"}, "readFile": {"path": c.Path},
		} {
			_, err := env.Call(t.Context(), name, args)
			if e := errcode.From(err); !errors.Is(err, errcode.InvalidArguments) || e.Details == nil || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != "path" {
				t.Errorf("%s: %s %q: %v", c.Intent, name, c.Path, err)
			}
		}
	}
	taken := pathstest.Taken()
	for _, c := range taken {
		if r, err := env.Call(t.Context(), "writeFile", map[string]any{"path": c.Path, "content": c.Path, "mode": "create"}); err != nil || !r.Success {
			t.Errorf("%s: writeFile %q: %+v, %v", c.Intent, c.Path, r, err)
		}
	}
	for _, c := range taken {
		r, err := env.Call(t.Context(), "readFile", map[string]any{"path": c.Path})
		var got struct{ Path, Content string }
		if err == nil {
			err = json.Unmarshal(r.Data, &got)
		}
		if err != nil || got.Content != c.Path || got.Path != c.Path {
			t.Errorf("%s: readFile %q: %+v, %v", c.Intent, c.Path, got, err)
		}
	}
	if files, err := env.Files().List(t.Context(), ""); err != nil || len(files) != len(taken) {
		t.Errorf("%d files, %v", len(files), err)
	}
}
