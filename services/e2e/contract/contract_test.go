package contract

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/subject"
)

var update = flag.Bool("update", false, "write the generated schemas into "+Path)

const root = "../../.."

// The document's schemas are what the Go types say.
func TestSchemasAreTheGoTypes(t *testing.T) {
	have, want, err := Generate(root)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(have, want) {
		return
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, Path), want, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	h, w := strings.Split(string(have), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(h), len(w)) {
		if h[i] != w[i] {
			t.Errorf("line %d:\n  is        %s\n  should be %s", i+1, h[i], w[i])
			break
		}
	}
	t.Errorf("%s does not say what the Go types say; run: go test ./services/e2e/contract -update", Path)
}

func load(t *testing.T, strict bool) *Document {
	t.Helper()
	d, err := Load(root, strict)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Every subject that contracts/subject can build has a channel, and the other
// way round: what a channel names is built there.
func TestEverySubjectHasAChannel(t *testing.T) {
	d := load(t, false)
	src, err := parseSource(filepath.Join(root, "contracts/subject"))
	if err != nil {
		t.Fatal(err)
	}
	var built []string
	for _, fn := range src.funcs {
		tokens, ok := builder(t, src, fn)
		if !ok {
			continue
		}
		s := subject.Prefix + strings.Join(tokens, ".")
		if d.IsPrivate(s) || strings.HasSuffix(s, ".>") {
			continue // a service's own, or a pattern
		}
		built = append(built, s)
		if !slices.ContainsFunc(slices.Collect(maps.Values(d.Channels)), func(c Channel) bool { return covers(s, c.Address) }) {
			t.Errorf("subject.%s builds %s, which has no channel", fn.Name.Name, s)
		}
	}
	if len(built) < 25 {
		t.Errorf("found only %d builders", len(built))
	}
	// changes.agent.<tenant> is ChangesAgent without an agent.
	built = append(built, subject.Prefix+"changes.agent.{tenant}")
	for _, c := range d.Channels {
		if c.Key != Inbox && !slices.ContainsFunc(built, func(s string) bool { return covers(s, c.Address) }) {
			t.Errorf("channel %s: nothing in contracts/subject builds %s", c.Key, c.Address)
		}
	}
}

// builder reads "return join(FamilyX, tenant, …)" as tokens, a parameter as
// {name}.
func builder(t *testing.T, src source, fn *ast.FuncDecl) ([]string, bool) {
	t.Helper()
	if !fn.Name.IsExported() || fn.Recv != nil || len(fn.Body.List) != 1 {
		return nil, false
	}
	ret, ok := fn.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(ret.Results) != 1 {
		return nil, false
	}
	call, ok := ret.Results[0].(*ast.CallExpr)
	if !ok {
		return nil, false
	}
	if id, ok := call.Fun.(*ast.Ident); !ok || id.Name != "join" {
		return nil, false
	}
	var out []string
	for _, a := range call.Args {
		switch a := a.(type) {
		case *ast.BasicLit:
			if a.Kind != token.STRING {
				t.Fatalf("subject.%s: %s", fn.Name.Name, a.Value)
			}
			s, err := strconv.Unquote(a.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, s)
		case *ast.Ident:
			if v, ok := src.consts[a.Name]; ok {
				out = append(out, v)
			} else {
				out = append(out, "{"+a.Name+"}")
			}
		default:
			t.Fatalf("subject.%s: the test cannot read %T", fn.Name.Name, a)
		}
	}
	return out, true
}

// covers tells whether a builder's subject, with {parameters}, can be an
// address: a parameter stands for any token.
func covers(built, address string) bool {
	b, a := strings.Split(built, "."), strings.Split(address, ".")
	if len(a) != len(b) {
		return false
	}
	for i := range b {
		if b[i] != a[i] && !strings.HasPrefix(b[i], "{") {
			return false
		}
	}
	return true
}

// Channels and operations hang together: every channel has an operation, every
// message is used, and every reply may be an error.
func TestOperations(t *testing.T) {
	d := load(t, false)
	used := map[string]bool{}
	for _, op := range d.Operations {
		if op.Action != "send" && op.Action != "receive" {
			t.Errorf("%s: action %q", op.Key, op.Action)
		}
		for _, m := range op.Messages {
			used[op.Channel+"."+m] = true
		}
		for _, m := range op.Reply {
			used[Inbox+"."+m] = true
		}
		if len(op.Reply) > 0 && !slices.Contains(op.Reply, "error") {
			t.Errorf("%s: the reply may be an error", op.Key)
		}
	}
	for _, ch := range d.Channels {
		for name := range ch.Messages {
			if !used[ch.Key+"."+name] {
				t.Errorf("no operation has message %s of channel %s", name, ch.Key)
			}
		}
	}
	if len(d.Channels) < 50 || len(d.Operations) < len(d.Channels)-1 {
		t.Errorf("%d channels, %d operations", len(d.Channels), len(d.Operations))
	}
}

// Every schema that is generated belongs to some message or schema.
func TestSchemasAreUsed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, Path))
	if err != nil {
		t.Fatal(err)
	}
	// What travels inside a header or a free field, or is at rest.
	elsewhere := []string{"Blob", "Config", "ToolStateRef"}
	for name := range lookup(load(t, false).tree, "#/components/schemas").(map[string]any) {
		if !bytes.Contains(text, []byte("#/components/schemas/"+name+"'")) && !bytes.Contains(text, []byte("#/components/schemas/"+name+"\n")) &&
			!slices.Contains(elsewhere, name) {
			t.Errorf("nothing uses schema %s", name)
		}
	}
}

// What the prose must say for somebody who has only this file: each code with
// its number, each header.
func TestProse(t *testing.T) {
	d := load(t, false)
	prose := lookup(d.tree, "#/info/description").(string)
	for _, c := range errcode.All() {
		retryable := map[bool]string{true: "yes", false: "no"}[c.Retryable()]
		if row := fmt.Sprintf("| `%s` | %d | %s |", c, c.Status(), retryable); !strings.Contains(prose, row) {
			t.Errorf("no row %s", row)
		}
	}
	src, err := parseSource(filepath.Join(root, "contracts/message"))
	if err != nil {
		t.Fatal(err)
	}
	headers := 0
	for name, value := range src.consts {
		if strings.HasPrefix(name, "Header") {
			headers++
			if !strings.Contains(prose, "`"+value) {
				t.Errorf("the prose does not mention header %s", value)
			}
		}
	}
	if headers == 0 {
		t.Error("no headers found")
	}
}

// The document's own examples are valid.
func TestExamples(t *testing.T) {
	d := load(t, Strict)
	n := 0
	for name, m := range lookup(d.tree, "#/components/messages").(map[string]any) {
		examples, _ := m.(map[string]any)["examples"].([]any)
		for _, e := range examples {
			n++
			payload := e.(map[string]any)["payload"]
			schema := m.(map[string]any)["payload"].(map[string]any)["$ref"].(string)
			s, err := d.Schema(schema[strings.LastIndexByte(schema, '/')+1:])
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(payload); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n < 8 {
		t.Errorf("%d examples", n)
	}
}

// goldenTypes reads the table of contracts/message/golden_test.go: which type
// each file of contracts/testdata is.
func goldenTypes(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "contracts/message/golden_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t"([^"]+)": +(message|errcode)\.(\w+)\{\},$`).FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = m[3]
		if m[2] == "errcode" {
			out[m[1]] = errcodeName(m[3])
		}
	}
	return out
}

// The golden messages of contracts/testdata fit the document.
func TestGoldenMessages(t *testing.T) {
	d := load(t, Strict)
	types := goldenTypes(t)
	found, err := filepath.Glob(filepath.Join(root, "contracts/testdata/*/*.json"))
	if err != nil || len(found) == 0 || len(found) != len(types) {
		t.Fatalf("%d golden messages, %d types: %v", len(found), len(types), err)
	}
	for _, path := range found {
		key := filepath.Base(filepath.Dir(path)) + "/" + strings.TrimSuffix(filepath.Base(path), ".json")
		s, err := d.Schema(types[key])
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(v); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// The checks find what they are for.
func TestChecksFindFaults(t *testing.T) {
	d := load(t, Strict)
	call, ok := d.Match("toolbus.v1.agent.acme.support.call.add")
	if !ok || call.Key != "agentCall" {
		t.Fatalf("%+v", call)
	}
	m := call.Messages["call"]
	for body, fine := range map[string]bool{
		`{"chatId":"c","arguments":{"code":"1"}}`: true,
		``:                               true,
		`{"chatId":5}`:                   false,
		`{"chatID":"c"}`:                 false,
		`{"arguments":[]}`:               false,
		`{"callId":"a.b"}`:               false,
		`[]`:                             false,
		`{`:                              false,
		`{"timeoutMs":-1,"chatId":"c"}`:  false,
		`{"timeoutMs":1.5,"chatId":"c"}`: false,
	} {
		if err := m.Check(nil, []byte(body)); (err == nil) != fine {
			t.Errorf("%s: %v", body, err)
		}
	}
	if err := m.Check(map[string][]string{"Toolbus-Beats": {"yes"}}, nil); err == nil {
		t.Error("a wrong header passes")
	}
	if err := d.Channels[Inbox].Messages["error"].Check(nil, []byte(`{"error":{"code":"internal","message":"x","retryable":false}}`)); err == nil {
		t.Error("an error reply without its headers passes")
	}
	for _, s := range []string{"toolbus.v1.agent.acme.support.bogus", "toolbus.v1.agent._x.support.tools", "toolbus.v1.files.acme.bogus", "toolbus.v2.catalogue.tools"} {
		if c, ok := d.Match(s); ok {
			t.Errorf("%s is %s", s, c.Key)
		}
	}
	if c, _ := d.Match("toolbus.v1.result._all.consumer.add"); c.Key != "submitsConsumer" {
		t.Errorf("got %s", c.Key)
	}
}

func TestValuesKeepTheirCase(t *testing.T) {
	for doc, want := range map[string]string{
		"":                         "",
		"what was written":         "What was written",
		"utf8 (default), or other": "utf8 (default), or other",
		"pending, or done":         "pending, or done",
		"conflict: the revision":   "conflict: the revision",
		"too_large, other: a size": "too_large, other: a size",
	} {
		if got := sentence(doc, enum("utf8", "pending")); got != want {
			t.Errorf("%q: got %q", doc, got)
		}
	}
}
