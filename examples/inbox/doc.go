// Package inbox lets an agent follow a text file of its tenant, to which
// somebody appends lines: readInbox shows the newest ones, and its background
// job inbox_new_lines wakes the agent when there are new ones. Looking costs no
// model run.
//
// Settings: path, the file; inbox.txt unless told otherwise.
package inbox

import "github.com/toolbus/toolbus/pkg/tool"

// Tools are the tools of this package.
func Tools() []tool.Tool { return []tool.Tool{ReadInbox} }

const defaultPath = "inbox.txt"

type settings struct {
	Path string `json:"path"`
}

// path is the file that the settings name.
func path(bind func(any) error) (string, error) {
	s := settings{Path: defaultPath}
	if err := bind(&s); err != nil {
		return "", err
	}
	return s.Path, nil
}
