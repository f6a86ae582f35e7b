package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/telemetry"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

func TestBadInput(t *testing.T) {
	_, cli := up(t)
	applyAgent(t, cli, "acme", "bot")
	cli.OK(t, "apply", file(t, "c.json", `{"agentId":"other","tools":{"readFile":{},"nowhereHosted":{}}}`), "-t", "acme")
	bot := []string{"-t", "acme", "-a", "bot", "-c", "c1"}
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"unknown tenant":             {[]string{"call", "readFile", `{"path":"x"}`, "-t", "nobody", "-a", "bot"}, 1, []string{"not_found"}},
		"unknown agent":              {[]string{"call", "readFile", `{"path":"x"}`, "-t", "acme", "-a", "nobody"}, 1, []string{"not_found"}},
		"agent of another":           {[]string{"get", "agents", "bot", "-t", "globex"}, 1, []string{"not_found"}},
		"unknown tool":               {append([]string{"call", "bogus"}, bot...), 1, []string{"unavailable", "bogus"}},
		"unhosted tool":              {[]string{"call", "nowhereHosted", "-t", "acme", "-a", "other"}, 1, []string{"unavailable", "nowhereHosted"}},
		"ungranted tool":             {[]string{"call", "writeFile", `{"path":"x","content":""}`, "-t", "acme", "-a", "other"}, 1, []string{"not_allowed", "writeFile"}},
		"missing argument":           {append([]string{"call", "writeFile", `{"path":"x"}`}, bot...), 1, []string{"invalid_arguments", "content: "}},
		"unknown argument":           {append([]string{"call", "readFile", `{"path":"x","pfad":"y"}`}, bot...), 1, []string{"invalid_arguments", "pfad: "}},
		"argument of a type":         {append([]string{"call", "readFile", `{"path":7}`}, bot...), 1, []string{"invalid_arguments", "path: "}},
		"arguments no object":        {append([]string{"call", "readFile", `[1]`}, bot...), 1, []string{"invalid_arguments"}},
		"malformed arguments":        {append([]string{"call", "readFile", `{"path":`}, bot...), 1, []string{"invalid_arguments", "arguments: "}},
		"tools as no model has them": {[]string{"get", "tools", "-o", "gemini"}, 2, []string{"output", "json, table, openai, anthropic or mcp"}},
		"agents for a model":         {[]string{"get", "agents", "-t", "acme", "-o", "openai"}, 2, []string{"output", "json or table"}},
		"tools of nobody":            {[]string{"get", "tools", "-t", "acme", "-a", "nobody"}, 1, []string{"not_found"}},
		"agent of nobody":            {[]string{"get", "agents", "nobody", "-t", "acme"}, 1, []string{"not_found"}},
		"missing key":                {[]string{"state", "get", "k", "-t", "acme", "-n", "n", "-c", "c"}, 1, []string{"not_found", `"k"`}},
		"empty key":                  {[]string{"state", "get", "", "-t", "acme", "-n", "n", "-c", "c"}, 1, []string{"invalid_request", "key: "}},
		"bad ttl":                    {[]string{"state", "set", "k", "1", "--ttl", "soon", "-t", "acme", "-n", "n", "-c", "c"}, 1, []string{"invalid_request", "ttl: "}},
		"missing file":               {[]string{"files", "cat", "none", "-t", "acme"}, 1, []string{"not_found", `"none"`}},
		"path traversal":             {[]string{"files", "cat", "../x", "-t", "acme"}, 1, []string{"invalid_request", "path: "}},
		"absolute path":              {[]string{"files", "stat", "/etc/passwd", "-t", "acme"}, 1, []string{"invalid_request", "path: "}},
		"bad agent name":             {[]string{"apply", file(t, "c.json", `{"agents":[{"agentId":"a.b"}]}`), "-t", "acme"}, 1, []string{"invalid_request", "agents[0].agentId: "}},
		"unknown field":              {[]string{"apply", file(t, "c.json", `{"agents":[{"agentId":"a","tols":{}}]}`), "-t", "acme"}, 1, []string{"invalid_request", "agents[0].tols: "}},
		"bad cron":                   {[]string{"apply", file(t, "c.yaml", "agents:\n- agentId: a\n  scheduler:\n  - {cron: 'x', taskMessage: m}\n"), "-t", "acme"}, 1, []string{"invalid_request", "agents[0].scheduler[0].cron: "}},
		"faults of two files":        {[]string{"apply", file(t, "one.json", `{"agentId":"a"}`), file(t, "two.json", `{"agents":[{"agentId":"b","tols":{}}]}`), "-t", "acme"}, 1, []string{"invalid_request", "two.json: agents[0].tols: "}},
		"an agent twice":             {[]string{"apply", file(t, "c.json", `{"agents":[{"agentId":"a"},{"agentId":"a"}]}`), "-t", "acme"}, 1, []string{"invalid_request", "agents[1].agentId"}},
		"missing tenant":             {[]string{"get", "agents"}, 2, []string{"tenant: is required"}},
		"tenant with wildcard":       {[]string{"get", "agents", "-t", "*"}, 1, []string{"invalid_request", "tenant: "}},
		"unknown verb":               {[]string{"bogus"}, 2, []string{"bogus"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := cli.Run(t, c.args...)
			if r.Code != c.code || r.Stdout != "" {
				t.Errorf("exit %d, want %d; stdout %q", r.Code, c.code, r.Stdout)
			}
			for _, want := range c.want {
				if !strings.Contains(r.Stderr, want) {
					t.Errorf("stderr %q does not contain %q", r.Stderr, want)
				}
			}
		})
	}
	// Nothing of the refused configuration was applied.
	var left message.RegistryListing
	cli.JSON(t, &left, "get", "agents", "-t", "acme")
	if len(left.Agents) != 2 || left.Agents[0].Config.AgentID != "bot" || left.Agents[1].Config.AgentID != "other" {
		t.Errorf("agents: %+v", left.Agents)
	}
}

func TestApply(t *testing.T) {
	_, cli := up(t)
	yaml := file(t, "c.yaml", "agents:\n- agentId: one\n  tools: {readFile: {}}\n- agentId: two\n  tools: {readFile: {}}\n")
	apply := func(args ...string) (r message.RegistryApplied) {
		cli.JSON(t, &r, append([]string{"apply", "-t", "acme"}, args...)...)
		return r
	}
	if r := apply(yaml, "--dry-run"); len(r.Agents) != 2 || !r.Agents[0].Changed {
		t.Errorf("dry run: %+v", r)
	}
	var list message.RegistryListing
	if cli.JSON(t, &list, "get", "agents", "-t", "acme"); len(list.Agents) != 0 {
		t.Errorf("a dry run applied %+v", list)
	}
	first := apply(yaml)
	if len(first.Agents) != 2 || !first.Agents[0].Changed || first.Agents[0].Revision == 0 {
		t.Errorf("%+v", first)
	}
	if r := apply(yaml); r.Agents[0].Changed || r.Agents[0].Revision != first.Agents[0].Revision {
		t.Errorf("applied again: %+v", r)
	}
	r := apply("-f", file(t, "one.json", `{"agentId":"one","tools":{}}`), "--prune")
	if !r.Agents[0].Changed || len(r.Removed) != 1 || r.Removed[0] != "two" {
		t.Errorf("pruned: %+v", r)
	}
	tenant := file(t, "tenant.json", `{"agents":[],"tenant":{"files":{"maxFiles":7}}}`)
	if out := cli.OK(t, "apply", tenant, "-t", "acme", "--dry-run"); !strings.HasSuffix(out, "\nthe tenant's own configuration: would be applied\n") {
		t.Errorf("a dry run of the tenant's own configuration: %q", out)
	}
	if out := cli.OK(t, "apply", tenant, "-t", "acme"); !strings.HasSuffix(out, "\nthe tenant's own configuration: applied\n") {
		t.Errorf("the tenant's own configuration: %q", out)
	}
	out := cli.Pipe(t, strings.NewReader(`{"agentId":"three","tools":{"nowhereHosted":{}}}`), "apply", "-", "-t", "acme")
	if out.Code != 0 || !strings.Contains(out.Stdout, "three") || strings.Contains(out.Stdout, "tenant") || !strings.Contains(out.Stdout, "changed") || !strings.Contains(out.Stderr, "nowhereHosted") {
		t.Errorf("%+v", out)
	}
}

// Every verb prints exactly one JSON document with -o json.
func TestJSONOutput(t *testing.T) {
	_, cli := up(t)
	cfg := file(t, "agent.json", `{"agentId":"bot","tools":{"writeFile":{},"readFile":{}},
		"scheduler":[{"id":"h","cron":"@hourly","taskMessage":"x"}]}`)
	for _, args := range [][]string{
		{"apply", cfg}, {"get", "agents"}, {"get", "agents", "bot"}, {"get", "tools"}, {"get", "tools", "-a", "bot"},
		{"call", "writeFile", `{"path":"f","content":"x"}`, "-a", "bot"}, {"files", "ls"}, {"files", "stat", "f"}, {"files", "cat", "f"}, {"files", "versions", "f"}, {"files", "mv", "f", "g"}, {"files", "mv", "g", "f", "--overwrite"}, {"files", "rm", "f"},
		{"state", "set", "k", `[1]`, "-n", "n", "-c", "c"}, {"state", "get", "k", "-n", "n", "-c", "c"}, {"state", "all", "-n", "n", "-c", "c"},
		{"state", "all", "-n", "none", "-c", "c"}, {"state", "list"}, {"state", "append", "k", "2", "-n", "n", "-c", "c"},
		{"state", "increment", "i", "-n", "n", "-c", "c"}, {"state", "update", `{"u":1}`, "-n", "n", "-c", "c"}, {"state", "watch", "--current", "--count", "1"},
		{"store", "set", "k", "v", "-a", "bot", "--tool", "x"}, {"store", "get", "k", "-a", "bot", "--tool", "x"}, {"store", "list", "-a", "bot", "--tool", "x"},
		{"store", "delete", "k", "-a", "bot", "--tool", "x"}, {"state", "delete", "k", "-n", "n", "-c", "c"}, {"state", "clear", "-n", "n", "-c", "c"},
		{"submit", "readFile", `{"path":"f"}`, "-a", "bot"}, {"submit", "readFile", `{"path":"f"}`, "-a", "bot", "--wait", "--call-id", "c"},
		{"result", "c", "-a", "bot"}, {"cancel", "c", "-a", "bot"}, {"get", "jobs"}, {"get", "wakes"}, {"get", "wakes", "--dead"},
		{"wake", "send", "x", "-a", "bot"}, {"job", "history", "h", "-a", "bot"}, {"job", "pause", "h", "-a", "bot"},
		{"job", "resume", "h", "-a", "bot"}, {"job", "trigger", "h", "-a", "bot"},
		{"sync", "--dir", t.TempDir()}, {"version"},
	} {
		out := cli.OK(t, append(args, "-t", "acme", "-o", "json")...)
		dec := json.NewDecoder(strings.NewReader(out))
		var v map[string]any
		if err := dec.Decode(&v); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
			continue
		}
		if err := dec.Decode(&v); err != io.EOF {
			t.Errorf("%v: more than one document\n%s", args, out)
		}
	}
}

func TestStateAndFilesVerbs(t *testing.T) {
	_, cli := up(t)
	applyAgent(t, cli, "acme", "bot")
	pad := []string{"-t", "acme", "-n", "n", "-c", "chat 1"}
	if out := cli.OK(t, append([]string{"state", "all"}, pad...)...); strings.TrimSpace(out) != "{}" {
		t.Errorf("all of nothing: %q", out)
	}
	cli.OK(t, append([]string{"state", "set", "code", `"]C1 & <x>"`}, pad...)...)
	if out := cli.OK(t, append([]string{"state", "get", "code"}, pad...)...); out != "\"]C1 & <x>\"\n" {
		t.Errorf("get: %q", out)
	}
	if out := cli.OK(t, append([]string{"state", "all"}, pad...)...); out != "{\n  \"code\": \"]C1 & <x>\"\n}\n" {
		t.Errorf("all: %q", out)
	}
	if out := cli.OK(t, "state", "list", "-t", "acme"); !strings.Contains(out, "chat 1") {
		t.Errorf("list: %q", out)
	}
	cli.OK(t, append([]string{"state", "clear"}, pad...)...)
	if r := cli.Run(t, append([]string{"state", "get", "code"}, pad...)...); r.Code != 1 || !strings.Contains(r.Stderr, "not_found") {
		t.Errorf("after clear: %+v", r)
	}

	// Bytes come back as they are, also more than fit one message.
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = byte(i * 7 >> 3)
	}
	for path, content := range map[string][]byte{"bin/small": {0, 0xff, 0xfe, '\n'}, "bin/big": big, "bin/empty": {}} {
		args, err := json.Marshal(map[string]any{"path": path, "content": content, "encoding": "base64"})
		if err != nil {
			t.Fatal(err)
		}
		if r := cli.Pipe(t, bytes.NewReader(args), "call", "writeFile", "-", "-t", "acme", "-a", "bot"); r.Code != 0 {
			t.Fatalf("%s: %+v", path, r)
		}
		if got := cli.OK(t, "files", "cat", path, "-t", "acme"); got != string(content) {
			t.Errorf("%s: %d bytes came back of %d", path, len(got), len(content))
		}
	}
	if r := cli.Pipe(t, bytes.NewReader(big), "files", "put", "put/big", "-t", "acme"); r.Code != 0 {
		t.Errorf("put: %+v", r)
	}
	if got := cli.OK(t, "files", "cat", "put/big", "-t", "acme"); got != string(big) {
		t.Errorf("put: %d bytes came back", len(got))
	}
	cli.OK(t, "files", "put", "put/log", file(t, "a", "a\n"), "--mode", "append", "-t", "acme")
	cli.OK(t, "files", "put", "put/log", file(t, "b", "b\n"), "--mode", "append", "-t", "acme")
	if got := cli.OK(t, "files", "cat", "put/log", "-t", "acme"); got != "a\nb\n" {
		t.Errorf("appended: %q", got)
	}
	if r := cli.Run(t, "files", "put", "put/log", file(t, "c", "c"), "--mode", "create", "-t", "acme"); r.Code != 1 || !strings.Contains(r.Stderr, "conflict") {
		t.Errorf("created twice: %+v", r)
	}
	if out := cli.OK(t, "files", "ls", "bin/b", "-t", "acme"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "bin/big") {
		t.Errorf("ls: %q", out)
	}
}

func TestFileVersionVerbs(t *testing.T) {
	_, cli := up(t)
	cli.OK(t, "apply", file(t, "t.json", `{"agents":[],"tenant":{"files":{"versions":3}}}`), "-t", "acme")
	for _, content := range []string{"one\n", "two\n", "three\n", "four\n"} {
		cli.OK(t, "files", "put", "f", file(t, "f", content), "-t", "acme")
	}
	cli.OK(t, "files", "mv", "f", "g", "-t", "acme")
	var l message.FileVersionList
	cli.JSON(t, &l, "files", "versions", "g", "-t", "acme")
	if len(l.Versions) != 3 {
		t.Fatalf("%+v", l)
	}
	revision := strconv.FormatUint(l.Versions[2].Revision, 10)
	if got := cli.OK(t, "files", "cat", "g", "--revision", revision, "-t", "acme"); got != "two\n" {
		t.Errorf("the oldest version: %q", got)
	}
	if got := cli.OK(t, "files", "get", "g", "--revision", revision, "-t", "acme"); got != "two\n" {
		t.Errorf("get of the oldest version: %q", got)
	}
	local := filepath.Join(t.TempDir(), "g")
	if r := cli.Run(t, "files", "get", "g", local, "--revision", "1", "-t", "acme"); r.Code != 1 || !strings.Contains(r.Stderr, "conflict") {
		t.Errorf("get of a version that is gone: %+v", r)
	}
	if _, err := os.Stat(local); !os.IsNotExist(err) {
		t.Errorf("what was not fetched is there: %v", err)
	}
	cli.OK(t, "files", "get", "g", local, "--revision", revision, "-t", "acme")
	if got, err := os.ReadFile(local); string(got) != "two\n" {
		t.Errorf("the oldest version in a file: %q, %v", got, err)
	}
	if r := cli.Run(t, "files", "cat", "g", "--revision", "1", "-t", "acme"); r.Code != 1 || !strings.Contains(r.Stderr, "conflict") {
		t.Errorf("a version that is gone: %+v", r)
	}
	cli.OK(t, "files", "restore", "g", revision, "-t", "acme")
	if got := cli.OK(t, "files", "cat", "g", "-t", "acme"); got != "two\n" {
		t.Errorf("restored: %q", got)
	}
	if r := cli.Run(t, "files", "restore", "g", "1", "-t", "acme"); r.Code != 1 || !strings.Contains(r.Stderr, "not_found") {
		t.Errorf("restore of nothing: %+v", r)
	}
}

func TestSubmitVerbs(t *testing.T) {
	_, cli := up(t)
	applyAgent(t, cli, "acme", "bot")
	cli.OK(t, "apply", file(t, "c.json", `{"agentId":"other","tools":{"nowhereHosted":{}}}`), "-t", "acme")
	bot := []string{"-t", "acme", "-a", "bot"}
	id := strings.TrimSpace(cli.OK(t, append([]string{"submit", "writeFile", `{"path":"f","content":"x"}`}, bot...)...))
	content := cli.OK(t, append([]string{"result", id, "--wait", "10s"}, bot...)...)
	if !strings.Contains(content, `"f"`) {
		t.Errorf("content: %q", content)
	}
	var r message.ResultReply
	if cli.JSON(t, &r, append([]string{"result", id}, bot...)...); r.CallID != id || r.State != message.ResultDone || r.Tool != "writeFile" || r.Reply == nil || !r.Reply.Success {
		t.Errorf("%+v", r)
	}
	if got := cli.OK(t, append([]string{"submit", "readFile", `{"path":"f"}`, "--wait", "--call-id", "mine"}, bot...)...); !strings.Contains(got, "x") {
		t.Errorf("waited for: %q", got)
	}
	refused := func(r harness.Result, stdout bool, want ...string) {
		t.Helper()
		if r.Code != 1 || (r.Stdout != "") != stdout {
			t.Errorf("%+v", r)
		}
		for _, w := range want {
			if !strings.Contains(r.Stderr, w) {
				t.Errorf("stderr %q does not contain %q", r.Stderr, w)
			}
		}
	}
	// What could not be served is told when the result is asked for.
	refused(cli.Run(t, append([]string{"submit", "readFile", `{"pfad":"f"}`, "--wait", "--call-id", "bad"}, bot...)...), false, "invalid_arguments: call bad: ", "pfad: ")
	refused(cli.Run(t, append([]string{"result", "bad"}, bot...)...), false, "invalid_arguments", "pfad: ")
	refused(cli.Run(t, append([]string{"result", "bad", "-o", "json"}, bot...)...), true, "invalid_arguments")
	refused(cli.Run(t, append([]string{"result", "never"}, bot...)...), false, "not_found", "never")
	// What nobody hosts waits.
	other := []string{"-t", "acme", "-a", "other"}
	id = strings.TrimSpace(cli.OK(t, append([]string{"submit", "nowhereHosted"}, other...)...))
	refused(cli.Run(t, append([]string{"result", id, "--wait", "100ms"}, other...)...), false, "timeout", id)
	refused(cli.Run(t, append([]string{"result", id, "-o", "json"}, other...)...), true, "timeout", id)
	cli.OK(t, append([]string{"cancel", id}, other...)...) // changes nothing
	refused(cli.Run(t, append([]string{"submit", "nowhereHosted", "--wait", "--call-id", "late", "--timeout", "500ms"}, other...)...), false, "timeout", "late")
}

func TestCancelVerb(t *testing.T) {
	p, cli := up(t)
	begun := make(chan struct{})
	slow := tool.New("slow", "Takes its time.", func(ctx context.Context, _ *tool.Call, _ struct{}) (tool.Result, error) {
		close(begun)
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	host(t, p.URL, slow)
	cli.OK(t, "apply", file(t, "c.json", `{"agentId":"bot","tools":{"slow":{}}}`), "-t", "acme")
	id := strings.TrimSpace(cli.OK(t, "submit", "slow", "-t", "acme", "-a", "bot"))
	<-begun
	cli.OK(t, "cancel", id, "-t", "acme", "-a", "bot")
	if r := cli.Run(t, "result", id, "--wait", "10s", "-t", "acme", "-a", "bot"); r.Code != 1 || !strings.Contains(r.Stderr, "cancelled") {
		t.Errorf("%+v", r)
	}
}

// Waiting may end before the call does, which goes on then.
func TestSubmitWaitsNoLongerThanAsked(t *testing.T) {
	p, cli := up(t)
	end := make(chan struct{})
	host(t, p.URL, tool.New("slow", "Takes its time.", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		<-end
		return tool.OK("done"), nil
	}))
	cli.OK(t, "apply", file(t, "c.json", `{"agentId":"bot","tools":{"slow":{}}}`), "-t", "acme")
	r := cli.Run(t, "submit", "slow", "--call-id", "c1", "--wait", "--timeout", "300ms", "-t", "acme", "-a", "bot")
	if r.Code != 1 || !strings.Contains(r.Stderr, "timeout: call c1 has not ended within 300ms; it goes on") {
		t.Errorf("%+v", r)
	}
	// While one is under way, nobody can tell it from one that never was.
	for _, id := range []string{"c1", "never"} {
		if r := cli.Run(t, "result", id, "-t", "acme", "-a", "bot"); r.Code != 1 || !strings.Contains(r.Stderr, "no end of call "+id+" is known") {
			t.Errorf("%+v", r)
		}
	}
	close(end)
	if got := cli.OK(t, "result", "c1", "--wait", "10s", "-t", "acme", "-a", "bot"); got != "done\n" {
		t.Errorf("got %q", got)
	}
}

func TestProgressIsShown(t *testing.T) {
	p, cli := up(t)
	shown := make(chan struct{})
	host(t, p.URL, tool.New("steps", "Goes in steps.", func(ctx context.Context, call *tool.Call, _ struct{}) (tool.Result, error) {
		call.Progress("half\u009b")
		select {
		case <-shown:
			return tool.OK("done"), nil
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		}
	}))
	cli.OK(t, "apply", file(t, "c.json", `{"agentId":"bot","tools":{"steps":{}}}`), "-t", "acme")
	cmd := exec.CommandContext(t.Context(), toolbus(t), "call", "steps", "--progress", "-t", "acme", "-a", "bot", "-s", p.URL, "--timeout", "10s")
	var out bytes.Buffer
	stderr := firstWrite{then: shown}
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil || out.String() != "done\n" || stderr.all.String() != "\"half\ufffd\"\n" {
		t.Errorf("%v, stdout %q, stderr %q", err, out.String(), stderr.all.String())
	}
}

// firstWrite closes then when something has been written.
type firstWrite struct {
	all  bytes.Buffer
	then chan struct{}
}

func (w *firstWrite) Write(b []byte) (int, error) {
	if w.all.Len() == 0 {
		close(w.then)
	}
	return w.all.Write(b)
}

func TestJobVerbs(t *testing.T) {
	p, cli := up(t)
	look := func(context.Context, *tool.JobCall) (tool.JobResult, error) { return tool.Wake("look here"), nil }
	host(t, p.URL, tool.New("looker", "Looks.", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.OK("x"), nil },
		tool.Job("look", "Look", "Looks.", look)))
	cli.OK(t, "apply", file(t, "c.json", `{"agentId":"bot","tools":{"looker":{}},"timezone":"Europe/Berlin",
		"scheduler":[{"id":"morning","cron":"0 8 * * 1-5","taskMessage":"Good morning"}],
		"toolJobs":[{"jobId":"watch","toolName":"looker","jobTypeId":"look","cron":"0 0 1 1 *"},
			{"jobId":"off","toolName":"looker","jobTypeId":"look","cron":"* * * * * *","enabled":false}]}`), "-t", "acme")
	bot := []string{"-t", "acme", "-a", "bot"}
	jobs := cli.OK(t, "get", "jobs", "-t", "acme")
	for _, want := range []string{"AGENT", "watch", "toolJob", "0 0 1 1 *", "Europe/Berlin", "morning", "schedule", "0 8 * * 1-5", "disabled", "CHECK", "looker/look"} {
		if !strings.Contains(jobs, want) {
			t.Errorf("jobs do not name %q:\n%s", want, jobs)
		}
	}
	tick := strings.TrimSpace(cli.OK(t, append([]string{"job", "trigger", "watch"}, bot...)...))
	var w message.Wake
	out := cli.OK(t, append([]string{"wake", "watch", "--count", "1", "--timeout", "20s", "-o", "json"}, bot...)...)
	if err := json.Unmarshal([]byte(out), &w); err != nil || w.Message != "look here" || w.Source != (message.WakeSource{Kind: "toolJob", ID: "watch", Tool: "looker"}) {
		t.Errorf("%+v, %v: %s", w, err, out)
	}
	var h message.SchedulerHistory
	if cli.JSON(t, &h, append([]string{"job", "history", "watch"}, bot...)...); len(h.Slots) != 1 || h.Slots[0].TickID != tick || h.Slots[0].WakeID != w.WakeID {
		t.Errorf("%+v, want one of %s", h, tick)
	}
	if got := cli.OK(t, append([]string{"job", "history", "watch"}, bot...)...); !strings.Contains(got, "ran (wake)") {
		t.Errorf("history: %s", got)
	}
	// When it ran last and when it runs next are in one time zone.
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	ended, err := time.Parse(time.RFC3339, h.Slots[0].EndedAt)
	if err != nil {
		t.Fatal(err)
	}
	want := ended.In(berlin).Format(time.RFC3339) + " ran (wake)"
	if got := cli.OK(t, append([]string{"get", "jobs"}, bot...)...); !strings.Contains(got, want) {
		t.Errorf("jobs do not name %q:\n%s", want, got)
	}
	if got := cli.OK(t, append([]string{"job", "pause", "watch"}, bot...)...); got != "paused\n" {
		t.Errorf("pause: %q", got)
	}
	if got := cli.OK(t, append([]string{"get", "jobs"}, bot...)...); !strings.Contains(got, "paused") {
		t.Errorf("jobs: %s", got)
	}
	if got := cli.OK(t, append([]string{"job", "resume", "watch"}, bot...)...); got != "resumed\n" {
		t.Errorf("resume: %q", got)
	}
	if r := cli.Run(t, append([]string{"job", "trigger", "nope"}, bot...)...); r.Code != 1 || !strings.Contains(r.Stderr, "not_found") {
		t.Errorf("%+v", r)
	}
	if r := cli.Run(t, "get", "jobs", "-t", "acme", "-a", "nobody"); r.Code != 1 || !strings.Contains(r.Stderr, "not_found") {
		t.Errorf("%+v", r)
	}
}

func TestWakeVerbs(t *testing.T) {
	p, cli := up(t)
	applyAgent(t, cli, "acme", "bot")
	bot := []string{"-t", "acme", "-a", "bot"}
	send := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(cli.OK(t, append(append([]string{"wake", "send"}, args...), bot...)...))
	}
	ids := []string{send("first\nof two lines", "-c", "chat 1"), send("second", "-c", "chat 1"), send("third", "--mode", "stateless", "-c", "ignored")}
	watch := func(args ...string) []string {
		t.Helper()
		args = append([]string{"wake", "watch", "-t", "acme", "-a", "bot", "--timeout", "20s", "-o", "json"}, args...)
		out := strings.TrimSpace(cli.OK(t, args...))
		var got []string
		for line := range strings.Lines(out) {
			var w message.Wake
			if err := json.Unmarshal([]byte(line), &w); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			got = append(got, w.WakeID)
		}
		return got
	}
	// Looking at them takes none away; of a chat only the first shows.
	if got := watch("--accept=false", "--count", "2"); !slices.Contains(got, ids[0]) || !slices.Contains(got, ids[2]) {
		t.Errorf("saw %v of %v", got, ids)
	}
	var list message.SchedulerWakeList
	if cli.JSON(t, &list, append([]string{"get", "wakes"}, bot...)...); len(list.Wakes) != 3 || list.Wakes[0].Wake.WakeID != ids[0] || list.Wakes[2].Wake.ChatID != "" {
		t.Errorf("%+v", list)
	}
	if got := cli.OK(t, "get", "wakes", "-t", "acme"); !strings.Contains(got, ids[1]) || !strings.Contains(got, "chat 1") {
		t.Errorf("wakes: %s", got)
	}
	if got := watch("--count", "3"); len(got) != 3 || slices.Index(got, ids[0]) > slices.Index(got, ids[1]) || !slices.Contains(got, ids[2]) {
		t.Errorf("accepted %v of %v", got, ids)
	}
	if cli.JSON(t, &list, append([]string{"get", "wakes"}, bot...)...); len(list.Wakes) != 0 {
		t.Errorf("left: %+v", list)
	}
	if cli.JSON(t, &list, append([]string{"get", "wakes", "--dead"}, bot...)...); len(list.Wakes) != 0 {
		t.Errorf("dead: %+v", list)
	}

	// It shows what comes while it runs, until SIGINT, in plain words.
	w := harness.Start(t, toolbus(t), append([]string{"wake", "watch", "--server", p.URL}, bot...)...)
	later := send("in a while\n\x1b[31mred", "--in", "200ms", "-c", "chat 1")
	if first := w.FirstLine(); first != later+"  chat chat 1  from api "+strings.TrimPrefix(later, "acme.bot.") {
		t.Errorf("got %q, want %s", first, later)
	}
	if code := w.Stop(syscall.SIGINT); code != 0 || !strings.HasSuffix(w.Stdout(), "\n    in a while\n    \ufffd[31mred\n") {
		t.Errorf("exit %d, %q", code, w.Stdout())
	}
	for want, args := range map[string][]string{
		"at: ":                 {"wake", "send", "x", "--at", "tomorrow"},
		"in: ":                 {"wake", "send", "x", "--in", "-1s"},
		"expiresAfter: ":       {"wake", "send", "x", "--expires-after", "0s"},
		"message: is required": {"wake", "send", ""},
		"timeout: no more":     {"wake", "watch", "--timeout", "200ms"},
		"agent \"nobody\"":     {"wake", "watch", "-a", "nobody", "--count", "1"},
	} {
		if r := cli.Run(t, append(slices.Clone(bot), args...)...); r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := cli.Pipe(t, strings.NewReader("from stdin\n"), append([]string{"wake", "send", "-"}, bot...)...); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	if cli.JSON(t, &list, append([]string{"get", "wakes"}, bot...)...); len(list.Wakes) != 1 || list.Wakes[0].Wake.Message != "from stdin" {
		t.Errorf("%+v", list)
	}
}

// host runs a worker with tools in this process.
func host(t *testing.T, url string, tools ...tool.Tool) {
	t.Helper()
	cfg := worker.DefaultConfig()
	cfg.Bus.Server = url
	w, err := worker.New(cfg, tools, telemetry.Discard(), telemetry.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A tool that ran and failed is a result: with -o json it is printed whole, and
// the exit code says so either way.
func TestToolFailure(t *testing.T) {
	p, cli := up(t)
	refuse := tool.New("refuse", "Refuses.", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Fail("the parcel is on its way already"), nil
	})
	host(t, p.URL, refuse)
	cli.OK(t, "apply", file(t, "c.json", `{"agentId":"bot","tools":{"refuse":{}}}`), "-t", "acme")
	args := []string{"call", "refuse", "-t", "acme", "-a", "bot"}
	r := cli.Run(t, args...)
	if r.Code != 1 || r.Stdout != "" || r.Stderr != "toolbus: the parcel is on its way already\n" {
		t.Errorf("%+v", r)
	}
	r = cli.Run(t, append(args, "-o", "json")...)
	var reply message.CallReply
	if err := json.Unmarshal([]byte(r.Stdout), &reply); err != nil || r.Code != 1 || reply.Success || reply.ErrorMessage == "" {
		t.Errorf("%+v: %v", r, err)
	}
}

// A service that is down is unavailable, within the time given.
func TestNobodyAnswers(t *testing.T) {
	p, cli := up(t)
	if code := p.Stop(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if r := cli.Run(t, "get", "tools"); r.Code != 1 || !strings.Contains(r.Stderr, "unavailable") {
		t.Errorf("%+v", r)
	}
}

// Calls that run while the process is told to stop are answered before it ends.
func TestStopAnswersWhatRuns(t *testing.T) {
	p, cli := up(t)
	applyAgent(t, cli, "acme", "bot")
	const calls = 20
	results := make(chan harness.Result, calls)
	for i := range calls {
		go func() {
			results <- cli.Run(t, "call", "writeFile", fmt.Sprintf(`{"path":"f%d","content":"x"}`, i), "-t", "acme", "-a", "bot")
		}()
	}
	first := <-results
	if first.Code != 0 {
		t.Errorf("%+v", first)
	}
	code := p.Stop(syscall.SIGTERM)
	if code != 0 {
		t.Errorf("exit %d", code)
	}
	for range calls - 1 {
		// Each either succeeded or was told that nobody is there.
		if r := <-results; r.Code != 0 && !strings.Contains(r.Stderr, "unavailable") && !strings.Contains(r.Stderr, "worker_lost") {
			t.Errorf("%+v", r)
		}
	}
}
