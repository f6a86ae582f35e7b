package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

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
		"unknown tenant":       {[]string{"call", "readFile", `{"path":"x"}`, "-t", "nobody", "-a", "bot"}, 1, []string{"not_found"}},
		"unknown agent":        {[]string{"call", "readFile", `{"path":"x"}`, "-t", "acme", "-a", "nobody"}, 1, []string{"not_found"}},
		"agent of another":     {[]string{"get", "agents", "bot", "-t", "globex"}, 1, []string{"not_found"}},
		"unknown tool":         {append([]string{"call", "bogus"}, bot...), 1, []string{"unavailable", "bogus"}},
		"unhosted tool":        {[]string{"call", "nowhereHosted", "-t", "acme", "-a", "other"}, 1, []string{"unavailable", "nowhereHosted"}},
		"ungranted tool":       {[]string{"call", "writeFile", `{"path":"x","content":""}`, "-t", "acme", "-a", "other"}, 1, []string{"not_allowed", "writeFile"}},
		"missing argument":     {append([]string{"call", "writeFile", `{"path":"x"}`}, bot...), 1, []string{"invalid_arguments", "content: "}},
		"unknown argument":     {append([]string{"call", "readFile", `{"path":"x","pfad":"y"}`}, bot...), 1, []string{"invalid_arguments", "pfad: "}},
		"argument of a type":   {append([]string{"call", "readFile", `{"path":7}`}, bot...), 1, []string{"invalid_arguments", "path: "}},
		"arguments no object":  {append([]string{"call", "readFile", `[1]`}, bot...), 1, []string{"invalid_arguments"}},
		"malformed arguments":  {append([]string{"call", "readFile", `{"path":`}, bot...), 1, []string{"invalid_arguments", "arguments: "}},
		"tools of nobody":      {[]string{"get", "tools", "-t", "acme", "-a", "nobody"}, 1, []string{"not_found"}},
		"agent of nobody":      {[]string{"get", "agents", "nobody", "-t", "acme"}, 1, []string{"not_found"}},
		"missing key":          {[]string{"state", "get", "k", "-t", "acme", "-n", "n", "-c", "c"}, 1, []string{"not_found", `"k"`}},
		"empty key":            {[]string{"state", "get", "", "-t", "acme", "-n", "n", "-c", "c"}, 1, []string{"invalid_request", "key: "}},
		"bad ttl":              {[]string{"state", "set", "k", "1", "--ttl", "soon", "-t", "acme", "-n", "n", "-c", "c"}, 1, []string{"invalid_request", "ttl: "}},
		"missing file":         {[]string{"files", "cat", "none", "-t", "acme"}, 1, []string{"not_found", `"none"`}},
		"path traversal":       {[]string{"files", "cat", "../x", "-t", "acme"}, 1, []string{"invalid_request", "path: "}},
		"absolute path":        {[]string{"files", "stat", "/etc/passwd", "-t", "acme"}, 1, []string{"invalid_request", "path: "}},
		"bad agent name":       {[]string{"apply", file(t, "c.json", `{"agents":[{"agentId":"a.b"}]}`), "-t", "acme"}, 1, []string{"invalid_request", "agents[0].agentId: "}},
		"unknown field":        {[]string{"apply", file(t, "c.json", `{"agents":[{"agentId":"a","tols":{}}]}`), "-t", "acme"}, 1, []string{"invalid_request", "agents[0].tols: "}},
		"bad cron":             {[]string{"apply", file(t, "c.yaml", "agents:\n- agentId: a\n  scheduler:\n  - {cron: 'x', taskMessage: m}\n"), "-t", "acme"}, 1, []string{"invalid_request", "agents[0].scheduler[0].cron: "}},
		"faults of two files":  {[]string{"apply", file(t, "one.json", `{"agentId":"a"}`), file(t, "two.json", `{"agents":[{"agentId":"b","tols":{}}]}`), "-t", "acme"}, 1, []string{"invalid_request", "two.json: agents[0].tols: "}},
		"an agent twice":       {[]string{"apply", file(t, "c.json", `{"agents":[{"agentId":"a"},{"agentId":"a"}]}`), "-t", "acme"}, 1, []string{"invalid_request", "agents[1].agentId"}},
		"missing tenant":       {[]string{"get", "agents"}, 2, []string{"tenant: is required"}},
		"tenant with wildcard": {[]string{"get", "agents", "-t", "*"}, 1, []string{"invalid_request", "tenant: "}},
		"unknown verb":         {[]string{"bogus"}, 2, []string{"bogus"}},
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
	out := cli.Pipe(t, strings.NewReader(`{"agentId":"three","tools":{"nowhereHosted":{}}}`), "apply", "-", "-t", "acme")
	if out.Code != 0 || !strings.Contains(out.Stdout, "three") || !strings.Contains(out.Stdout, "changed") || !strings.Contains(out.Stderr, "nowhereHosted") {
		t.Errorf("%+v", out)
	}
}

// Every verb prints exactly one JSON document with -o json.
func TestJSONOutput(t *testing.T) {
	_, cli := up(t)
	cfg := file(t, "agent.json", `{"agentId":"bot","tools":{"writeFile":{},"readFile":{}}}`)
	for _, args := range [][]string{
		{"apply", cfg}, {"get", "agents"}, {"get", "agents", "bot"}, {"get", "tools"}, {"get", "tools", "-a", "bot"},
		{"call", "writeFile", `{"path":"f","content":"x"}`, "-a", "bot"}, {"files", "ls"}, {"files", "stat", "f"}, {"files", "cat", "f"}, {"files", "rm", "f"},
		{"state", "set", "k", `[1]`, "-n", "n", "-c", "c"}, {"state", "get", "k", "-n", "n", "-c", "c"}, {"state", "all", "-n", "n", "-c", "c"},
		{"state", "all", "-n", "none", "-c", "c"}, {"state", "list"}, {"state", "delete", "k", "-n", "n", "-c", "c"}, {"state", "clear", "-n", "n", "-c", "c"},
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

// A tool that ran and failed is a result: with -o json it is printed whole, and
// the exit code says so either way.
func TestToolFailure(t *testing.T) {
	p, cli := up(t)
	refuse := tool.New("refuse", "Refuses.", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Fail("the parcel is on its way already"), nil
	})
	cfg := worker.DefaultConfig()
	cfg.Bus.Server = p.URL
	w, err := worker.New(cfg, []tool.Tool{refuse}, telemetry.Discard(), telemetry.NewRegistry())
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
