package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// Tools that keep a list and a log in files, through writeFile and readFile,
// which the model never sees; and what they wrote, byte for byte, in the mirror.
func TestMembersExample(t *testing.T) {
	p, cli := up(t)
	harness.Start(t, builder.Build(t, "../examples/cmd/examples-worker"), "--server", p.URL)
	cli.OK(t, "apply", file(t, "agents.json", `{"agentId":"club","tools":{"registerMember":{},"logEvent":{},"saveThumbnail":{}}}`), "-t", "acme")
	cli.OK(t, "apply", file(t, "files.json", `{"agentId":"files","tools":{"readFile":{},"writeFile":{}}}`), "-t", "acme")
	for deadline := time.Now().Add(20 * time.Second); ; {
		var r message.AgentToolsReply
		cli.JSON(t, &r, "get", "tools", "-t", "acme", "-a", "club")
		if len(r.Tools) == 3 {
			break // and neither writeFile nor readFile
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", r)
		}
		<-time.After(50 * time.Millisecond)
	}
	var forModel []struct {
		Function struct{ Name string }
	}
	out := cli.OK(t, "get", "tools", "-t", "acme", "-a", "club", "-o", "openai")
	if err := json.Unmarshal([]byte(out), &forModel); err != nil || len(forModel) != 3 || forModel[0].Function.Name != "logEvent" {
		t.Errorf("%s, %v", out, err)
	}
	call := func(agent, tool, arguments string) harness.Result {
		t.Helper()
		return cli.Run(t, "call", tool, arguments, "-t", "acme", "-a", agent, "-c", "chat1")
	}
	answers := func(agent, tool, arguments, want string) {
		t.Helper()
		if r := call(agent, tool, arguments); r.Code != 0 || strings.TrimSpace(r.Stdout) != want {
			t.Errorf("%s %s: exit %d\ngot  %s\nwant %s\n%s", tool, arguments, r.Code, r.Stdout, want, r.Stderr)
		}
	}
	if r := call("club", "readFile", `{"path":"mitglieder.json"}`); r.Code != 1 || !strings.Contains(r.Stderr, "not_allowed") {
		t.Errorf("an agent it is not granted to reads: %+v", r)
	}

	answers("files", "readFile", `{"path":"mitglieder.json"}`, `{"success":true,"exists":false,"path":"mitglieder.json","content":null}`)
	if r := call("club", "registerMember", `{"name":"Jürgen Groß","email":"j@example.org","eintrittsdatum":"2026-05-01","disziplin":"Rudern"}`); r.Code != 0 || !strings.Contains(r.Stdout, `"total":1`) {
		t.Fatalf("%+v", r)
	}
	if r := call("club", "registerMember", `{"name":"Other","email":"J@EXAMPLE.org","disziplin":"Rudern"}`); r.Code != 1 || !strings.Contains(r.Stderr, "Bereits eingetragen: Jürgen Groß") {
		t.Errorf("registered twice: %+v", r)
	}
	for _, event := range []string{"first", "zweites"} {
		if r := call("club", "logEvent", fmt.Sprintf(`{"event":%q}`, event)); r.Code != 0 {
			t.Errorf("%+v", r)
		}
	}
	if r := call("club", "saveThumbnail", `{"id":"one"}`); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	answers("files", "writeFile", `{"path":"a/b.bin","content":"AP8=","encoding":"base64","mode":"create"}`, `{"success":true,"path":"a/b.bin","mode":"create","bytes_written":2,"size":2}`)
	answers("files", "writeFile", `{"path":"a/b.txt","content":"Grü"}`, `{"success":true,"path":"a/b.txt","mode":"overwrite","bytes_written":4,"size":4}`)
	answers("files", "writeFile", `{"path":"a/b.txt","content":"ße","mode":"append"}`, `{"success":true,"path":"a/b.txt","mode":"append","bytes_written":3,"size":7}`)
	var info message.FileInfo
	cli.JSON(t, &info, "files", "stat", "a/b.txt", "-t", "acme")
	answers("files", "readFile", `{"path":"a/b.txt"}`, `{"success":true,"exists":true,"path":"a/b.txt","content":"Grüße","size":7,"modified":"`+info.Modified+`"}`)
	answers("files", "readFile", `{"path":"a/b.txt","encoding":"base64"}`, `{"success":true,"exists":true,"path":"a/b.txt","content":"R3LDvMOfZQ==","size":7,"modified":"`+info.Modified+`"}`)

	dir := t.TempDir()
	cli.OK(t, "sync", "--dir", dir, "-t", "acme")
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, "config/tenants/acme/files", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var list []struct{ Created string }
	if err := json.Unmarshal([]byte(read("mitglieder.json")), &list); err != nil || len(list) != 1 {
		t.Fatalf("%v: %s", err, read("mitglieder.json"))
	}
	want := `[
    {
        "name": "Jürgen Groß",
        "email": "j@example.org",
        "eintrittsdatum": "2026-05-01",
        "disziplin": "Rudern",
        "created": "` + list[0].Created + `"
    }
]
`
	if got := read("mitglieder.json"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "config/tenants/acme/files/logs/*.log"))
	var text string
	for _, name := range logs { // two at a month's end
		text += read("logs/" + filepath.Base(name))
		if _, err := time.Parse("2006-01.log", filepath.Base(name)); err != nil {
			t.Error(err)
		}
	}
	var events []string
	for line := range strings.Lines(text) {
		at, event, _ := strings.Cut(line, "\t")
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			t.Error(err)
		}
		events = append(events, event)
	}
	if strings.Join(events, "") != "{\"event\":\"first\"}\n{\"event\":\"zweites\"}\n" {
		t.Errorf("the log: %q, %v", text, err)
	}
	if png := read("thumbnails/one.png"); !strings.HasPrefix(png, "\x89PNG\r\n\x1a\n") {
		t.Errorf("the thumbnail begins with %q", png[:min(8, len(png))])
	}
}
