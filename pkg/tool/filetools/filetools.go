// Package filetools has the built-in internal tools writeFile and readFile, by
// which other tools keep files in the tenant's area. The toolworker service hosts
// them; a test hosts the same ones beside the tools that call them:
//
//	env := tooltest.New(t, append(filetools.Tools(), registerMember)...)
package filetools

import (
	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Tools are both.
func Tools() []tool.Tool { return []tool.Tool{ReadFile, WriteFile} }

func wrong(field, text string) error {
	return errcode.Fields(errcode.InvalidArguments, errcode.FieldFault{Field: field, Message: text})
}

// asArguments says of a bad path that it is the caller's argument.
func asArguments(err error) error {
	e := errcode.From(err)
	if e.Code == errcode.InvalidRequest && e.Details != nil && len(e.Details.Fields) > 0 {
		return errcode.Fields(errcode.InvalidArguments, e.Details.Fields...)
	}
	return err
}
