package tooltest

import (
	"context"
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/tool"
)

// FileTools are small stand-ins for the internal tools writeFile and readFile,
// with the same fields, results and errors, for tests of tools that call them:
//
//	env := tooltest.New(t, append(tooltest.FileTools(), registerMember)...)
func FileTools() []tool.Tool {
	return []tool.Tool{
		tool.New("writeFile", "Writes a file of the tenant.", writeFile, tool.Internal()),
		tool.New("readFile", "Reads a file of the tenant.", readFile, tool.Internal()),
	}
}

type writeFileArgs struct {
	Path     string `json:"path"`
	Content  string `json:"content"`
	Mode     string `json:"mode" enum:"overwrite,append,create" default:"overwrite"`
	Encoding string `json:"encoding" enum:"utf8,base64" default:"utf8"`
}

type writeFileResult struct {
	Success      bool   `json:"success"`
	Path         string `json:"path"`
	Mode         string `json:"mode"`
	BytesWritten int    `json:"bytes_written"`
	Size         int64  `json:"size"`
}

func writeFile(ctx context.Context, call *tool.Call, in writeFileArgs) (tool.Result, error) {
	content := []byte(in.Content)
	if in.Encoding == message.EncodingBase64 {
		b, err := base64.StdEncoding.DecodeString(in.Content)
		if err != nil {
			return tool.Result{}, badArgument("content", "is not valid base64: "+err.Error())
		}
		content = b
	}
	write := call.Files().Write
	switch in.Mode {
	case message.ModeAppend:
		write = call.Files().Append
	case message.ModeCreate:
		write = call.Files().Create
	}
	info, err := write(ctx, in.Path, content)
	if err != nil {
		return tool.Result{}, badPath(err)
	}
	return tool.Data(writeFileResult{true, in.Path, in.Mode, len(content), info.Size}), nil
}

type readFileArgs struct {
	Path     string `json:"path"`
	Encoding string `json:"encoding" enum:"utf8,base64" default:"utf8"`
}

type readFileResult struct {
	Success  bool    `json:"success"`
	Exists   bool    `json:"exists"`
	Path     string  `json:"path"`
	Content  *string `json:"content"`
	Size     *int    `json:"size,omitempty"`
	Modified string  `json:"modified,omitempty"`
}

func readFile(ctx context.Context, call *tool.Call, in readFileArgs) (tool.Result, error) {
	b, info, exists, err := call.Files().Read(ctx, in.Path)
	if err != nil {
		return tool.Result{}, badPath(err)
	}
	if !exists {
		return tool.Data(readFileResult{Success: true, Path: in.Path}), nil
	}
	content := string(b)
	switch {
	case in.Encoding == message.EncodingBase64:
		content = base64.StdEncoding.EncodeToString(b)
	case !utf8.Valid(b):
		return tool.Result{}, badArgument("encoding", "the file is not UTF-8 text; read it with encoding base64")
	}
	size := len(b)
	return tool.Data(readFileResult{true, true, in.Path, &content, &size, info.Modified.UTC().Format(time.RFC3339Nano)}), nil
}

func badArgument(field, text string) error {
	return errcode.Fields(errcode.InvalidArguments, errcode.FieldFault{Field: field, Message: text})
}

// badPath says of a path that the files refuse that it is an argument.
func badPath(err error) error {
	if e := errcode.From(err); e.Code == errcode.InvalidRequest && e.Details != nil && len(e.Details.Fields) > 0 {
		return errcode.Fields(errcode.InvalidArguments, e.Details.Fields...)
	}
	return err
}
