// Package catalog is the table of the built-in tools. Adding a tool is adding a
// line; nothing registers itself.
package catalog

import (
	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
)

// All lists every built-in tool.
func All() []tool.Tool {
	return []tool.Tool{
		filetools.ReadFile,
		filetools.WriteFile,
	}
}

// Select lists the tools with these names, all of them when none is given. An
// unknown name is not_found.
func Select(names []string) ([]tool.Tool, error) {
	if len(names) == 0 {
		return All(), nil
	}
	byName := map[string]tool.Tool{}
	for _, t := range All() {
		byName[t.Definition().Name] = t
	}
	var out []tool.Tool
	for _, n := range names {
		t := byName[n]
		if t == nil {
			return nil, errcode.New(errcode.NotFound, "no built-in tool is named %q", n)
		}
		out = append(out, t)
	}
	return out, nil
}
