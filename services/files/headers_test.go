package files_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	client "github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// Clients choose the headers of the chunks they upload, and the id they upload
// under, which may be that of a file's chunks. Whatever they choose: files stay
// as they are, and appends and uploads go on.
func TestHeadersOfUploadsHarmNothing(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	c := client.New(nc, "acme")
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(t.Context(), "other", []byte("other")); err != nil {
		t.Fatal(err)
	}
	want := "first\n"
	if _, err := c.Append(t.Context(), "log", []byte(want)); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "OBJ_"+subject.FilesBucket("acme"))
	if err != nil {
		t.Fatal(err)
	}
	meta := "$O." + subject.FilesBucket("acme") + ".M." + base64.URLEncoding.EncodeToString([]byte("log"))
	// chunkID is where the log's chunks stand now, and the revision it has.
	chunkID := func() (string, uint64) {
		m, err := stream.GetLastMsgForSubject(t.Context(), meta)
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			NUID string `json:"nuid"`
		}
		if err := json.Unmarshal(m.Data, &info); err != nil {
			t.Fatal(err)
		}
		return info.NUID, m.Sequence
	}
	headers := []nats.Header{
		{},
		{"Nats-Rollup": {"all"}},
		{"Nats-Rollup": {"sub"}},
		{"Nats-TTL": {"1s"}},
		{"Nats-TTL": {"never"}},
		{"Nats-Schedule": {"@at " + time.Now().Add(time.Second).UTC().Format(time.RFC3339)}, "Nats-Schedule-Target": {meta}},
		{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {meta}, "Nats-Schedule-TTL": {"1s"}},
		{"Nats-Schedule-Next": {"purge"}},
		{"Nats-Msg-Id": {"same"}},
		{"Nats-Msg-Id": {"same"}},
		{"Nats-Expected-Stream": {"other"}},
		{"Nats-Expected-Last-Msg-Id": {"none"}},
		{"Nats-Expected-Last-Sequence": {"0"}},
		{"Nats-Expected-Last-Sequence": {"not a number"}},
		{"Nats-Expected-Last-Subject-Sequence": {"0"}},
		{"Nats-Expected-Last-Subject-Sequence": {"1"}, "Nats-Expected-Last-Subject-Sequence-Subject": {meta}},
		{"Nats-Batch-Id": {"b"}, "Nats-Batch-Sequence": {"1"}},
		{"Nats-Batch-Id": {"b"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}},
		{"Nats-Batch-Id": {"b"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"eob"}},
		{"Nats-Incr": {"+1"}},
		{"Nats-Required-Api-Level": {"99"}},
		{"Nats-Marker-Reason": {"MaxAge"}, "KV-Operation": {"DEL"}},
		{"Nats-Sequence": {"1"}, "Nats-Subject": {meta}, "Nats-Time-Stamp": {"2001-01-01T00:00:00Z"}, "Nats-Num-Pending": {"0"}},
		{"Status": {"404"}, "Description": {"gone"}},
		{"Status": {"100"}},
		{"Toolbus-Chunk": {"-1"}},
		{"Toolbus-Chunk": {"x"}},
		{"Toolbus-Append": {"REV 0 1  AAAA forged"}},
		{"Toolbus-Append": {""}},
	}
	for i, h := range headers {
		t.Run(fmt.Sprint(i, h), func(t *testing.T) {
			log, revision := chunkID()
			for _, id := range []string{"evil", log} {
				m := nats.NewMsg(subject.FilesChunk("acme", id))
				m.Data = []byte("evil\n")
				m.Header.Set(message.HeaderChunk, "1")
				for k, v := range h {
					m.Header[k] = []string{strings.ReplaceAll(v[0], "REV", fmt.Sprint(revision))}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := nc.RequestMsgWithContext(ctx, m) // taken or refused, as the server likes
				cancel()
				if err != nil && h.Get("Nats-Batch-Id") == "" {
					t.Fatal(err)
				}
			}
			// Nobody who reads sees it.
			if got, _, _, err := c.Read(t.Context(), "log"); err != nil || string(got) != want {
				t.Fatalf("read %q, %v", got, err)
			}
			line := fmt.Sprintf("line %d\n", i)
			want += line
			if _, err := c.Append(t.Context(), "log", []byte(line)); err != nil {
				t.Fatal(err)
			}
			if got := object(t, nc, "acme", "log"); string(got) != want {
				t.Fatalf("%q", got)
			}
			if got := object(t, nc, "acme", "other"); string(got) != "other" {
				t.Fatalf("%q", got)
			}
			// Some uploads go on as they began, and from now on the log's chunks stand
			// under an upload's id.
			want = fmt.Sprintf("uploaded %d\n", i)
			if _, err := c.Put(t.Context(), "log", strings.NewReader(want)); err != nil {
				t.Fatal(err)
			}
			if got := object(t, nc, "acme", "log"); string(got) != want {
				t.Fatalf("%q", got)
			}
		})
	}
	// None of it was understood as what it says: nothing expires or fires later.
	cfg := stream.CachedInfo().Config
	if cfg.AllowRollup || cfg.AllowMsgTTL || cfg.AllowMsgSchedules || cfg.AllowAtomicPublish || cfg.AllowMsgCounter || cfg.Duplicates > time.Second {
		t.Errorf("the stream allows what clients must not have: %+v", cfg)
	}
	if l := must[message.FileListing](t, nc, "acme", "list", message.FileList{}); len(l.Files) != 2 {
		t.Errorf("list %+v", l)
	}
}
