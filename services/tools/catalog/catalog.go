// Package catalog is the table of the built-in tools. Adding a tool is adding a
// line; nothing registers itself.
package catalog

import (
	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/services/tools/readfile"
	"github.com/toolbus/toolbus/services/tools/writefile"
)

// All makes one of each built-in tool.
func All() []tool.Tool {
	return []tool.Tool{
		readfile.New(),
		writefile.New(),
	}
}

// Select makes the tools with these names, all of them when none is given. An
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
