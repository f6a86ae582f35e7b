// Package writefile is the tool writeFile: other tools keep files in the
// tenant's area with it.
package writefile

import (
	"context"
	"encoding/base64"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/tool"
)

type args struct {
	Path     string `json:"path" jsonschema:"relative path in the tenant's files, with / between folders; folders are made as needed"`
	Content  string `json:"content" jsonschema:"what to write"`
	Mode     string `json:"mode" enum:"overwrite,append,create" default:"overwrite" jsonschema:"overwrite replaces the file, append adds to its end, create refuses to touch an existing one"`
	Encoding string `json:"encoding" enum:"utf8,base64" default:"utf8" jsonschema:"how content is given; base64 for binary files"`
}

type result struct {
	Success      bool   `json:"success"`
	Path         string `json:"path"`
	Mode         string `json:"mode"`
	BytesWritten int    `json:"bytes_written"`
	Size         int64  `json:"size"` // bytes of the whole file
}

// New makes the tool. Its callers are tools, so what goes wrong is an error
// with a code that they can act on: invalid_arguments names a bad path or
// content, create on an existing file is conflict, and too_large and
// quota_exceeded say the limit; the old content then stands. Otherwise the
// data is {"success":true,"path","mode","bytes_written","size"}.
func New() tool.Tool {
	return tool.New("writeFile",
		"Writes content to a file of the tenant's file area, or appends it. Files are shared by all agents of the tenant and stay until deleted.",
		execute, tool.Internal(), tool.Timeout(60*time.Second), tool.Version("0.1.0"))
}

func execute(ctx context.Context, call *tool.Call, in args) (tool.Result, error) {
	content := []byte(in.Content)
	switch in.Encoding {
	case "", message.EncodingUTF8:
	case message.EncodingBase64:
		var err error
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return tool.Result{}, wrong("content", "is not valid base64: "+err.Error())
		}
	default:
		return tool.Result{}, wrong("encoding", "must be utf8 or base64")
	}
	write := call.Files().Write
	switch in.Mode {
	case "":
		in.Mode = message.ModeOverwrite
	case message.ModeOverwrite:
	case message.ModeAppend:
		write = call.Files().Append
	case message.ModeCreate:
		write = call.Files().Create
	default:
		return tool.Result{}, wrong("mode", "must be overwrite, append or create")
	}
	info, err := write(ctx, in.Path, content)
	if err != nil {
		return tool.Result{}, asArguments(err)
	}
	return tool.Data(result{Success: true, Path: in.Path, Mode: in.Mode, BytesWritten: len(content), Size: info.Size}), nil
}

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
