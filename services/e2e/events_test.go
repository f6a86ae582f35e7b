package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// events are what the command line prints, one JSON document a line.
func events(t *testing.T, cli harness.CLI, args ...string) (list []message.Event, text string) {
	t.Helper()
	text = cli.OK(t, append([]string{"events", "-o", "json"}, args...)...)
	for l := range strings.Lines(text) {
		var e message.Event
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		list = append(list, e)
	}
	return list, text
}

// Every call that ended stands in the tenant's audit trail once: who, what, how it
// ended. Arguments do only where they are asked for, and no secret ever does.
func TestEveryCallStandsInTheAuditTrail(t *testing.T) {
	const secret = "k3y-of-the-shop-4711"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shop-key"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	p := harness.Up(t, toolbus(t), t.TempDir(), "--secrets-dir", dir)
	cli := harness.CLI{Bin: toolbus(t), URL: p.URL}
	agents := `"agents":[{"agentId":"support","tools":{"writeFile":{"key":{"$secret":"shop-key"}},"readFile":{}}}]`
	call := func(tool, args, chat string) harness.Result {
		return cli.Run(t, "call", tool, args, "-t", "acme", "-a", "support", "-c", chat)
	}
	until := func(n int) ([]message.Event, string) {
		t.Helper()
		end := time.Now().Add(20 * time.Second)
		for {
			list, text := events(t, cli, "-t", "acme", "-a", "support")
			if len(list) >= n || time.Now().After(end) {
				return list, text
			}
		}
	}
	cli.OK(t, "apply", file(t, "agents.json", `{`+agents+`}`), "-t", "acme")
	if r := call("writeFile", `{"path":"a.txt","content":"quiet"}`, "chat 1"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	call("writeFile", `{"pth":"a.txt"}`, "chat 1")
	call("deleteEverything", `{}`, "chat 1") // nobody hosts it: nobody ran it
	cli.OK(t, "submit", "readFile", `{"path":"a.txt"}`, "--wait", "-t", "acme", "-a", "support")
	list, text := until(4)
	var got []string
	for _, e := range list {
		got = append(got, e.Kind+" "+e.Tool+" "+e.Outcome)
		if e.Kind != message.EventConfig && (e.CallID == "" || e.WorkerID == "" || e.AgentID != "support" || e.ArgumentsBytes == 0) {
			t.Errorf("%+v", e)
		}
	}
	if want := "config  applied, call writeFile ok, call writeFile invalid_arguments, submit readFile ok"; strings.Join(got, ", ") != want {
		t.Errorf("the trail is %s,\nwant %s", strings.Join(got, ", "), want)
	}
	if strings.Contains(text, "quiet") || strings.Contains(text, `"arguments"`) {
		t.Errorf("arguments nobody asked for:\n%s", text)
	}
	if other, _ := events(t, cli, "-t", "globex"); len(other) != 0 {
		t.Errorf("another tenant sees %v", other)
	}

	cli.OK(t, "apply", file(t, "agents.json", `{"tenant":{"events":{"arguments":true}},`+agents+`}`), "-t", "acme")
	// A worker learns of it within moments.
	deadline := time.Now().Add(20 * time.Second)
	for n := 5; ; n++ {
		call("writeFile", `{"path":"b.txt","content":"key: `+secret+`","mode":"overwrite"}`, "chat 2")
		list, text = until(n)
		if last := list[len(list)-1]; len(last.Arguments) > 0 {
			if !strings.Contains(string(last.Arguments), "[redacted]") || !strings.Contains(string(last.Arguments), "b.txt") {
				t.Errorf("arguments %s", last.Arguments)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the trail shows no arguments")
		}
	}
	if strings.Contains(text, secret) {
		t.Errorf("the trail holds a secret:\n%s", text)
	}
}

// --follow misses nothing between the past and the present, and shows nothing twice.
func TestEventsAreFollowed(t *testing.T) {
	p, cli := up(t)
	cli.OK(t, "apply", file(t, "agents.json", `{"agentId":"support","tools":{"writeFile":{},"readFile":{}}}`), "-t", "acme")
	const past, present = 3, 5
	read := func() {
		cli.OK(t, "call", "readFile", `{"path":"none.txt"}`, "-t", "acme", "-a", "support")
	}
	for range past {
		read()
	}
	cmd := exec.CommandContext(t.Context(), cli.Bin, "events", "-s", p.URL, "-t", "acme", "--kind", "call", "--follow",
		"--count", "8", "--timeout", "30s", "-o", "json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		var e message.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if seen[e.CallID] {
			t.Errorf("call %s is shown twice", e.CallID)
		}
		seen[e.CallID] = true
		if n == 0 { // it listens
			for range present {
				read()
			}
		}
	}
	if err := cmd.Wait(); err != nil || len(seen) != past+present {
		t.Errorf("%d calls shown, want %d; %v", len(seen), past+present, err)
	}
}
