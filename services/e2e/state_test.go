package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

func TestStateVerbs(t *testing.T) {
	_, cli := up(t)
	pad := []string{"-t", "acme", "-n", "n", "-c", "chat 1"}
	do := func(args ...string) string {
		t.Helper()
		return cli.OK(t, append(append([]string{"state"}, args...), pad...)...)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		r := cli.Run(t, append(append([]string{"state"}, args...), pad...)...)
		if r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: %+v, want %q", args, r, want)
		}
	}
	var w message.ToolStateWritten
	cli.JSON(t, &w, append([]string{"state", "set", "step", "1", "--if-revision", "0", "--ttl", "+2 hours"}, pad...)...)
	if at, err := time.Parse(time.RFC3339, w.ExpiresAt); err != nil || time.Until(at) > 2*time.Hour || time.Until(at) < time.Hour {
		t.Errorf("--ttl: %+v, %v", w, err)
	}
	refused("conflict", "set", "step", "2", "--if-revision", "0")
	refused(fmt.Sprintf("revision: %d stands", w.Revision), "update", `{"step":2}`, "--if-revision", "1000000")
	if out := do("append", "codes", `"a"`, `"b"`); !strings.HasPrefix(out, "length 2, revision ") {
		t.Errorf("append: %q", out)
	}
	if out := do("append", "codes", `"b"`, `"c"`, "--unique"); !strings.HasPrefix(out, "length 3, ") {
		t.Errorf("append --unique: %q", out)
	}
	if out := do("increment", "step"); out != "2\n" {
		t.Errorf("increment: %q", out)
	}
	if out := do("increment", "step", "--by", "-0.5", "--ttl", "1h"); out != "1.5\n" {
		t.Errorf("increment --by: %q", out)
	}
	refused("invalid_request: key: ", "increment", "codes")
	if out := do("update", `{"direction":"DHL->DPD","draft":null}`, "--delete", "step", "--delete", "never"); !strings.HasPrefix(out, "revision ") {
		t.Errorf("update: %q", out)
	}
	do("update", "--ttl", "3h")
	refused("invalid_request: set: ", "update")
	var all message.ToolStateData
	cli.JSON(t, &all, append([]string{"state", "all"}, pad...)...)
	if b, err := message.Marshal(all.Data); err != nil || string(b) != `{"codes":["a","b","c"],"direction":"DHL->DPD","draft":null}` {
		t.Errorf("all: %s, %v", b, err)
	}
	if at, err := time.Parse(time.RFC3339, all.ExpiresAt); err != nil || time.Until(at) < 2*time.Hour {
		t.Errorf("a new life: %s, %v", all.ExpiresAt, err)
	}
	if out := do("delete", "draft"); out != "deleted\n" {
		t.Errorf("delete: %q", out)
	}
	if out := do("delete", "draft"); out != "there was nothing\n" {
		t.Errorf("delete again: %q", out)
	}

	for i := range 5 {
		cli.OK(t, "state", "set", "k", "1", "-t", "acme", "-n", "list", "-c", fmt.Sprint(i))
	}
	var page message.ToolStateListing
	var chats []string
	for args := []string{"state", "list", "-t", "acme", "-n", "list", "--limit", "2"}; ; args = append(args[:8], "--cursor", page.Cursor) {
		page = message.ToolStateListing{}
		cli.JSON(t, &page, args...)
		for _, d := range page.Documents {
			chats = append(chats, d.ChatID)
		}
		if page.Cursor == "" {
			break
		}
	}
	if strings.Join(chats, "") != "01234" {
		t.Errorf("list --limit --cursor: %q", chats)
	}
	out := cli.OK(t, "state", "list", "-t", "acme", "-n", "list", "--limit", "5")
	if more := cli.OK(t, "state", "list", "-t", "acme", "-n", "list", "--limit", "4"); strings.Contains(out, "--cursor") || !strings.Contains(more, "there are more: go on with --cursor ") {
		t.Errorf("list --limit: %q, and of fewer %q", out, more)
	}
	if page = (message.ToolStateListing{}); len(chats) == 5 {
		if cli.JSON(t, &page, "state", "list", "-t", "acme"); len(page.Documents) != 6 || page.Cursor != "" {
			t.Errorf("list: %+v", page)
		}
	}
	if out := do("clear"); out != "cleared\n" {
		t.Errorf("clear: %q", out)
	}
	if out := do("clear"); out != "there was nothing\n" {
		t.Errorf("clear again: %q", out)
	}
	if out := do("update", "--delete", "x"); out != "there is no document\n" {
		t.Errorf("update of nothing: %q", out)
	}
}

func TestStateWatchVerb(t *testing.T) {
	p, cli := up(t)
	set := func(chat, value string, args ...string) {
		t.Helper()
		cli.OK(t, append([]string{"state", "set", "k", value, "-t", "acme", "-n", "n", "-c", chat}, args...)...)
	}
	set("1", `"before"`)
	out := cli.OK(t, "state", "watch", "-t", "acme", "-c", "1", "--current", "--count", "1", "-o", "json", "--timeout", "20s")
	var ch toolstate.Change
	if err := json.Unmarshal([]byte(out), &ch); err != nil || ch.Kind != toolstate.Written || ch.ChatID != "1" || string(ch.Data["k"]) != `"before"` || ch.Revision == 0 {
		t.Fatalf("%s, %v", out, err)
	}

	// With --current, the first line says that the watch is under way.
	w := harness.Start(t, toolbus(t), "state", "watch", "-t", "acme", "-n", "n", "--current", "-o", "json", "--server", p.URL)
	plain := harness.Start(t, toolbus(t), "state", "watch", "-t", "acme", "--current", "--server", p.URL)
	w.FirstLine()
	if line := plain.FirstLine(); !regexp.MustCompile(`^written  n  1  revision \d+, expires \S+Z  \{"k":"before"\}$`).MatchString(line) {
		t.Errorf("in plain words: %q", line)
	}
	set("2\u2028", `"\u001b[31m"`)
	cli.OK(t, "state", "clear", "-t", "acme", "-n", "n", "-c", "1")
	set("3", "1", "--ttl", "1s")
	lines := func(p *harness.Process) []string { return strings.Split(strings.TrimSuffix(p.Stdout(), "\n"), "\n") }
	deadline := time.Now().Add(20 * time.Second)
	for len(lines(w)) < 5 || len(lines(plain)) < 5 {
		if time.Now().After(deadline) {
			t.Fatalf("not everything came:\n%s\n%s", w.Stdout(), plain.Stdout())
		}
		<-time.After(20 * time.Millisecond)
	}
	var got []string
	for _, line := range lines(w) {
		var ch toolstate.Change
		if err := json.Unmarshal([]byte(line), &ch); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got = append(got, string(ch.Kind)+" "+ch.ChatID)
	}
	if want := []string{"written 1", "written 2\u2028", "cleared 1", "written 3", "expired 3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if text := plain.Stdout(); strings.ContainsRune(text, '\u2028') || !strings.Contains(text, "\ncleared  n  1\n") || !strings.HasSuffix(text, "\nexpired  n  3\n") {
		t.Errorf("in plain words: %q", text)
	}
	for _, p := range []*harness.Process{w, plain} {
		if code := p.Stop(syscall.SIGINT); code != 0 || p.Stderr() != "" {
			t.Errorf("exit %d, stderr %q", code, p.Stderr())
		}
	}
	if r := cli.Run(t, "state", "watch", "-t", "acme", "--timeout", "300ms"); r.Code != 1 || !strings.Contains(r.Stderr, "timeout: no more changes") {
		t.Errorf("%+v", r)
	}
	if r := cli.Run(t, "state", "watch", "-t", "acme", "-n", "a.b"); r.Code != 1 || !strings.Contains(r.Stderr, "invalid_request: namespace: ") {
		t.Errorf("%+v", r)
	}
}

func TestStoreVerbs(t *testing.T) {
	_, cli := up(t)
	owner := []string{"-t", "acme", "-a", "bot", "--tool", "mail"}
	do := func(args ...string) string {
		t.Helper()
		return cli.OK(t, append(append([]string{"store"}, args...), owner...)...)
	}
	var w message.StoreWritten
	cli.JSON(t, &w, append([]string{"store", "set", "offset", "42", "--if-revision", "0"}, owner...)...)
	if out := do("get", "offset"); out != "42\n" {
		t.Errorf("get: %q", out)
	}
	r := cli.Run(t, append([]string{"store", "set", "offset", "x", "--if-revision", "0"}, owner...)...)
	if r.Code != 1 || !strings.Contains(r.Stderr, "conflict") || !strings.Contains(r.Stderr, fmt.Sprintf("revision: %d stands", w.Revision)) {
		t.Errorf("%+v", r)
	}
	do("set", "of/two ü", "lines\n")
	if out := do("list"); out != "of/two ü\noffset\n" {
		t.Errorf("list: %q", out)
	}
	if out := do("list", "off"); out != "offset\n" {
		t.Errorf("list by prefix: %q", out)
	}
	if out := do("delete", "offset", "--if-revision", fmt.Sprint(w.Revision)); out != "deleted\n" {
		t.Errorf("delete: %q", out)
	}
	if out := do("delete", "offset"); out != "there was nothing\n" {
		t.Errorf("delete again: %q", out)
	}
	if r := cli.Run(t, append([]string{"store", "get", "offset"}, owner...)...); r.Code != 1 || !strings.Contains(r.Stderr, "not_found") {
		t.Errorf("%+v", r)
	}
	var keys message.StoreKeys
	if cli.JSON(t, &keys, append([]string{"store", "list"}, owner...)...); len(keys.Keys) != 1 {
		t.Errorf("%+v", keys)
	}
}

// Three tools share a chat's scratch pad, and its mirror is what one looks into
// when debugging.
func TestCarrierExample(t *testing.T) {
	p, cli := up(t)
	harness.Start(t, builder.Build(t, "../examples/cmd/examples-worker"), "--server", p.URL)
	cli.OK(t, "apply", file(t, "agents.json", `{"agentId":"support","tools":{"addTrackingCode":{},"setRelabelDirection":{},"submitRelabeling":{}}}`), "-t", "acme")
	deadline := time.Now().Add(20 * time.Second)
	for {
		var r message.AgentToolsReply
		cli.JSON(t, &r, "get", "tools", "-t", "acme", "-a", "support")
		if len(r.Tools) == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not hosted: %+v", r)
		}
		<-time.After(50 * time.Millisecond)
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "config/tenants/acme/tmp/state/relabeling_chat1.json")
	call := func(tool, arguments string) {
		t.Helper()
		cli.OK(t, "call", tool, arguments, "-t", "acme", "-a", "support", "-c", "chat1")
	}
	call("addTrackingCode", `{"code":"]C100340434757211819883"}`)
	call("addTrackingCode", `{"code":"8806096235386"}`)
	call("setRelabelDirection", `{"direction":"DHL->DPD"}`)
	cli.OK(t, "sync", "--dir", dir, "-t", "acme")
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "expires_at": "TIME",
  "data": {
    "codes": ["00340434757211819883", "8806096235386"],
    "direction": "DHL->DPD"
  }
}
`
	m := regexp.MustCompile(`"expires_at": "([^"]*)"`).FindSubmatch(got)
	if m == nil {
		t.Fatalf("no time in %s", got)
	}
	if at, err := time.Parse(time.RFC3339, string(m[1])); err != nil || time.Until(at) < 23*time.Hour || time.Until(at) > 24*time.Hour {
		t.Errorf("it expires at %s, %v", m[1], err)
	}
	if s := strings.Replace(string(got), string(m[1]), "TIME", 1); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
	call("submitRelabeling", `{}`)
	cli.OK(t, "sync", "--dir", dir, "-t", "acme")
	if _, err := os.Lstat(name); !os.IsNotExist(err) {
		t.Errorf("after submit it is still there: %v", err)
	}
}

// Chats may have any name: each has a document and a file of its own.
func TestChatsOfAnyName(t *testing.T) {
	p, cli := up(t)
	chats := []string{
		"+49 170/123", "+49 170=2F123", "user@example.com", "User@example.com", "🙂", "🙂🙂", "a.b", "*", ">", "..", "a/../b", "-", "--", "~",
		`"quoted" \`, strings.Repeat("x", 256), strings.Repeat("X", 256), strings.Repeat("🙂", 64), strings.Repeat("ü", 128), strings.Repeat("/", 256),
	}
	c := toolstate.New(connect(t, p.URL), "acme")
	w, err := c.Watch(t.Context(), toolstate.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	told := map[string]string{}
	for i, chat := range chats {
		cli.OK(t, "state", "set", "k", fmt.Sprint(i), "-t", "acme", "-n", "n", "--chat="+chat)
		ch := <-w.Changes()
		told[ch.ChatID] = string(ch.Data["k"])
	}
	for i, chat := range chats {
		if out := cli.OK(t, "state", "get", "k", "-t", "acme", "-n", "n", "--chat="+chat); out != fmt.Sprintln(i) || told[chat] != fmt.Sprint(i) {
			t.Errorf("chat %q: got %q, told %q, want %d", chat, out, told[chat], i)
		}
	}
	var list message.ToolStateListing
	cli.JSON(t, &list, "state", "list", "-t", "acme")
	listed := map[string]bool{}
	for _, d := range list.Documents {
		listed[d.ChatID] = true
	}
	if len(listed) != len(chats) || len(list.Documents) != len(chats) {
		t.Errorf("%d documents are listed, want %d", len(list.Documents), len(chats))
	}
	dir := t.TempDir()
	cli.OK(t, "sync", "--dir", dir, "-t", "acme")
	files, err := os.ReadDir(filepath.Join(dir, "config/tenants/acme/tmp/state"))
	if err != nil || len(files) != len(chats) {
		t.Errorf("%d files, want %d: %v", len(files), len(chats), err)
	}
	values, names := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		names[strings.ToLower(f.Name())] = true
		b, err := os.ReadFile(filepath.Join(dir, "config/tenants/acme/tmp/state", f.Name()))
		var d struct{ Data struct{ K json.Number } }
		if err != nil || json.Unmarshal(b, &d) != nil {
			t.Fatalf("%s: %s, %v", f.Name(), b, err)
		}
		values[d.Data.K.String()] = true
	}
	if len(values) != len(chats) || len(names) != len(chats) {
		t.Errorf("%d values in %d files that differ in more than case, want %d", len(values), len(names), len(chats))
	}
	if want := "n_" + subject.Escape("+49 170/123") + ".json"; !names[strings.ToLower(want)] {
		t.Errorf("no %s in %v", want, names)
	}
}
