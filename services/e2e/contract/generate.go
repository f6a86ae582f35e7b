package contract

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v2"
)

// Path is where the document stands, from the repository's root.
const Path = "contracts/asyncapi.yaml"

const (
	generatedFrom = "    # From here on generated from the Go types: go test ./services/e2e/contract -update\n"
	generatedTo   = "    # END\n"
)

// Generate is the document with its schemas made anew from the Go types; root
// is the repository's folder.
func Generate(root string) (have, want []byte, err error) {
	have, err = os.ReadFile(filepath.Join(root, Path))
	if err != nil {
		return nil, nil, err
	}
	before, rest, ok := bytes.Cut(have, []byte(generatedFrom))
	_, after, closed := bytes.Cut(rest, []byte(generatedTo))
	if !ok || !closed {
		return nil, nil, fmt.Errorf("%s: the lines around the generated schemas are gone", Path)
	}
	types, err := schemas(root)
	if err != nil {
		return nil, nil, err
	}
	yaml.FutureLineWrap() // one line per value: diffs show what changed
	text, err := yaml.Marshal(types)
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	b.Write(before)
	b.WriteString(generatedFrom)
	for line := range strings.Lines(string(text)) {
		b.WriteString("    " + line)
	}
	b.WriteString(generatedTo)
	b.Write(after)
	return have, b.Bytes(), nil
}
