package filetools

import (
	"context"
	"encoding/base64"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/tool"
)

type writeArgs struct {
	Path     string `json:"path" jsonschema:"relative path in the tenant's files, with / between folders; folders are made as needed"`
	Content  string `json:"content" jsonschema:"what to write"`
	Mode     string `json:"mode" enum:"overwrite,append,create" default:"overwrite" jsonschema:"overwrite replaces the file, append adds to its end, create refuses to touch an existing one"`
	Encoding string `json:"encoding" enum:"utf8,base64" default:"utf8" jsonschema:"how content is given; base64 for binary files"`
}

type written struct {
	Success      bool   `json:"success"`
	Path         string `json:"path"`
	Mode         string `json:"mode"`
	BytesWritten int    `json:"bytes_written"`
	Size         int64  `json:"size"` // bytes of the whole file
}

// WriteFile writes content to a file or appends it. Its callers are tools, so
// what goes wrong is an error with a code that they can act on:
// invalid_arguments names a bad path or content, create on an existing file is
// conflict, and too_large and quota_exceeded say the limit; the old content then
// stands. Otherwise the data is
// {"success":true,"path","mode","bytes_written","size"}.
var WriteFile = tool.New("writeFile",
	"Writes content to a file of the tenant's file area, or appends it. Files are shared by all agents of the tenant and stay until deleted.",
	write, tool.Internal(), tool.Idempotent(), tool.Timeout(60*time.Second), tool.Version("0.1.0"))

func write(ctx context.Context, call *tool.Call, in writeArgs) (tool.Result, error) {
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
	do := call.Files().Write
	switch in.Mode {
	case "":
		in.Mode = message.ModeOverwrite
	case message.ModeOverwrite:
	case message.ModeAppend:
		do = call.Files().Append
	case message.ModeCreate:
		do = call.Files().Create
	default:
		return tool.Result{}, wrong("mode", "must be overwrite, append or create")
	}
	info, err := do(ctx, in.Path, content)
	if err != nil {
		return tool.Result{}, asArguments(err)
	}
	return tool.Data(written{Success: true, Path: in.Path, Mode: in.Mode, BytesWritten: len(content), Size: info.Size}), nil
}
