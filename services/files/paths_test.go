package files_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	client "github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/natstest"
	"github.com/toolbus/toolbus/pkg/paths/pathstest"
)

const requestLimit = 5 * time.Second

// quote is s as a JSON string whose bytes are those of s, also where they are no
// UTF-8: what no encoder would send.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		if c < ' ' || c == '"' || c == '\\' {
			fmt.Fprintf(&b, `\u%04x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}

// Each request is sent as it is, and its path refused by the name of the field.
func TestHostilePathsOnTheWire(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	var bodies []pathstest.Case
	for _, c := range pathstest.Refused() {
		bodies = append(bodies, pathstest.Case{Intent: c.Intent, Path: quote(c.Path)})
	}
	for _, escaped := range []string{`"\ud800"`, `"a\udc00b"`, `"\udfff\ud800"`, `"\u002e\u002e\u002fx"`, `"\u0000"`, `"a\\b"`, `"\u202etxt"`, `"e\u0301"`} {
		bodies = append(bodies, pathstest.Case{Intent: "escaped in JSON", Path: escaped})
	}
	for _, c := range bodies {
		for op, body := range map[string]string{
			"write": `{"content":"evil","path":%s}`, "read": `{"path":%s}`, "stat": `{"path":%s}`, "delete": `{"path":%s}`, "upload": `{"path":%s}`,
		} {
			m, err := nc.Request(subject.Files("acme", op), fmt.Appendf(nil, body, c.Path), requestLimit)
			if err != nil {
				t.Fatalf("%s: %s %.80s: %v", c.Intent, op, c.Path, err)
			}
			e := errcode.Decode(m.Data, m.Header.Get("Nats-Service-Error"))
			if m.Header.Get("Nats-Service-Error-Code") == "" || e.Code != errcode.InvalidRequest || e.Details == nil || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != "path" {
				t.Errorf("%s: %s %.80s: answered %s", c.Intent, op, c.Path, m.Data)
			}
		}
	}
	if l := must[message.FileListing](t, nc, "acme", "list", message.FileList{}); len(l.Files) > 0 {
		t.Errorf("%d files were written", len(l.Files))
	}
}

// Paths that look alike are different files, for us and for any NATS client.
func TestOddPathsAreFilesOfTheirOwn(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	c, taken := client.New(nc, "acme"), pathstest.Taken()
	for _, odd := range taken {
		if _, err := c.Create(t.Context(), odd.Path, []byte(odd.Path)); err != nil {
			t.Errorf("%s: create %q: %v", odd.Intent, odd.Path, err)
		}
	}
	for _, odd := range taken {
		if b, _, ok, err := c.Read(t.Context(), odd.Path); err != nil || !ok || string(b) != odd.Path {
			t.Errorf("%s: %q reads %q, %v, %v", odd.Intent, odd.Path, b, ok, err)
		}
		if b := object(t, nc, "acme", odd.Path); string(b) != odd.Path {
			t.Errorf("%s: object %q has %q", odd.Intent, odd.Path, b)
		}
	}
	all, err := c.List(t.Context(), "")
	if err != nil || len(all) != len(taken) {
		t.Errorf("%d files listed of %d, %v", len(all), len(taken), err)
	}
	for _, odd := range taken {
		if ok, err := c.Delete(t.Context(), odd.Path); err != nil || !ok {
			t.Errorf("%s: delete %q: %v, %v", odd.Intent, odd.Path, ok, err)
		}
	}
}

// What another NATS client put into the store under a name that is none is not
// listed, and keeps nobody from the other files.
func TestHostileNamesInTheStore(t *testing.T) {
	s := natstest.Start(t)
	start(t, s)
	nc := s.Connect()
	c := client.New(nc, "acme")
	if _, err := c.Write(t.Context(), "mine", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	bucket := subject.FilesBucket("acme")
	store := func(under, body string) {
		t.Helper()
		m, err := nc.Request("$O."+bucket+".M."+subject.PathToken(under), []byte(body), requestLimit)
		var ack struct{ Seq uint64 }
		if err == nil {
			err = json.Unmarshal(m.Data, &ack)
		}
		if err != nil || ack.Seq == 0 {
			t.Fatalf("%q was not stored: %v", under, err)
		}
	}
	for i, hostile := range pathstest.Refused() {
		if hostile.Path == "" || len(hostile.Path) > 1100 {
			continue // no subject
		}
		store(hostile.Path, fmt.Sprintf(`{"name":%s,"bucket":%q,"nuid":"evil%d","size":4,"chunks":1}`, quote(hostile.Path), bucket, i))
	}
	store("other", fmt.Sprintf(`{"name":"mine","bucket":%q,"nuid":"evil","size":4,"chunks":1}`, bucket)) // poses as mine
	store("garbage", `{"name":`)
	all, err := c.List(t.Context(), "")
	if err != nil || len(all) != 1 || all[0].Path != "mine" {
		t.Errorf("listed %+v, %v", all, err)
	}
	if b, _, ok, err := c.Read(t.Context(), "mine"); err != nil || !ok || string(b) != "mine" {
		t.Errorf("%q, %v, %v", b, ok, err)
	}
	if _, err := c.Append(t.Context(), "mine", []byte("!")); err != nil {
		t.Error(err)
	}
}
