package message_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
)

// Every golden message decodes into its Go type without a field left over, and
// encodes to the same JSON: any implementation can be held against the files.
func TestGoldenToolStateAndStore(t *testing.T) {
	golden := map[string]map[string]func() any{
		"toolstate": {
			"get.request":       func() any { return new(message.ToolStateGet) },
			"get.reply":         func() any { return new(message.ToolStateValue) },
			"set.request":       func() any { return new(message.ToolStateSet) },
			"set.reply":         func() any { return new(message.ToolStateWritten) },
			"delete.request":    func() any { return new(message.ToolStateDelete) },
			"delete.reply":      func() any { return new(message.ToolStateDeleted) },
			"all.request":       func() any { return new(message.ToolStateAll) },
			"all.reply":         func() any { return new(message.ToolStateData) },
			"clear.request":     func() any { return new(message.ToolStateClear) },
			"clear.reply":       func() any { return new(message.ToolStateCleared) },
			"append.request":    func() any { return new(message.ToolStateAppend) },
			"append.reply":      func() any { return new(message.ToolStateAppended) },
			"increment.request": func() any { return new(message.ToolStateIncrement) },
			"increment.reply":   func() any { return new(message.ToolStateIncremented) },
			"update.request":    func() any { return new(message.ToolStateUpdate) },
			"update.reply":      func() any { return new(message.ToolStateWritten) },
			"list.request":      func() any { return new(message.ToolStateList) },
			"list.reply":        func() any { return new(message.ToolStateListing) },
			"document":          func() any { return new(message.ToolStateDocument) },
		},
		"store": {
			"get.request":    func() any { return new(message.StoreGet) },
			"get.reply":      func() any { return new(message.StoreValue) },
			"set.request":    func() any { return new(message.StoreSet) },
			"set.reply":      func() any { return new(message.StoreWritten) },
			"delete.request": func() any { return new(message.StoreDelete) },
			"delete.reply":   func() any { return new(message.StoreDeleted) },
			"list.request":   func() any { return new(message.StoreList) },
			"list.reply":     func() any { return new(message.StoreKeys) },
		},
	}
	for folder, types := range golden {
		files, err := filepath.Glob(filepath.Join("..", "testdata", folder, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, file := range files {
			// <op>[.<variant>].<request|reply>.json
			name := strings.TrimSuffix(filepath.Base(file), ".json")
			parts := strings.Split(name, ".")
			kind := parts[0]
			if len(parts) > 1 {
				kind += "." + parts[len(parts)-1]
			}
			seen[kind] = true
			t.Run(folder+"/"+name, func(t *testing.T) {
				fresh, ok := types[kind]
				if !ok {
					t.Fatalf("no Go type for %s", file)
				}
				stateRoundTrip(t, file, fresh())
			})
		}
		for kind := range types {
			if !seen[kind] {
				t.Errorf("no golden message for %s/%s", folder, kind)
			}
		}
	}
}

func stateRoundTrip(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatal(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one JSON value: %v", err)
	}
	out, err := json.Marshal(into)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := stateJSON(t, out), stateJSON(t, data); got != want {
		t.Errorf("encodes to\n%s\nwant\n%s", got, want)
	}
}

// stateJSON is equal for equal JSON, digits of numbers included.
func stateJSON(t *testing.T, data []byte) string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
