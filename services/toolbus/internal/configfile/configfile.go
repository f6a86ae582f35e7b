// Package configfile reads configuration files, JSON or YAML, into the JSON
// that registry.apply takes. It checks the form of a file (syntax, duplicate
// keys, one document) and says where it is wrong; what the fields mean is the
// registry's business.
package configfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// Source is a file as it was read.
type Source struct {
	Name string // for messages; its extension tells the format
	Data []byte
}

// Load reads files into one configuration. Several files are merged: the
// agents of all, and the "tenant" of at most one. A fault is an
// invalid_request that names the file and, where it can, the line.
func Load(sources ...Source) (Config, error) {
	if len(sources) == 0 {
		return Config{}, errcode.Field("file", "is required")
	}
	docs := make([]json.RawMessage, len(sources))
	var faults []errcode.FieldFault
	for i, s := range sources {
		doc, err := parse(s)
		if err != nil {
			faults = append(faults, errcode.FieldFault{Field: s.Name, Message: err.Error()})
		}
		docs[i] = doc
	}
	if len(faults) > 0 {
		return Config{}, errcode.Fields(errcode.InvalidRequest, faults...)
	}
	if len(sources) == 1 {
		return Config{JSON: docs[0]}, nil
	}
	return merge(sources, docs)
}

// parse returns a file's one document as JSON, an object.
func parse(s Source) (json.RawMessage, error) {
	data := bytes.TrimPrefix(s.Data, []byte("\xef\xbb\xbf"))
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("line %d: is not valid UTF-8", lineOf(data, firstInvalid(data)))
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("is empty")
	}
	if isJSON(s.Name, data) {
		return parseJSON(data)
	}
	return parseYAML(data)
}

// isJSON goes by the extension; a name without a known one is JSON when it
// starts like an object.
func isJSON(name string, data []byte) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json":
		return true
	case ".yaml", ".yml":
		return false
	}
	return bytes.HasPrefix(bytes.TrimSpace(data), []byte("{"))
}

func lineOf(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), len(data))], []byte("\n"))
}

func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}
