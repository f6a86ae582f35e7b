package files_test

import (
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// A direct read tells clients the chunk id of a file. Committing that as if it were
// an upload's does not make them a second file's.
func TestChunksOfAFileAreNoUpload(t *testing.T) {
	const sumABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of "abc"
	for _, mode := range []string{message.ModeOverwrite, message.ModeAppend} {
		t.Run(mode, func(t *testing.T) {
			s := natstest.Start(t)
			start(t, s)
			nc := s.Connect()
			must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "one", Content: "abc"})
			got := must[message.FileContent](t, nc, "acme", "read", message.FileRead{
				Path: "one", Direct: &message.FileDirect{DeliverTo: nc.NewInbox()},
			})
			if got.Direct == nil || got.Direct.ID == "" {
				t.Fatalf("no chunk id in %+v", got)
			}
			u := &message.FileChunks{UploadID: got.Direct.ID, Chunks: 1, Size: 3, SHA256: sumABC}
			_, err := request[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "two", Mode: mode, Upload: u})
			wantCode(t, err, errcode.NotFound)
			must[message.FileDeleted](t, nc, "acme", "delete", message.FileDelete{Path: "two"})
			must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "one", Mode: message.ModeAppend, Content: "d"})
			if text := string(object(t, nc, "acme", "one")); text != "abcd" {
				t.Errorf("the file is %q", text)
			}
		})
	}
}
