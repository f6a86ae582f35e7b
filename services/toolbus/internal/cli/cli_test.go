package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nowhere is a port that refuses connections.
const nowhere = "nats://127.0.0.1:1"

type outcome struct {
	code     int
	out, err string
}

func run(t *testing.T, env map[string]string, stdin string, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := Main(args, Streams{strings.NewReader(stdin), &out, &errs}, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	return outcome{code, out.String(), errs.String()}
}

// fails checks the exit code, that stdout is empty, and the texts on stderr.
func (o outcome) fails(t *testing.T, code int, want ...string) {
	t.Helper()
	if o.code != code || o.out != "" {
		t.Errorf("exit %d, want %d; stdout %q", o.code, code, o.out)
	}
	if !strings.HasPrefix(o.err, "toolbus: ") {
		t.Errorf("stderr does not begin as it should: %q", o.err)
	}
	for _, w := range want {
		if !strings.Contains(o.err, w) {
			t.Errorf("stderr %q does not contain %q", o.err, w)
		}
	}
}

func TestUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"no verb":              {},
		"unknown verb":         {"bogus"},
		"unknown flag":         {"version", "--bogus"},
		"unknown short flag":   {"version", "-z"},
		"flag without value":   {"version", "-o"},
		"bad output":           {"version", "-o", "xml"},
		"empty output":         {"version", "-o", ""},
		"bad timeout":          {"version", "--timeout", "soon"},
		"negative timeout":     {"version", "--timeout", "-1s"},
		"too many arguments":   {"version", "x"},
		"get nothing":          {"get"},
		"get unknown":          {"get", "bogus"},
		"state nothing":        {"state"},
		"state unknown":        {"state", "bogus"},
		"files unknown":        {"files", "bogus"},
		"call no tool":         {"call", "-t", "acme", "-a", "bot"},
		"call no agent":        {"call", "x", "-t", "acme"},
		"call no tenant":       {"call", "x", "-a", "bot"},
		"call too many":        {"call", "x", "{}", "y", "-t", "acme", "-a", "bot"},
		"submit no tool":       {"submit", "-t", "acme", "-a", "bot"},
		"submit no agent":      {"submit", "x", "-t", "acme"},
		"submit too many":      {"submit", "x", "{}", "y", "-t", "acme", "-a", "bot"},
		"result no call":       {"result", "-t", "acme", "-a", "bot"},
		"result no agent":      {"result", "c", "-t", "acme"},
		"result bad wait":      {"result", "c", "-t", "acme", "-a", "bot", "--wait", "soon"},
		"result negative wait": {"result", "c", "-t", "acme", "-a", "bot", "--wait", "-1s"},
		"cancel no call":       {"cancel", "-t", "acme", "-a", "bot"},
		"cancel no tenant":     {"cancel", "c", "-a", "bot"},
		"get jobs no tenant":   {"get", "jobs"},
		"get wakes no tenant":  {"get", "wakes", "--dead"},
		"get wakes argument":   {"get", "wakes", "x", "-t", "acme"},
		"job nothing":          {"job"},
		"job unknown":          {"job", "bogus"},
		"job trigger nothing":  {"job", "trigger", "-t", "acme", "-a", "bot"},
		"job pause no agent":   {"job", "pause", "x", "-t", "acme"},
		"job resume no tenant": {"job", "resume", "x", "-a", "bot"},
		"job history two":      {"job", "history", "x", "y", "-t", "acme", "-a", "bot"},
		"wake nothing":         {"wake"},
		"wake send nothing":    {"wake", "send", "-t", "acme", "-a", "bot"},
		"wake send no agent":   {"wake", "send", "x", "-t", "acme"},
		"wake send bad mode":   {"wake", "send", "x", "-t", "acme", "-a", "bot", "--mode", "loud"},
		"wake send bad in":     {"wake", "send", "x", "-t", "acme", "-a", "bot", "--in", "soon"},
		"wake send empty at":   {"wake", "send", "x", "-t", "acme", "-a", "bot", "--at", ""},
		"wake send at and in":  {"wake", "send", "x", "-t", "acme", "-a", "bot", "--in", "1s", "--at", "2026-03-02T08:00:00Z"},
		"wake watch no agent":  {"wake", "watch", "-t", "acme"},
		"wake watch argument":  {"wake", "watch", "x", "-t", "acme", "-a", "bot"},
		"wake watch count":     {"wake", "watch", "-t", "acme", "-a", "bot", "--count", "-1"},
		"apply no file":        {"apply", "-t", "acme"},
		"apply no tenant":      {"apply", "x.json"},
		"get agents no tenant": {"get", "agents"},
		"get tools no tenant":  {"get", "tools", "-a", "bot"},
		"state get no key":     {"state", "get", "-t", "acme", "-n", "n", "-c", "c"},
		"state get no ns":      {"state", "get", "k", "-t", "acme", "-c", "c"},
		"state get no chat":    {"state", "get", "k", "-t", "acme", "-n", "n"},
		"state get no tenant":  {"state", "get", "k", "-n", "n", "-c", "c"},
		"state all no chat":    {"state", "all", "-t", "acme", "-n", "n"},
		"state list no tenant": {"state", "list"},
		"state list limit":     {"state", "list", "-t", "acme", "--limit", "-1"},
		"state append nothing": {"state", "append", "k", "-t", "acme", "-n", "n", "-c", "c"},
		"state append stdin":   {"state", "append", "k", "-", "-", "-t", "acme", "-n", "n", "-c", "c"},
		"state update two":     {"state", "update", "{}", "{}", "-t", "acme", "-n", "n", "-c", "c"},
		"state set revision":   {"state", "set", "k", "1", "--if-revision", "-1", "-t", "acme", "-n", "n", "-c", "c"},
		"state incr no key":    {"state", "increment", "-t", "acme", "-n", "n", "-c", "c"},
		"state stdin no chat":  {"state", "set", "k", "-", "-t", "acme", "-n", "n"},
		"state watch tenant":   {"state", "watch"},
		"state watch argument": {"state", "watch", "x", "-t", "acme"},
		"state watch count":    {"state", "watch", "-t", "acme", "--count", "-1"},
		"store nothing":        {"store"},
		"store get no key":     {"store", "get", "-t", "acme", "-a", "bot", "--tool", "x"},
		"store get no tool":    {"store", "get", "k", "-t", "acme", "-a", "bot"},
		"store list no agent":  {"store", "list", "-t", "acme", "--tool", "x"},
		"store set no value":   {"store", "set", "k", "-t", "acme", "-a", "bot", "--tool", "x"},
		"store delete none":    {"store", "delete", "k", "--if-revision", "0", "-t", "acme", "-a", "bot", "--tool", "x"},
		"store set revision":   {"store", "set", "k", "v", "--if-revision", "new", "-t", "acme", "-a", "bot", "--tool", "x"},
		"files ls no tenant":   {"files", "ls"},
		"files restore what":   {"files", "restore", "x", "-t", "acme"},
		"files restore when":   {"files", "restore", "x", "yesterday", "-t", "acme"},
		"files cat revision":   {"files", "cat", "x", "--revision", "-1", "-t", "acme"},
		"files versions of":    {"files", "versions", "-t", "acme"},
		"files mv no target":   {"files", "mv", "x", "-t", "acme"},
		"files mv no tenant":   {"files", "mv", "x", "y"},
		"files cat no path":    {"files", "cat", "-t", "acme"},
		"files cat no tenant":  {"files", "cat", "x"},
		"sync no tenant":       {"sync"},
		"sync argument":        {"sync", "x", "-t", "acme"},
		"up argument":          {"up", "x"},
		"up bad listen":        {"up", "--listen", "4222"},
		"up bad sync":          {"up", "--sync", "never"},
		"up bad level":         {"up", "--log-level", "loud"},
		"up bad job timeout":   {"up", "--job-timeout", "-1s"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, nil, "", append(args, "-s", nowhere)...).fails(t, 2, "invalid_request", "--help")
		})
	}
}

func TestUsageNamesTheField(t *testing.T) {
	for want, args := range map[string][]string{
		"tenant: is required":    {"get", "agents"},
		"agent: is required":     {"call", "x", "-t", "acme"},
		"tool: is required":      {"call"},
		"namespace: is required": {"state", "all", "-t", "acme"},
		"chatId: is required":    {"state", "all", "-t", "acme", "-n", "n"},
		"key: is required":       {"state", "get"},
		"callId: is required":    {"result"},
		"entryId: is required":   {"job", "pause"},
		"message: is required":   {"wake", "send"},
		"at: must not be given":  {"wake", "send", "m", "--in", "1s", "--at", "2026-03-02T08:00:00Z", "-t", "acme", "-a", "bot"},
		"mode: \"x\" must be":    {"wake", "send", "m", "--mode", "x", "-t", "acme", "-a", "bot"},
		"path: is required":      {"files", "cat"},
		"file: is required":      {"apply"},
		"output: \"xml\" must":   {"version", "-o", "xml"},
		"listen: \"x\" is not":   {"up", "--listen", "x"},
		"server: is empty":       {"get", "tools", "-s", ""},
		"from: is required":      {"files", "mv"},

		`if-revision: "-1" must be a whole number`: {"files", "rm", "x", "--if-revision", "-1"},
		`revision: "0" must be a revision`:         {"files", "cat", "x", "--revision", "0", "-t", "acme"},
		`revision: "x" must be a revision`:         {"files", "get", "x", "--revision", "x", "-t", "acme"},
		`limit: "many" must be a whole number`:     {"files", "ls", "--limit", "many"},
		`timeout: "5" must be a duration`:          {"files", "ls", "--timeout", "5"},
		`create: "x" must be true or false`:        {"files", "put", "x", "--create=x"},
	} {
		run(t, nil, "", args...).fails(t, 2, want)
	}
}

// A fault is said once: on the first line when it is the only one, else in a
// list.
func TestFaultsAreSaidOnce(t *testing.T) {
	revision := uint64(7)
	conflict := errcode.New(errcode.Conflict, "somebody was faster")
	conflict.Details = &errcode.Details{Revision: &revision}
	a, b := errcode.FieldFault{Field: "cod", Message: "unknown"}, errcode.FieldFault{Field: "code", Message: "is required"}
	other := errcode.New(errcode.InvalidArguments, "these will not do")
	other.Details = &errcode.Details{Fields: []errcode.FieldFault{a}}
	for want, err := range map[string]error{
		"invalid_arguments: cod: unknown\n":                                        errcode.Fields(errcode.InvalidArguments, a),
		"invalid_arguments: 2 faults\n  cod: unknown\n  code: is required\n":       errcode.Fields(errcode.InvalidArguments, a, b),
		"invalid_request: x.json: 2 faults\n  cod: unknown\n  code: is required\n": fmt.Errorf("x.json: %w", errcode.Fields(errcode.InvalidRequest, a, b)),
		"invalid_arguments: these will not do\n  cod: unknown\n":                   other,
		"invalid_request: 2 faults\n  (whole): is empty\n  cod: unknown\n":         errcode.Fields(errcode.InvalidRequest, errcode.FieldFault{Message: "is empty"}, a),
		"conflict: somebody was faster\n  revision: 7 stands\n":                    conflict,
	} {
		var out bytes.Buffer
		if code := report(&out, "toolbus", err); code != exitFailed || out.String() != "toolbus: "+want {
			t.Errorf("exit %d, got %q, want %q", code, out.String(), "toolbus: "+want)
		}
	}
}

// Names are refused before anything is sent: the server is nowhere.
func TestBadNames(t *testing.T) {
	bad := []string{"", "a.b", "*", ">", " acme", "ünïcode", "a/b", "..", "a\nb", strings.Repeat("a", 65)}
	for _, b := range bad {
		for field, args := range map[string][]string{
			"tenant":    {"get", "agents", "-t", b},
			"agent":     {"call", "x", "-t", "acme", "-a", b},
			"tool":      {"call", b, "-t", "acme", "-a", "bot"},
			"callId":    {"submit", "x", "--call-id", b, "-t", "acme", "-a", "bot"},
			"entryId":   {"job", "trigger", b, "-t", "acme", "-a", "bot"},
			"namespace": {"state", "all", "-t", "acme", "-c", "c", "--namespace=" + b},
		} {
			if b == "" && field == "namespace" {
				continue // counts as left out
			}
			run(t, nil, "", append(args, "-s", nowhere)...).fails(t, 1, "toolbus: invalid_request: ", ""+field+": ")
		}
	}
	for _, b := range []string{"", "a\x00b", "a\nb", "\xff", strings.Repeat("c", 257)} {
		run(t, nil, "", "call", "x", "-t", "acme", "-a", "bot", "-c", b, "-s", nowhere).fails(t, 1, "toolbus: invalid_request: ", "chatId: ")
	}
	for _, verb := range [][]string{
		{"state", "get", "a\xff"}, {"state", "set", "a\xff", "1"}, {"state", "append", "", "1"}, {"state", "increment", "a\n"}, {"state", "delete", "a\xff"},
		{"state", "update", "--delete", "a\xff"}, {"store", "get", "a\xff"}, {"store", "set", "a\xff", "v"}, {"store", "delete", ""},
	} {
		flags := []string{"-t", "acme", "-n", "n", "-c", "c", "-s", nowhere}
		if verb[0] == "store" {
			flags = []string{"-t", "acme", "-a", "bot", "--tool", "x", "-s", nowhere}
		}
		run(t, nil, "", append(verb, flags...)...).fails(t, 1, "toolbus: invalid_request: ", "key: ")
	}
	run(t, nil, "", "store", "set", "k", "a\xff", "-t", "acme", "-a", "bot", "--tool", "x", "-s", nowhere).fails(t, 1, "invalid_request: ", "value: ")
	run(t, nil, "", "store", "list", "-t", "acme", "-a", "bot", "--tool", "a.b", "-s", nowhere).fails(t, 1, "invalid_request: ", "tool: ")
	for _, args := range [][]string{{"append", "k", "1", "{"}, {"update", "[1]"}, {"update", "null"}, {"increment", "k", "--by", "x"}, {"increment", "k", "--by", "[1]"}} {
		run(t, nil, "", append(append([]string{"state"}, args...), "-t", "acme", "-n", "n", "-c", "c", "-s", nowhere)...).fails(t, 1, "toolbus: invalid_request: ")
	}
	run(t, nil, "", "sync", "-t", "_all", "-s", nowhere).fails(t, 1, "tenant: ", "reserved")
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	base := []string{"-t", "acme", "-a", "bot", "-c", "c", "-s", nowhere}
	for name, c := range map[string]struct {
		stdin string
		args  []string
		want  []string
	}{
		"arguments":           {"", []string{"call", "x", `{"a":}`}, []string{"invalid_arguments", "arguments: is not valid JSON at byte 6"}},
		"arguments cut off":   {"", []string{"call", "x", `{"a":1`}, []string{"invalid_arguments", "arguments: "}},
		"empty arguments":     {"", []string{"call", "x", ``}, []string{"invalid_arguments", "arguments: "}},
		"arguments on stdin":  {"{", []string{"call", "x", `-`}, []string{"invalid_arguments", "arguments: "}},
		"arguments in a file": {"", []string{"call", "x", "@" + write("args", "[1,]")}, []string{"invalid_arguments", "arguments: is not valid JSON at byte 4"}},
		"no arguments file":   {"", []string{"call", "x", "@" + dir + "/none"}, []string{"invalid_request", "arguments: ", "/none"}},
		"no file":             {"", []string{"apply", dir + "/none.json"}, []string{"invalid_request", "file: ", "/none.json: no such file"}},
		"a folder":            {"", []string{"apply", dir}, []string{"invalid_request", "file: "}},
		"bad JSON":            {"", []string{"apply", write("bad.json", "{\n\"agents\": [}")}, []string{"invalid_request", "bad.json: line 2"}},
		"bad YAML by -f":      {"", []string{"apply", "-f", write("bad.yaml", "agents:\n- x: [")}, []string{"invalid_request", "bad.yaml: line "}},
		"bad JSON on stdin":   {"{", []string{"apply", "-"}, []string{"invalid_request", "stdin: line 1"}},
		"submit arguments":    {"{", []string{"submit", "x", `-`}, []string{"invalid_arguments", "arguments: "}},
		"state value":         {"", []string{"state", "set", "k", "nope", "-n", "n"}, []string{"invalid_request", "value: is not valid JSON", `'"text"'`}},
		"state value cut off": {"", []string{"state", "set", "k", "[1", "-n", "n"}, []string{"invalid_request", "value: is not valid JSON at byte 2"}},
		"state value no text": {"", []string{"state", "set", "k", "\"\xff\"", "-n", "n"}, []string{"invalid_request", "value: is not valid UTF-8\n"}},
		"state value no file": {"", []string{"state", "set", "k", "@", "-n", "n"}, []string{"invalid_request", "value: @ names no file"}},
		"state large number":  {"", []string{"state", "set", "k", "1e400", "-n", "n"}, []string{"unavailable"}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, nil, c.stdin, append(c.args, base...)...).fails(t, 1, c.want...)
		})
	}
}

func TestNoServer(t *testing.T) {
	begin := time.Now()
	for _, args := range [][]string{
		{"get", "agents"}, {"get", "tools"}, {"call", "x"}, {"files", "ls"}, {"sync"}, {"state", "list", "-o", "json"},
		{"submit", "x"}, {"result", "c", "--wait", "1m"}, {"cancel", "c"}, {"get", "jobs"}, {"get", "wakes"},
		{"job", "trigger", "x"}, {"job", "history", "x"}, {"wake", "send", "m"}, {"wake", "watch", "-o", "json"},
	} {
		run(t, nil, "", append(args, "-t", "acme", "-a", "bot", "-s", nowhere)...).fails(t, 1, "toolbus: unavailable: ", "127.0.0.1:1")
	}
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("took %s", d)
	}
}

func TestServerPasswordIsNotShown(t *testing.T) {
	o := run(t, nil, "", "get", "tools", "-s", "nats://me:hunter2@127.0.0.1:1")
	o.fails(t, 1, "unavailable")
	if strings.Contains(o.err, "hunter2") {
		t.Error(o.err)
	}
}

func TestEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		code int
		want string
	}{
		"server":         {map[string]string{"NATS_URL": nowhere}, []string{"get", "tools"}, 1, "127.0.0.1:1"},
		"own name first": {map[string]string{"TOOLBUS_SERVER": nowhere, "NATS_URL": "nats://127.0.0.1:2"}, []string{"get", "tools"}, 1, "127.0.0.1:1"},
		"flag first":     {map[string]string{"NATS_URL": "nats://127.0.0.1:2"}, []string{"get", "tools", "-s", nowhere}, 1, "127.0.0.1:1"},
		"tenant":         {map[string]string{"TOOLBUS_TENANT": "a.b"}, []string{"get", "agents"}, 1, "tenant: "},
		"empty tenant":   {map[string]string{"TOOLBUS_TENANT": ""}, []string{"get", "agents"}, 2, "tenant: is required"},
		"agent":          {map[string]string{"TOOLBUS_AGENT": "*"}, []string{"call", "x", "-t", "a"}, 1, "agent: "},
		"chat":           {map[string]string{"TOOLBUS_CHAT": "a\x01"}, []string{"call", "x", "-t", "a", "-a", "b"}, 1, "chatId: "},
		"output":         {map[string]string{"TOOLBUS_OUTPUT": "xml"}, []string{"version"}, 2, "output: "},
		"bad timeout":    {map[string]string{"TOOLBUS_TIMEOUT": "x"}, []string{"version"}, 2, "TOOLBUS_TIMEOUT: "},
		"listen":         {map[string]string{"TOOLBUS_LISTEN": "x"}, []string{"up"}, 2, "listen: "},
	} {
		t.Run(name, func(t *testing.T) { run(t, c.env, "", c.args...).fails(t, c.code, c.want) })
	}
}

func TestVersion(t *testing.T) {
	o := run(t, nil, "", "version", "-o", "json")
	var v versionReply
	if err := json.Unmarshal([]byte(o.out), &v); err != nil || o.code != 0 || o.err != "" || v.Version != Version {
		t.Errorf("%+v %v", o, err)
	}
	if o := run(t, nil, "", "version"); o.code != 0 || !strings.HasPrefix(o.out, "toolbus "+Version) {
		t.Errorf("%+v", o)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help"}, {"call", "--help"}, {"state", "-h"}, {"up", "--help"}, {"submit", "-h"}, {"job", "-h"}, {"wake", "watch", "-h"}} {
		if o := run(t, nil, "", args...); o.code != 0 || o.out == "" || o.err != "" {
			t.Errorf("%v: exit %d, stderr %q", args, o.code, o.err)
		}
	}
}

func TestTimesInTables(t *testing.T) {
	for _, c := range [][3]string{
		{"2026-03-02T08:00:00.123456789Z", "UTC", "2026-03-02T08:00:00Z"},
		{"2026-03-02T08:00:00Z", "Europe/Berlin", "2026-03-02T09:00:00+01:00"},
		{"2026-03-02T08:00:00Z", "No/Where", "2026-03-02T08:00:00Z"},
		{"", "UTC", ""},
		{"soon", "UTC", "soon"},
	} {
		if got := inZone(c[0], c[1]); got != c[2] {
			t.Errorf("%v: got %q", c, got)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain ä €":        "plain ä €",
		"\x1b[31mred":      "\ufffd[31mred",
		"a\nb\tc\rd":       "a\ufffdb\ufffdc\ufffdd",
		"\u202eevil\u2066": "\ufffdevil\ufffd",
		"\u0085\x7f":       "\ufffd\ufffd",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: got %q", in, got)
		}
	}
}

// Whatever is wrong with a local file or with stdout has a code that says whose
// fault it is, also when it shows only while a large file is streamed.
func TestLocalFaultsHaveACode(t *testing.T) {
	in, err := (&app{}).open("file", t.TempDir())
	if err == nil {
		_, err = io.Copy(io.Discard, in)
		err = errors.Join(err, in.Close())
	}
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details == nil || e.Details.Fields[0].Field != "file" {
		t.Errorf("a folder as input: %v", err)
	}
	if _, err := io.Copy(output{full{}}, strings.NewReader("x")); !errors.Is(err, errcode.Unavailable) {
		t.Errorf("stdout is full: %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }
