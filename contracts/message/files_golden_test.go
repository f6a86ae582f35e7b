package message_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// Every message of the files service as it looks on the wire: each golden file
// decodes without an unknown field and encodes to the same JSON.
func TestFilesGolden(t *testing.T) {
	const dir = "../testdata/files"
	types := map[string]any{
		"upload.json":             &message.FileUpload{},
		"upload-reply.json":       &message.FileUploadOpened{},
		"write.json":              &message.FileWrite{},
		"write-base64.json":       &message.FileWrite{},
		"write-upload.json":       &message.FileWrite{},
		"write-reply.json":        &message.FileWritten{},
		"read.json":               &message.FileRead{},
		"read-reply.json":         &message.FileContent{},
		"read-missing-reply.json": &message.FileContent{},
		"stat.json":               &message.FileStat{},
		"stat-reply.json":         &message.FileInfo{},
		"list.json":               &message.FileList{},
		"list-reply.json":         &message.FileListing{},
		"delete.json":             &message.FileDelete{},
		"delete-reply.json":       &message.FileDeleted{},
		"fetch.json":              &message.FetchRequest{},
		"conflict-error.json":     &errcode.Body{},
		"quota-error.json":        &errcode.Body{},
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(found) != len(types) {
		t.Fatalf("%d files for %d messages: %v", len(found), len(types), err)
	}
	for name, v := range types {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			if err := dec.Decode(v); err != nil {
				t.Fatal(err)
			}
			var got, want bytes.Buffer
			enc := json.NewEncoder(&got)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(v); err != nil {
				t.Fatal(err)
			}
			if err := json.Compact(&want, raw); err != nil {
				t.Fatal(err)
			}
			if g, w := bytes.TrimSpace(got.Bytes()), bytes.TrimSpace(want.Bytes()); !bytes.Equal(g, w) {
				t.Errorf("got  %s\nwant %s", g, w)
			}
		})
	}
}
