package members

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
)

// writeArgs are the arguments of writeFile.
type writeArgs struct {
	Path     string `json:"path"`
	Content  string `json:"content"`
	Mode     string `json:"mode,omitempty"`     // overwrite (default), append, create
	Encoding string `json:"encoding,omitempty"` // utf8 (default), base64
}

// written is what writeFile answers.
type written struct {
	Path         string `json:"path"`
	BytesWritten int64  `json:"bytes_written"`
	Size         int64  `json:"size"`
}

// file is what readFile answers.
type file struct {
	Exists  bool    `json:"exists"`
	Content *string `json:"content"`
	Size    int64   `json:"size"`
}

// refused is a file tool's no: what was asked for cannot be done. Any other
// error means that it could not be tried.
type refused struct{ tool, why string }

func (r *refused) Error() string { return r.tool + ": " + r.why }

func write(ctx context.Context, call *tool.Call, args writeArgs) (written, error) {
	var w written
	return w, callTool(ctx, call, "writeFile", args, &w)
}

func read(ctx context.Context, call *tool.Call, path string) (file, error) {
	var f file
	err := callTool(ctx, call, "readFile", map[string]string{"path": path}, &f)
	if err == nil && f.Exists && f.Content == nil {
		err = fmt.Errorf("readFile %s: no content", path)
	}
	return f, err
}

func callTool(ctx context.Context, call *tool.Call, name string, args, answer any) error {
	res, err := call.Call(ctx, name, args)
	switch e := errcode.From(err); errcode.Of(err) {
	case "":
	case errcode.InvalidArguments, errcode.Conflict, errcode.TooLarge, errcode.QuotaExceeded:
		return &refused{name, e.Message} // passed on as it is, it would read as a fault of this tool's own arguments
	default:
		return err
	}
	if !res.Success {
		return &refused{name, res.ErrorMessage}
	}
	data := res.Data
	if len(data) == 0 {
		data = json.RawMessage(res.Content)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("unreadable answer of %s: %w", name, err)
	}
	return nil
}

// failed makes a tool's end of an error: the model hears what was refused, the
// runtime gets the rest.
func failed(err error) (tool.Result, error) {
	if r := (*refused)(nil); errors.As(err, &r) {
		return tool.Fail("%v", r), nil
	}
	return tool.Result{}, err
}
