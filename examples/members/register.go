package members

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/toolbus/toolbus/pkg/tool"
)

// listPath is the list of members: a JSON array of objects, for people to read
// and programs to use.
const listPath = "mitglieder.json"

type registerArgs struct {
	Name           string `json:"name" jsonschema:"full name"`
	Email          string `json:"email" jsonschema:"e-mail address; one entry each"`
	Eintrittsdatum string `json:"eintrittsdatum,omitempty" jsonschema:"day of joining, YYYY-MM-DD; today if left out"`
	Disziplin      string `json:"disziplin" jsonschema:"the sport the member does"`
}

type member struct {
	Name           string `json:"name"`
	Email          string `json:"email"`
	Eintrittsdatum string `json:"eintrittsdatum"`
	Disziplin      string `json:"disziplin"`
	Created        string `json:"created"` // RFC 3339, UTC
}

type registered struct {
	Stored member `json:"stored"`
	Total  int    `json:"total"` // members on the list
}

// RegisterMember adds a member to the list, unless the e-mail address is there.
//
// It reads the list, changes it and writes it back: of two calls at the same
// moment the last one wins (see the package comment). A list that cannot be
// read is never overwritten.
var RegisterMember = tool.New("registerMember", "Adds a member to the club's list of members.",
	func(ctx context.Context, call *tool.Call, in registerArgs) (tool.Result, error) {
		now := call.Now().UTC()
		m := member{
			Name: strings.TrimSpace(in.Name), Email: strings.TrimSpace(in.Email), Disziplin: strings.TrimSpace(in.Disziplin),
			Eintrittsdatum: strings.TrimSpace(in.Eintrittsdatum), Created: now.Format(time.RFC3339),
		}
		if m.Eintrittsdatum == "" {
			m.Eintrittsdatum = now.Format(time.DateOnly)
		}
		if m.Name == "" || m.Email == "" || m.Disziplin == "" {
			return tool.Fail("name, email and disziplin must not be blank"), nil
		}
		f, err := read(ctx, call, listPath)
		if err != nil {
			return failed(err)
		}
		list, err := parseList(f)
		if err != nil {
			return tool.Fail("%s cannot be read as a list of members, so nothing was changed; somebody has to repair it: %v", listPath, err), nil
		}
		if name, ok := list.find(m.Email); ok {
			return tool.Fail("Bereits eingetragen: %s", name), nil
		}
		content, err := list.with(m)
		if err != nil {
			return tool.Result{}, err
		}
		if _, err := write(ctx, call, writeArgs{Path: listPath, Content: content}); err != nil {
			return failed(err)
		}
		return tool.Data(registered{m, len(list) + 1}), nil
	})

// entries keeps each entry as it stands in the file: one may have fields that
// this tool does not know, and they must survive.
type entries []json.RawMessage

func parseList(f file) (entries, error) {
	if !f.Exists || strings.TrimSpace(*f.Content) == "" {
		return nil, nil // the first member
	}
	var list entries
	if err := json.Unmarshal([]byte(*f.Content), &list); err != nil {
		return nil, err
	}
	for i, e := range list {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(e, &m); err != nil || m == nil {
			return nil, fmt.Errorf("entry %d is not an object", i+1)
		}
	}
	return list, nil
}

// find returns the name of whoever has the e-mail address, in whatever case.
func (l entries) find(email string) (name string, found bool) {
	for _, e := range l {
		var m struct{ Name, Email any }
		if err := json.Unmarshal(e, &m); err != nil {
			continue
		}
		if s, ok := m.Email.(string); ok && strings.EqualFold(strings.TrimSpace(s), email) {
			name, _ = m.Name.(string)
			return name, true
		}
	}
	return "", false
}

// with is the file's new content: indented, text as it is spoken.
func (l entries) with(m member) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	all := make([]any, 0, len(l)+1)
	for _, e := range l {
		all = append(all, e)
	}
	err := enc.Encode(append(all, m))
	return b.String(), err
}
