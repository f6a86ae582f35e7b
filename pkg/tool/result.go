package tool

import (
	"encoding/json"
	"fmt"

	"github.com/toolbus/toolbus/contracts/message"
)

// Result is what a tool that ran has to say.
type Result struct {
	Success      bool
	Content      string          // text for the model
	ErrorMessage string          // why it failed, for the model; "" on success
	Data         json.RawMessage // any JSON, for programs; optional
}

// OK is a success. The arguments are formatted as by fmt.Sprintf; without any,
// format is taken as it is, so text from outside is safe to pass.
func OK(format string, args ...any) Result {
	return Result{Success: true, Content: text(format, args)}
}

// Fail tells the model that what it asked for could not be done, and why.
func Fail(format string, args ...any) Result {
	return Result{ErrorMessage: text(format, args)}
}

// Data is a success with data for programs; the model sees its compact JSON.
// A value that has no JSON form is a failure, which says so.
func Data(v any) Result {
	b, err := message.Marshal(v)
	if err != nil {
		return Fail("the tool's data has no JSON form: %v", err)
	}
	return Result{Success: true, Content: string(b), Data: b}
}

// WithData adds data for programs to a result, success or failure.
func (r Result) WithData(v any) Result {
	b, err := message.Marshal(v)
	if err != nil {
		return Fail("the tool's data has no JSON form: %v", err)
	}
	r.Data = b
	return r
}

func text(format string, args []any) string {
	if len(args) == 0 {
		return format
	}
	return fmt.Sprintf(format, args...)
}
