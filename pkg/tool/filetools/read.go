package filetools

import (
	"context"
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/tool"
)

type readArgs struct {
	Path     string `json:"path" jsonschema:"relative path in the tenant's files, with / between folders"`
	Encoding string `json:"encoding" enum:"utf8,base64" default:"utf8" jsonschema:"how to return the content; base64 for binary files"`
}

type found struct {
	Success  bool   `json:"success"`
	Exists   bool   `json:"exists"`
	Path     string `json:"path"`
	Content  string `json:"content"`
	Size     int64  `json:"size"`     // bytes
	Modified string `json:"modified"` // RFC 3339, UTC
}

type missing struct {
	Success bool    `json:"success"`
	Exists  bool    `json:"exists"`
	Path    string  `json:"path"`
	Content *string `json:"content"`
}

// ReadFile reads a file. One that is not there yet is no error:
// {"success":true,"exists":false,"path","content":null}; else the data is
// {"success":true,"exists":true,"path","content","size","modified"}. A bad path,
// and a binary file read as utf8, are invalid_arguments.
var ReadFile = tool.New("readFile",
	"Reads a file of the tenant's file area. A file that does not exist yet is no error: exists is false and content is null.",
	read, tool.Internal(), tool.Idempotent(), tool.Timeout(60*time.Second), tool.Version("0.1.0"))

func read(ctx context.Context, call *tool.Call, in readArgs) (tool.Result, error) {
	switch in.Encoding {
	case "", message.EncodingUTF8, message.EncodingBase64:
	default:
		return tool.Result{}, wrong("encoding", "must be utf8 or base64")
	}
	content, info, exists, err := call.Files().Read(ctx, in.Path)
	if err != nil {
		return tool.Result{}, asArguments(err)
	}
	if !exists {
		return tool.Data(missing{Success: true, Path: in.Path}), nil
	}
	out := found{Success: true, Exists: true, Path: in.Path, Size: info.Size, Modified: info.Modified.UTC().Format(time.RFC3339Nano)}
	switch {
	case in.Encoding == message.EncodingBase64:
		out.Content = base64.StdEncoding.EncodeToString(content)
	case utf8.Valid(content):
		out.Content = string(content)
	default:
		return tool.Result{}, wrong("encoding", "the file is not UTF-8 text; read it with encoding base64")
	}
	return tool.Data(out), nil
}
