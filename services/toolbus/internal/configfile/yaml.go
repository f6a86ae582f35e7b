package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	goyaml "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// parseYAML converts the one document in data. Duplicate keys are refused, and
// so is a second document, of which nothing would be applied.
func parseYAML(data []byte) (json.RawMessage, error) {
	if err := oneDocument(data); err != nil {
		return nil, err
	}
	out, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, yamlError(err)
	}
	if !bytes.HasPrefix(out, []byte("{")) {
		return nil, errors.New("must be an object, with agentId or agents")
	}
	return out, nil
}

func oneDocument(data []byte) error {
	dec := goyaml.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		var doc any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return yamlError(err)
		}
		if n > 0 {
			return errors.New("holds more than one document; apply them one by one, or as one list of agents")
		}
	}
}

// yamlError keeps the library's line numbers and drops its prefixes.
func yamlError(err error) error {
	msg := err.Error()
	for _, p := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		msg = strings.TrimPrefix(msg, p)
	}
	msg = strings.Join(strings.Fields(msg), " ")
	if strings.HasPrefix(msg, "line ") {
		return errors.New(strings.Replace(msg, ": ", ": is not valid YAML: ", 1))
	}
	return errors.New("is not valid YAML: " + msg)
}
