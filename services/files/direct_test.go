package files_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	client "github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/services/files"
)

// window asks for one window and returns the reply and the chunks, once the
// window's end came.
func window(t *testing.T, nc *nats.Conn, q message.FileRead) (message.FileContent, []*nats.Msg) {
	t.Helper()
	sub, err := nc.SubscribeSync(q.Direct.DeliverTo)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	r := must[message.FileContent](t, nc, "acme", "read", q)
	var chunks []*nats.Msg
	for r.Direct != nil {
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatalf("after %d chunks: %v", len(chunks), err)
		}
		if m.Header.Get("Status") == "204" {
			break
		}
		chunks = append(chunks, m)
	}
	return r, chunks
}

// The contract of a direct read: what a client in any language does.
func TestDirectWindows(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	content := random(5 << 20)
	if _, err := client.New(nc, "acme").Put(t.Context(), "big", bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	var got []byte
	var from *message.FilePlace
	for len(got) < len(content) {
		r, chunks := window(t, nc, message.FileRead{Path: "big", Offset: int64(len(got)), Direct: &message.FileDirect{DeliverTo: nc.NewInbox(), MaxChunks: 3, From: from}})
		sum := sha256.Sum256(content)
		if r.Content != nil || r.Direct == nil || r.Direct.Offset != int64(len(got)) || r.SHA256 != hex.EncodeToString(sum[:]) || r.Size != int64(len(content)) {
			t.Fatalf("got %+v", r)
		}
		if len(chunks) == 0 || len(chunks) > 3 {
			t.Fatalf("%d chunks", len(chunks))
		}
		at := *r.Direct
		for _, m := range chunks {
			if m.Header.Get(message.HeaderChunk) != strconv.Itoa(at.Chunk) {
				t.Fatalf("chunk %s, want %d", m.Header.Get(message.HeaderChunk), at.Chunk)
			}
			got = append(got, m.Data...)
			seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			at = message.FilePlace{ID: at.ID, Chunk: at.Chunk + 1, Offset: at.Offset + int64(len(m.Data)), Sequence: seq + 1}
		}
		from = &at
	}
	if !bytes.Equal(got, content) {
		t.Error("other content")
	}

	// Without a place the service finds it, and a window holds what was asked for.
	length := int64(10)
	r, chunks := window(t, nc, message.FileRead{Path: "big", Offset: 3 << 20, Length: &length, Direct: &message.FileDirect{DeliverTo: nc.NewInbox()}})
	if len(chunks) != 1 || !bytes.Equal(chunks[0].Data[3<<20-r.Direct.Offset:][:length], content[3<<20:][:length]) {
		t.Errorf("%+v and %d chunks", r.Direct, len(chunks))
	}

	// A place that makes no sense is found anew, or costs its client the content.
	for _, p := range []message.FilePlace{{ID: "other", Chunk: 7}, {ID: r.Direct.ID, Chunk: -1}, {ID: r.Direct.ID, Offset: 4 << 20}} {
		r, _ := window(t, nc, message.FileRead{Path: "big", Offset: 3 << 20, Length: &length, Direct: &message.FileDirect{DeliverTo: nc.NewInbox(), From: &p}})
		if r.Direct == nil || r.Direct.Offset > 3<<20 || r.Direct.ID == "other" || r.Direct.Chunk < 0 {
			t.Errorf("%+v: %+v", p, r.Direct)
		}
	}
	old := r.Revision
	must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "big", Content: "small now"})
	_, err := request[message.FileContent](t, nc, "acme", "read", message.FileRead{Path: "big", Revision: &old, Direct: &message.FileDirect{DeliverTo: nc.NewInbox()}})
	wantCode(t, err, errcode.Conflict)
}

// What a tenant has stored is sent to inboxes only: JetStream asks nobody's
// permission. Anything else gets the content in the reply.
func TestDirectGoesToInboxesOnly(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Content: "{}"})
	hostile := []string{
		"", "_INBOX", "_INBOX.", "_INBOX.>", "_INBOX.*", "_INBOX.a.>", "_INBOX.a b", "_INBOX.a\r\nPUB x 0", "inbox.a", "x._INBOX.a", "*", ">",
		"$JS.API.STREAM.PURGE.OBJ_toolbus_files_acme", "$O.toolbus_files_acme.M.x", "toolbus.v1.agent.other.bot.wake", "$SYS.REQ.x",
		"_INBOX." + strings.Repeat("a", 300),
	}
	sub, err := nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range hostile {
		r := must[message.FileContent](t, nc, "acme", "read", message.FileRead{Path: "f", Direct: &message.FileDirect{DeliverTo: to}})
		if r.Direct != nil || r.Content == nil || *r.Content != "{}" {
			t.Errorf("%q: %+v", to, r)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		n, _, err := sub.Pending()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		m, err := sub.NextMsg(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(m.Subject, "$JS.API.DIRECT.GET") && strings.HasSuffix(m.Subject, "OBJ_toolbus_files_acme") {
			t.Errorf("a batch was asked for, to be sent to %q", m.Reply)
		}
	}
}

// A tenant needs no permission but for its own subjects and inboxes.
func TestDirectWithoutJetStreamPermission(t *testing.T) {
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "service", Password: "pw"},
			{Username: "acme", Password: "pw", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{"toolbus.v1.files.acme.>"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_acme.>"}},
			}},
		}
	})
	as := func(user string) string { return strings.Replace(s.URL(), "://", "://"+user+":pw@", 1) }
	start(t, s, func(c *files.Config) { c.Bus.Server = as("service") })
	nc, err := bus.Connect(t.Context(), bus.Config{Server: as("acme"), InboxPrefix: "_INBOX_acme"}, "acme")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c, content := client.New(nc, "acme"), random(3<<20)
	if _, err := c.Put(t.Context(), "big", bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	r, chunks := window(t, nc, message.FileRead{Path: "big", Direct: &message.FileDirect{DeliverTo: nc.NewInbox(), MaxChunks: 2}})
	if r.Direct == nil || len(chunks) != 2 {
		t.Errorf("%+v and %d chunks", r, len(chunks))
	}
	var got bytes.Buffer
	if _, _, err := c.Get(t.Context(), "big", &got); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
}

// slowly is a reader's destination that has something happen meanwhile.
type slowly struct {
	bytes.Buffer
	meanwhile func()
}

func (w *slowly) Write(p []byte) (int, error) {
	if w.meanwhile != nil {
		w.meanwhile()
		w.meanwhile = nil
	}
	return w.Buffer.Write(p)
}

// A reader keeps the version it opened: while the file grows, far beyond what it
// remembers of its versions, and while it is compacted. One that is replaced is a
// conflict.
func TestReadersKeepTheirVersion(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	c := client.New(s.Connect(), "acme")
	lines := func(n int) {
		for i := range n {
			if _, err := c.Append(t.Context(), "log", fmt.Appendf(nil, "line %d\n", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	content := random(20 << 20)
	if _, err := c.Put(t.Context(), "log", bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	w := &slowly{meanwhile: func() { lines(300) }}
	if info, _, err := c.Get(t.Context(), "log", w); err != nil || !bytes.Equal(w.Bytes(), content) || info.Size != int64(len(content)) {
		t.Errorf("while it grew: %d bytes, %+v, %v", w.Len(), info, err)
	}
	w = &slowly{meanwhile: func() {
		if _, err := c.Write(t.Context(), "log", []byte("new")); err != nil {
			t.Fatal(err)
		}
	}}
	if _, _, err := c.Get(t.Context(), "log", w); !errors.Is(err, errcode.Conflict) {
		t.Errorf("while it was replaced: %d bytes, %v", w.Len(), err)
	}
}

// A file of many appends is compacted behind everybody's back: content, revision
// and time stay, also for nats.go, and so does what a reader has begun.
func TestCompaction(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	c := client.New(nc, "acme")
	var want bytes.Buffer
	var last uint64
	for i := range 1500 {
		line := fmt.Appendf(nil, "%06d %s\n", i, strings.Repeat("x", i%90))
		want.Write(line)
		info, err := c.Append(t.Context(), "log", line)
		if err != nil || info.Revision <= last || info.Size != int64(want.Len()) {
			t.Fatalf("append %d: %+v, %v", i, info, err)
		}
		last = info.Revision
	}
	chunks := func() int {
		r, chunks := window(t, nc, message.FileRead{Path: "log", Direct: &message.FileDirect{DeliverTo: nc.NewInbox()}})
		if r.Revision != last || r.Size != int64(want.Len()) {
			t.Fatalf("got %+v, want revision %d", r, last)
		}
		return len(chunks)
	}
	for end := time.Now().Add(10 * time.Second); chunks() >= 600; {
		if time.Now().After(end) {
			t.Fatalf("still %d chunks", chunks())
		}
	}
	got, info, _, err := c.Read(t.Context(), "log")
	if err != nil || !bytes.Equal(got, want.Bytes()) || info.Revision != last {
		t.Errorf("%d bytes, %+v, %v", len(got), info, err)
	}
	if got := object(t, nc, "acme", "log"); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("nats.go reads %d bytes", len(got))
	}
	// The revision that the last append gave still is the file's.
	w := must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "log", Mode: "append", Content: "end\n", IfRevision: &last})
	if w.Size != int64(want.Len()+4) {
		t.Errorf("got %+v", w)
	}
}

// state is a running hash as clients send it.
func state(t *testing.T, h hash.Hash) string {
	t.Helper()
	b, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// The service believes a client's digest only with the running hash that ends in
// it, and never its sizes.
func TestUploadWithItsHash(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	upload := func(header nats.Header, parts ...string) message.FileChunks {
		t.Helper()
		up := must[message.FileUploadOpened](t, nc, "acme", "upload", message.FileUpload{Path: "f"})
		h := sha256.New()
		u := message.FileChunks{UploadID: up.UploadID, Chunks: len(parts)}
		for i, p := range parts {
			m := nats.NewMsg(subject.FilesChunk("acme", up.UploadID))
			for k, v := range header {
				m.Header[k] = v
			}
			m.Header.Set(message.HeaderChunk, strconv.Itoa(i))
			m.Data = []byte(p)
			if _, err := nc.RequestMsg(m, 5*time.Second); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(h, p)
			u.Size += int64(len(p))
		}
		u.SHA256, u.SHA256State = hex.EncodeToString(h.Sum(nil)), state(t, h)
		return u
	}
	commit := func(u message.FileChunks) error {
		_, err := request[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Upload: &u})
		return err
	}
	if err := commit(upload(nil, "one ", "two ", "three\n")); err != nil {
		t.Fatal(err)
	}
	must[message.FileWritten](t, nc, "acme", "write", message.FileWrite{Path: "f", Mode: "append", Content: "four\n"})
	if got := string(object(t, nc, "acme", "f")); got != "one two three\nfour\n" {
		t.Errorf("read %q", got)
	}

	u := upload(nil, "one")
	for name, bad := range map[string]func(*message.FileChunks){
		"no base64":      func(u *message.FileChunks) { u.SHA256State = "!" },
		"no state":       func(u *message.FileChunks) { u.SHA256State = "AAAA" },
		"another digest": func(u *message.FileChunks) { u.SHA256 = strings.Repeat("0", 64) },
		"another size":   func(u *message.FileChunks) { u.Size++ },
	} {
		b := u
		bad(&b)
		if err := commit(b); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := commit(u); err != nil {
		t.Error(err)
	}

	// Whatever a chunk's headers say of its size, the server's word counts.
	forged := upload(nats.Header{"Nats-Msg-Size": {"1"}, "Nats-Sequence": {"1"}, "Status": {"404"}}, "a longer chunk", "another")
	if err := commit(forged); err != nil {
		t.Error(err)
	}
	if r := must[message.FileInfo](t, nc, "acme", "stat", message.FileStat{Path: "f"}); r.Size != 21 {
		t.Errorf("got %+v", r)
	}
	var b bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, _, err := client.New(nc, "acme").Get(ctx, "f", &b); err != nil || b.String() != "a longer chunkanother" {
		t.Errorf("read %q, %v", &b, err)
	}
}

// On three replicas, with the client, the service and the stream's leader on
// different servers, chunks come directly too, and so does a fresh upload.
func TestDirectAcrossServers(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	cfg := files.DefaultConfig()
	cfg.Bus, cfg.Replicas = bus.Config{Server: c.Members[0].URL(), Wait: 10 * time.Second}, 3
	svc, err := files.New(cfg, telemetry.Discard(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, svc) })
	content := random(12 << 20)
	for i, m := range c.Members {
		nc, err := bus.Connect(t.Context(), bus.Config{Server: m.URL(), Wait: 10 * time.Second}, "client")
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		cl := client.New(nc, "acme")
		path := fmt.Sprint("big", i)
		if _, err := cl.Put(t.Context(), path, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, _, err := cl.Get(t.Context(), path, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
			t.Errorf("server %d: %d bytes, %v", i, got.Len(), err)
		}
		c.WaitCurrent("OBJ_toolbus_files_acme")
		r, chunks := window(t, nc, message.FileRead{Path: path, Direct: &message.FileDirect{DeliverTo: nc.NewInbox(), MaxChunks: 4}})
		if r.Direct == nil || len(chunks) != 4 {
			t.Errorf("server %d: %+v and %d chunks", i, r.Direct, len(chunks))
		}
	}
}
