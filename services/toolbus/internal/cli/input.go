package cli

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// maxInput is the largest input, in bytes, that is read into memory; what a
// tool call may carry is less.
const maxInput = 64 << 20

// open opens a file, or stdin for "-". What cannot be read is the caller's
// mistake, by the name of the field.
func (a *app) open(field, name string) (io.ReadCloser, error) {
	if name == "-" {
		return &input{a.std.In, io.NopCloser(nil), field}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, inputError(field, err)
	}
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, errors.Join(errcode.Field(field, "%q is a folder", name), f.Close())
	}
	return &input{f, f, field}, nil
}

// input names its field in errors of reading.
type input struct {
	io.Reader
	io.Closer
	field string
}

func (in *input) Read(p []byte) (int, error) {
	n, err := in.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = inputError(in.field, err)
	}
	return n, err
}

// readInput reads all of a file, or of stdin for "-".
func (a *app) readInput(field, name string) ([]byte, error) {
	in, err := a.open(field, name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return readAll(field, in)
}

func readAll(field string, in io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxInput {
		return nil, errcode.OverLimit(errcode.TooLarge, maxInput, int64(len(b)), "%s: more than %d bytes", field, maxInput)
	}
	return b, nil
}

func inputError(field string, err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return errcode.Field(field, "%s: %v", p.Path, p.Err)
	}
	return errcode.Field(field, "%v", err)
}

// argument is a literal, "-" for stdin, or "@FILE".
func (a *app) argument(field, arg string) ([]byte, error) {
	switch {
	case arg == "@":
		return nil, errcode.Field(field, "@ names no file")
	case arg == "-":
		return a.readInput(field, "-")
	case strings.HasPrefix(arg, "@"):
		return a.readInput(field, arg[1:])
	}
	return []byte(arg), nil
}

// checkJSON refuses what is not one JSON value and says where it goes wrong.
// Numbers may be of any size.
func checkJSON(code errcode.Code, field string, b []byte) (json.RawMessage, error) {
	if !utf8.Valid(b) {
		return nil, errcode.Fields(code, errcode.FieldFault{Field: field, Message: "is not valid UTF-8"})
	}
	err := json.Unmarshal(b, new(json.RawMessage))
	if err == nil {
		return b, nil
	}
	fault := errcode.FieldFault{Field: field, Message: "is not valid JSON: " + err.Error()}
	var s *json.SyntaxError
	if errors.As(err, &s) {
		fault = errcode.FieldFault{Field: field, Message: "is not valid JSON at byte " + strconv.FormatInt(s.Offset, 10) + ": " + s.Error()}
	}
	return nil, errcode.Fields(code, fault)
}
