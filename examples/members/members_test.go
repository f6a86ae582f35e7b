package members_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image/color"
	"image/png"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/examples/members"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/tool/filetools"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

func newEnv(t *testing.T) *tooltest.Env {
	t.Helper()
	env := tooltest.New(t, append(members.Tools(), filetools.Tools()...)...)
	env.SetNow(time.Date(2026, 3, 1, 0, 30, 0, 0, time.FixedZone("CET", 3600))) // in UTC still February
	return env
}

func call(t *testing.T, env *tooltest.Env, name string, args any) tool.Result {
	t.Helper()
	res, err := env.Call(t.Context(), name, args)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return res
}

func content(t *testing.T, env *tooltest.Env, path string) string {
	t.Helper()
	b, _, ok, err := env.Files().Read(t.Context(), path)
	if err != nil || !ok {
		t.Fatalf("%s: %v %v", path, ok, err)
	}
	return string(b)
}

func put(t *testing.T, env *tooltest.Env, path, text string) {
	t.Helper()
	if _, err := env.Files().Write(t.Context(), path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func member(name, email string) map[string]string {
	return map[string]string{"name": name, "email": email, "disziplin": "Rudern"}
}

func TestRegisterMember(t *testing.T) {
	env := newEnv(t)
	res := call(t, env, "registerMember", member("Jürgen <Jay> Groß", "J@example.org"))
	if want := `{"stored":{"name":"Jürgen <Jay> Groß","email":"J@example.org","eintrittsdatum":"2026-02-28","disziplin":"Rudern","created":"2026-02-28T23:30:00Z"},"total":1}`; !res.Success || string(res.Data) != want {
		t.Errorf("got  %+v\nwant %s", res, want)
	}
	want := `[
    {
        "name": "Jürgen <Jay> Groß",
        "email": "J@example.org",
        "eintrittsdatum": "2026-02-28",
        "disziplin": "Rudern",
        "created": "2026-02-28T23:30:00Z"
    }
]
`
	if got := content(t, env, "mitglieder.json"); got != want {
		t.Errorf("got %s", got)
	}
	for _, again := range []string{"j@EXAMPLE.org", " J@example.org "} {
		if res := call(t, env, "registerMember", member("Other", again)); res.Success || res.ErrorMessage != "Bereits eingetragen: Jürgen <Jay> Groß" {
			t.Errorf("%q: %+v", again, res)
		}
	}
	m := member("Zoë", "z@example.org")
	m["eintrittsdatum"] = "2020-01-02"
	if res := call(t, env, "registerMember", m); !strings.Contains(string(res.Data), `"eintrittsdatum":"2020-01-02"`) || !strings.HasSuffix(string(res.Data), `"total":2}`) {
		t.Errorf("%+v", res)
	}
	if res := call(t, env, "registerMember", member("  ", "x@example.org")); res.Success {
		t.Errorf("%+v", res)
	}
	if _, err := env.Call(t.Context(), "registerMember", map[string]string{"name": "x", "mail": "y"}); errcode.Of(err) != errcode.InvalidArguments ||
		!strings.Contains(err.Error(), "disziplin") || !strings.Contains(err.Error(), "mail") {
		t.Errorf("%v", err)
	}
}

func TestRegisterMemberKeepsWhatItDoesNotKnow(t *testing.T) {
	env := newEnv(t)
	put(t, env, "mitglieder.json", `[{"phone":12345678901234567890,"name":"A","email":"a@x"},{"email":null},{"name":7,"email":"b@x"}]`)
	if res := call(t, env, "registerMember", member("C", "c@x")); !strings.HasSuffix(string(res.Data), `"total":4}`) {
		t.Errorf("%+v", res)
	}
	if got := content(t, env, "mitglieder.json"); !strings.Contains(got, `"phone": 12345678901234567890`) {
		t.Errorf("got %s", got)
	}
	if res := call(t, env, "registerMember", member("D", "B@x")); res.Success || !strings.HasPrefix(res.ErrorMessage, "Bereits eingetragen") {
		t.Errorf("%+v", res)
	}
}

func TestRegisterMemberNeverOverwritesWhatItCannotRead(t *testing.T) {
	for _, broken := range []string{`[{"name":"A"`, `{"name":"A"}`, `["A"]`, `[null]`, `[] []`, "hello", "[{\"name\":\"\xff\"}]"} {
		env := newEnv(t)
		put(t, env, "mitglieder.json", broken)
		if res := call(t, env, "registerMember", member("B", "b@x")); res.Success || res.ErrorMessage == "" {
			t.Errorf("%q: %+v", broken, res)
		}
		if got := content(t, env, "mitglieder.json"); got != broken {
			t.Errorf("%q became %q", broken, got)
		}
	}
	for _, empty := range []string{"", "\n", "[]", "null"} {
		env := newEnv(t)
		put(t, env, "mitglieder.json", empty)
		if res := call(t, env, "registerMember", member("B", "b@x")); !res.Success {
			t.Errorf("%q: %+v", empty, res)
		}
	}
}

func TestLogEvent(t *testing.T) {
	env := newEnv(t)
	call(t, env, "logEvent", json.RawMessage(`{"event": "Regatta <won>\nat last", "details": {"n": 12345678901234567890}}`))
	env.Advance(time.Hour)
	res := call(t, env, "logEvent", map[string]string{"event": "März"})
	if !res.Success || string(res.Data) != `{"path":"logs/2026-03.log"}` {
		t.Errorf("%+v", res)
	}
	if got, want := content(t, env, "logs/2026-02.log"), "2026-02-28T23:30:00Z\t{\"event\":\"Regatta <won>\\nat last\",\"details\":{\"n\":12345678901234567890}}\n"; got != want {
		t.Errorf("got %q", got)
	}
	if got, want := content(t, env, "logs/2026-03.log"), "2026-03-01T00:30:00Z\t{\"event\":\"März\"}\n"; got != want {
		t.Errorf("got %q", got)
	}
	if res := call(t, env, "logEvent", map[string]string{"event": ""}); res.Success {
		t.Errorf("%+v", res)
	}
}

func TestLogEventsAllGetTheirLine(t *testing.T) {
	env := newEnv(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { call(t, env, "logEvent", map[string]string{"event": fmt.Sprint("e", i)}) })
	}
	wg.Wait()
	got := content(t, env, "logs/2026-02.log")
	for i := range 50 {
		if !strings.Contains(got, fmt.Sprintf("{\"event\":\"e%d\"}\n", i)) {
			t.Errorf("event %d is missing", i)
		}
	}
	if n := strings.Count(got, "\n"); n != 50 {
		t.Errorf("%d lines", n)
	}
}

func TestSaveThumbnail(t *testing.T) {
	env := newEnv(t)
	res := call(t, env, "saveThumbnail", map[string]string{"id": "team-1", "color": "#FF8000"})
	b := content(t, env, "thumbnails/team-1.png")
	if want := fmt.Sprintf(`{"path":"thumbnails/team-1.png","size":%d,"width":64,"height":64}`, len(b)); !res.Success || string(res.Data) != want {
		t.Errorf("got %+v, want %s", res, want)
	}
	img, err := png.Decode(strings.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if c := color.NRGBAModel.Convert(img.At(32, 32)); c != (color.NRGBA{0xff, 0x80, 0, 0xff}) {
		t.Errorf("the middle is %v", c)
	}
	if _, _, _, a := img.At(0, 0).RGBA(); a != 0 {
		t.Error("the corner is not clear")
	}
	if res := call(t, env, "saveThumbnail", map[string]string{"id": "plain"}); !res.Success {
		t.Errorf("%+v", res)
	}
	for _, bad := range []map[string]string{
		{"id": "../x"}, {"id": ""}, {"id": "a/b"}, {"id": "ü"}, {"id": "x\n"}, {"id": strings.Repeat("a", 65)},
		{"id": "x", "color": "red"}, {"id": "x", "color": "#12345"}, {"id": "x", "color": "#12345g"}, {"id": "x", "color": ""},
	} {
		if res := call(t, env, "saveThumbnail", bad); res.Success || res.ErrorMessage == "" {
			t.Errorf("%v: %+v", bad, res)
		}
	}
	if files, err := env.Files().List(t.Context(), ""); err != nil || len(files) != 2 {
		t.Errorf("%v %v", files, err)
	}
}

func TestArchiveReport(t *testing.T) {
	env := newEnv(t)
	for _, mb := range []float64{0.000001, 0.1, 2} {
		res := call(t, env, "archiveReport", map[string]any{"name": "r", "megabytes": mb})
		text := content(t, env, "reports/r.txt")
		sum := sha256.Sum256([]byte(text))
		want := fmt.Sprintf(`{"path":"reports/r.txt","size":%d,"sha256":"%s"}`, int(mb*(1<<20)), hex.EncodeToString(sum[:]))
		if len(text) != int(mb*(1<<20)) || string(res.Data) != want {
			t.Errorf("%d bytes; got %+v, want %s", len(text), res, want)
		}
	}
	call(t, env, "archiveReport", map[string]any{"name": "r", "megabytes": 0.01})
	once := content(t, env, "reports/r.txt")
	call(t, env, "archiveReport", map[string]any{"name": "r", "megabytes": 0.01})
	if once != content(t, env, "reports/r.txt") {
		t.Error("the text differs from run to run")
	}
	for _, bad := range []map[string]any{{"name": "a/b", "megabytes": 1}, {"name": "r", "megabytes": 0}, {"name": "r", "megabytes": 10.1}, {"name": "r", "megabytes": -1}} {
		if res := call(t, env, "archiveReport", bad); res.Success || res.ErrorMessage == "" {
			t.Errorf("%v: %+v", bad, res)
		}
	}
}

// A file tool that fails: with a no the model can act on, or because it could
// not be tried.
func TestFileToolsFail(t *testing.T) {
	args := map[string]any{
		"registerMember": member("A", "a@x"), "logEvent": map[string]string{"event": "x"},
		"saveThumbnail": map[string]string{"id": "x"}, "archiveReport": map[string]any{"name": "x", "megabytes": 0.01},
	}
	open := tool.Schema(json.RawMessage(`{"type":"object"}`))
	missing := tool.New("readFile", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Data(json.RawMessage(`{"success":true,"exists":false,"path":"x","content":null}`)), nil
	}, open)
	for _, c := range []struct {
		res  tool.Result
		err  error
		code errcode.Code // "": the model hears it
	}{
		{res: tool.Fail("disk full")},
		{err: errcode.New(errcode.QuotaExceeded, "disk full")},
		{err: errcode.New(errcode.InvalidArguments, "disk full")},
		{err: errcode.New(errcode.Unavailable, "disk full"), code: errcode.Unavailable},
	} {
		failing := tool.New("writeFile", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return c.res, c.err }, open)
		env := tooltest.New(t, append(members.Tools(), missing, failing)...)
		for _, tl := range members.Tools() {
			name := tl.Definition().Name
			res, err := env.Call(t.Context(), name, args[name])
			if errcode.Of(err) != c.code || res.Success || !strings.Contains(fmt.Sprint(res.ErrorMessage, err), "disk full") {
				t.Errorf("%s with %+v, %v: %+v, %v", name, c.res, c.err, res, err)
			}
		}
	}
	// A report that somebody else replaced before it was read back.
	lost := tool.New("writeFile", "x", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.Data(struct{}{}), nil }, open)
	if res := call(t, tooltest.New(t, append(members.Tools(), missing, lost)...), "archiveReport", args["archiveReport"]); res.Success || !strings.Contains(res.ErrorMessage, "differently") {
		t.Errorf("%+v", res)
	}
}

func TestConformance(t *testing.T) {
	for name, args := range map[string]any{
		"registerMember": member("A", "a@x"),
		"logEvent":       map[string]any{"event": "x", "details": map[string]int{"n": 1}},
		"saveThumbnail":  map[string]string{"id": "x", "color": "#ff0000"},
		"archiveReport":  map[string]any{"name": "x", "megabytes": 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			for _, tl := range members.Tools() {
				if tl.Definition().Name == name {
					tooltest.Conformance(t, tl, tooltest.GivenArguments(args), tooltest.GivenTools(filetools.Tools()...))
					return
				}
			}
			t.Fatal("there is no such tool")
		})
	}
}
