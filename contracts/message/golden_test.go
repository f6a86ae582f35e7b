package message_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// golden says which message each file of testdata is.
var golden = map[string]any{
	"call/request":                      message.CallRequest{},
	"call/least":                        message.CallRequest{},
	"call/reply":                        message.CallReply{},
	"call/failed-reply":                 message.CallReply{},
	"call/arguments-error":              errcode.Body{},
	"call/overloaded-error":             errcode.Body{},
	"call/beat":                         message.ProgressEvent{},
	"call/progress":                     message.ProgressEvent{},
	"call/blob":                         message.Blob{},
	"events/call":                       message.Event{},
	"events/config":                     message.Event{},
	"events/list":                       message.EventsList{},
	"events/list-reply":                 message.EventListing{},
	"files/upload":                      message.FileUpload{},
	"files/upload-reply":                message.FileUploadOpened{},
	"files/write":                       message.FileWrite{},
	"files/write-base64":                message.FileWrite{},
	"files/write-upload":                message.FileWrite{},
	"files/write-reply":                 message.FileWritten{},
	"files/read":                        message.FileRead{},
	"files/read-reply":                  message.FileContent{},
	"files/read-missing-reply":          message.FileContent{},
	"files/read-direct":                 message.FileRead{},
	"files/read-direct-reply":           message.FileContent{},
	"files/write-upload-hashed":         message.FileWrite{},
	"files/stat":                        message.FileStat{},
	"files/stat-reply":                  message.FileInfo{},
	"files/list":                        message.FileList{},
	"files/list-reply":                  message.FileListing{},
	"files/move":                        message.FileMove{},
	"files/move-reply":                  message.FileMoved{},
	"files/versions":                    message.FileVersions{},
	"files/versions-reply":              message.FileVersionList{},
	"files/restore":                     message.FileRestore{},
	"files/restore-reply":               message.FileRestored{},
	"files/delete":                      message.FileDelete{},
	"files/delete-reply":                message.FileDeleted{},
	"files/fetch":                       message.FetchRequest{},
	"files/conflict-error":              errcode.Body{},
	"files/quota-error":                 errcode.Body{},
	"registry/apply":                    message.RegistryApply{},
	"registry/apply-reply":              message.RegistryApplied{},
	"registry/apply-error":              errcode.Body{},
	"registry/get":                      message.RegistryGet{},
	"registry/get-reply":                message.AgentEntry{},
	"registry/list":                     message.RegistryList{},
	"registry/list-reply":               message.RegistryListing{},
	"registry/delete":                   message.RegistryDelete{},
	"registry/delete-reply":             message.RegistryDeleted{},
	"registry/tenant-reply":             message.RegistryTenantConfig{},
	"registry/tenants-reply":            message.RegistryTenants{},
	"registry/agent-tools-reply":        message.AgentToolsReply{},
	"registry/announce":                 message.CatalogueAnnounce{},
	"registry/announce-reply":           message.CatalogueAnnounced{},
	"registry/catalogue-reply":          message.CatalogueTools{},
	"toolstate/all.missing.reply":       message.ToolStateData{},
	"toolstate/all.reply":               message.ToolStateData{},
	"toolstate/all.request":             message.ToolStateAll{},
	"toolstate/append.reply":            message.ToolStateAppended{},
	"toolstate/append.request":          message.ToolStateAppend{},
	"toolstate/clear.reply":             message.ToolStateCleared{},
	"toolstate/clear.request":           message.ToolStateClear{},
	"toolstate/delete.nothing.reply":    message.ToolStateDeleted{},
	"toolstate/delete.reply":            message.ToolStateDeleted{},
	"toolstate/delete.request":          message.ToolStateDelete{},
	"toolstate/document":                message.ToolStateDocument{},
	"toolstate/get.missing.reply":       message.ToolStateValue{},
	"toolstate/get.null.reply":          message.ToolStateValue{},
	"toolstate/get.reply":               message.ToolStateValue{},
	"toolstate/get.request":             message.ToolStateGet{},
	"toolstate/increment.reply":         message.ToolStateIncremented{},
	"toolstate/increment.request":       message.ToolStateIncrement{},
	"toolstate/list.everything.request": message.ToolStateList{},
	"toolstate/list.reply":              message.ToolStateListing{},
	"toolstate/list.request":            message.ToolStateList{},
	"toolstate/set.plain.request":       message.ToolStateSet{},
	"toolstate/set.reply":               message.ToolStateWritten{},
	"toolstate/set.request":             message.ToolStateSet{},
	"toolstate/update.reply":            message.ToolStateWritten{},
	"toolstate/update.request":          message.ToolStateUpdate{},
	"store/delete.reply":                message.StoreDeleted{},
	"store/delete.request":              message.StoreDelete{},
	"store/get.missing.reply":           message.StoreValue{},
	"store/get.reply":                   message.StoreValue{},
	"store/get.request":                 message.StoreGet{},
	"store/list.everything.request":     message.StoreList{},
	"store/list.reply":                  message.StoreKeys{},
	"store/list.page.reply":             message.StoreKeys{},
	"store/list.page.request":           message.StoreList{},
	"store/list.request":                message.StoreList{},
	"store/set.plain.request":           message.StoreSet{},
	"store/set.reply":                   message.StoreWritten{},
	"store/set.request":                 message.StoreSet{},
	"store/commit.request":              message.StoreCommit{},
	"store/commit.nothing.request":      message.StoreCommit{},
	"store/commit.reply":                message.StoreCommitted{},
	"store/outbox.request":              message.StoreOutbox{},
	"store/outbox.reply":                message.StoreOutboxRecord{},
	"store/outbox.missing.reply":        message.StoreOutboxRecord{},
	"store/outbox.settled.reply":        message.StoreOutboxRecord{},
	"store/settle.request":              message.StoreSettle{},
	"result/claim.request":              message.ResultClaim{},
	"result/claim.release.request":      message.ResultClaim{},
	"result/claim.reply":                message.ResultClaimed{},
	"result/claim.keyed.request":        message.ResultClaim{},
	"result/claim.keyed.reply":          message.ResultClaimed{},
	"result/claim.again.reply":          message.ResultClaimed{},
	"result/settle.request":             message.ResultSettle{},
	"result/settle.reply":               message.ResultSettled{},
	"result/submits.request":            message.SubmitList{},
	"result/submits.reply":              message.SubmitListing{},
	"result/redrive.request":            message.SubmitRef{},
	"result/redrive.reply":              message.SubmitRedriven{},
	"result/complete.request":           message.ResultComplete{},
	"result/complete.error.request":     message.ResultComplete{},
	"result/complete.large.request":     message.ResultComplete{},
	"result/complete.reply":             message.ResultCompleted{},
	"result/get.request":                message.ResultGet{},
	"result/get.reply":                  message.ResultReply{},
	"result/get.error.reply":            message.ResultReply{},
	"result/get.large.reply":            message.ResultReply{},
	"result/get.pending.reply":          message.ResultReply{},
	"result/agent.request":              message.ResultRequest{},
	"result/consumer.reply":             message.SubmitsConsumer{},
	"scheduler/list.request":            message.SchedulerList{},
	"scheduler/list.everything.request": message.SchedulerList{},
	"scheduler/list.reply":              message.SchedulerEntries{},
	"scheduler/entry.request":           message.SchedulerEntryRef{},
	"scheduler/trigger.reply":           message.SchedulerTriggered{},
	"scheduler/conflict-error":          errcode.Body{},
	"scheduler/pause.reply":             message.SchedulerPaused{},
	"scheduler/resume.reply":            message.SchedulerPaused{},
	"scheduler/history.reply":           message.SchedulerHistory{},
	"scheduler/wake.request":            message.SchedulerWake{},
	"scheduler/wake.at.request":         message.SchedulerWake{},
	"scheduler/wake.reply":              message.SchedulerWakeSent{},
	"scheduler/wakes.request":           message.SchedulerWakes{},
	"scheduler/wakes.reply":             message.SchedulerWakeList{},
	"scheduler/wake":                    message.Wake{},
	"scheduler/wake.accepted.reply":     message.WakeReply{},
	"scheduler/wake.busy.reply":         message.WakeReply{},
	"scheduler/wake.interim.reply":      message.WakeReply{},
	"scheduler/job.request":             message.JobRequest{},
	"scheduler/job.none.reply":          message.JobReply{},
	"scheduler/job.wake.reply":          message.JobReply{},
}

// Every golden message decodes into its Go type without a field left over, and
// encodes to the same JSON: any implementation can be held against the files.
func TestGolden(t *testing.T) {
	dir := os.DirFS("../testdata")
	files, err := fs.Glob(dir, "*/*.json")
	if err != nil || len(files) != len(golden) {
		t.Errorf("%d files for %d messages: %v", len(files), len(golden), err)
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			kind, ok := golden[strings.TrimSuffix(file, ".json")]
			if !ok {
				t.Fatal("no Go type")
			}
			raw, err := fs.ReadFile(dir, file)
			if err != nil {
				t.Fatal(err)
			}
			v := reflect.New(reflect.TypeOf(kind)).Interface()
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			if err := dec.Decode(v); err != nil {
				t.Fatal(err)
			}
			if _, err := dec.Token(); !errors.Is(err, io.EOF) {
				t.Fatalf("more than one JSON value: %v", err)
			}
			out, err := message.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := canonical(t, out), canonical(t, raw); got != want {
				t.Errorf("encodes to\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// canonical is equal for equal JSON, digits of numbers included.
func canonical(t *testing.T, data []byte) string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	b, err := message.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
