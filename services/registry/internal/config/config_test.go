package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

var shared = sync.OnceValues(NewParser)

func parser(t testing.TB) *Parser {
	t.Helper()
	p, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func parse(t testing.TB, raw string) (Parsed, error) {
	t.Helper()
	return parser(t).Parse([]byte(raw))
}

// The guide's examples, word for word.
func TestGuideExamplesLoad(t *testing.T) {
	raw, err := os.ReadFile("testdata/agents.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parser(t).Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Agents) != 2 || got.Single || got.Agents[0].ID != "analyst" || got.Agents[1].ID != "developer" {
		t.Fatalf("got %+v", got)
	}
	if want := `{"agentId":"developer","tools":{"MeinTool":{"andereOption":false,"meineSetting":"wert-fuer-agent-developer"}}}`; string(got.Agents[1].JSON) != want {
		t.Errorf("got  %s\nwant %s", got.Agents[1].JSON, want)
	}

	if raw, err = os.ReadFile("testdata/support-bot.json"); err != nil {
		t.Fatal(err)
	}
	if got, err = parser(t).Parse(raw); err != nil {
		t.Fatal(err)
	}
	var a message.AgentConfig
	if err := json.Unmarshal(got.Agents[0].JSON, &a); err != nil {
		t.Fatal(err)
	}
	if !got.Single || a.AgentID != "support-bot" || string(a.Tools["MeinTool"]) != `{"apiKey":"..."}` {
		t.Errorf("got %+v", a)
	}
	if s := a.Scheduler[0]; s.Cron != "0 8 * * 1-5" || s.TaskMessage != "Morgenbericht erstellen" || len(s.ID) != 12 {
		t.Errorf("got %+v", s)
	}
	if j := a.ToolJobs[0]; j.JobID != "abc12345" || j.ToolName != "MeinTool" || j.JobTypeID != "meintool_check" || !*j.Enabled || j.RunOnStart {
		t.Errorf("got %+v", j)
	}
}

func TestAccepted(t *testing.T) {
	for name, raw := range map[string]string{
		"no agents":        `{"agents":[]}`,
		"bare agent":       `{"agentId":"a"}`,
		"tenant files":     `{"agents":[],"tenant":{"files":{"quotaBytes":1073741824,"maxFiles":0,"versions":100}}}`,
		"tenant settings":  `{"agents":[],"tenant":{"settings":{"k":[1,{"$secret":"s"}]}}}`,
		"notes":            `{"x-note":1,"agents":[{"agentId":"a","x-note":{"a":1},"scheduler":[{"x-y":1,"cron":"@daily","taskMessage":"m"}]}]}`,
		"for editors":      `{"$schema":"./s.json","agents":[]}`,
		"settings, any":    `{"agentId":"a","tools":{"T":{"n":null,"i":1e400,"s":"","a":[[[]]],"o":{"x":{"$secret":"n_1-a"}},"a.b":1,"":2}}}`,
		"secret, whole":    `{"agentId":"a","tools":{"T":{"$secret":"n"}}}`,
		"six fields":       `{"agentId":"a","scheduler":[{"cron":"*/10 * * * * *","taskMessage":"m"}]}`,
		"every":            `{"agentId":"a","scheduler":[{"cron":"@every 30s","taskMessage":"m"}]}`,
		"all fields":       `{"agentId":"a","timezone":"Europe/Berlin","scheduler":[{"id":"x","cron":"0 8 * * MON","timezone":"America/New_York","taskMessage":"m","enabled":false,"runOnStart":true,"missed":"skip","jitter":"30s","wakeMode":"stateless","chatId":"chat ü.1","expiresAfter":"2h"}]}`,
		"zero duration":    `{"agentId":"a","scheduler":[{"cron":"@daily","taskMessage":"m","jitter":"0s"}]}`,
		"same cron twice":  `{"agentId":"a","scheduler":[{"cron":"@daily","taskMessage":"m"},{"cron":"@daily","taskMessage":"n"}]}`,
		"twins with ids":   `{"agentId":"a","scheduler":[{"id":"1","cron":"@daily","taskMessage":"m"},{"id":"2","cron":"@daily","taskMessage":"m"}]}`,
		"surrogate pair":   `{"agentId":"a","tools":{"T":{"s":"\ud83d\ude42"}}}`,
		"escaped escapes":  `{"agentId":"a","tools":{"T":{"s":"\\ud83d\\u"}}}`,
		"same key, deeper": `{"agentId":"a","tools":{"agentId":{"agentId":{"agentId":1}}}}`,
	} {
		if _, err := parse(t, raw); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFaults(t *testing.T) {
	agent := func(s string) string { return `{"agents":[{"agentId":"a",` + s + `}]}` }
	schedule := func(s string) string { return agent(`"scheduler":[{"cron":"@daily","taskMessage":"m",` + s + `}]`) }
	for name, c := range map[string]struct{ raw, field, text string }{
		"nothing":            {``, "config", "required"},
		"empty object":       {`{}`, "agents", "required"},
		"not an object":      {`[]`, "config", "must be an object"},
		"null":               {`null`, "config", "must be an object"},
		"no agents":          {`{"tenant":{}}`, "agents", "required"},
		"agents null":        {`{"agents":null}`, "agents", "must be an array, not null"},
		"agents object":      {`{"agents":{}}`, "agents", "must be an array"},
		"agent string":       {`{"agents":["a"]}`, "agents[0]", "must be an object, not a string"},
		"no id":              {`{"agents":[{}]}`, "agents[0].agentId", "is required"},
		"empty id":           {`{"agents":[{"agentId":""}]}`, "agents[0].agentId", "is required"},
		"bad id":             {`{"agents":[{"agentId":"a.b"}]}`, "agents[0].agentId", `"a.b" must match`},
		"id of a number":     {`{"agentId":1}`, "agentId", "must be a string, not a number"},
		"id twice":           {`{"agents":[{"agentId":"a"},{"agentId":"b"},{"agentId":"a"}]}`, "agents[2].agentId", "agents[0]"},
		"key twice":          {`{"agents":[{"agentId":"a","agentId":"b"}]}`, "agents[0].agentId", "twice"},
		"key twice, escaped": {`{"agents":[],"\u0061gents":[]}`, "agents", "twice"},
		"trailing":           {`{"agents":[]} x`, "config", "not valid JSON"},
		"trailing value":     {`{"agents":[]}{}`, "config", "not valid JSON"},
		"cut":                {`{"agents":[`, "config", "ends too early"},
		"not JSON":           {`agents: []`, "config", "not valid JSON"},
		"not UTF-8":          {"{\"agents\":[],\"x-\":\"\xff\"}", "config", "UTF-8"},
		"half a pair":        {`{"agents":[],"x-":"\ud800"}`, "config", "surrogate"},
		"half a pair, low":   {`{"agents":[],"x-":"\udc00"}`, "config", "surrogate"},
		"too deep":           {`{"agents":[],"x-":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "", "deeper"},
		"unknown at top":     {`{"agents":[],"agnets":[]}`, "agnets", `did you mean "agents"`},
		"unknown in agent":   {agent(`"tool":{}`), "agents[0].tool", `did you mean "tools"`},
		"other case":         {agent(`"ToolJobs":[]`), "agents[0].ToolJobs", `did you mean "toolJobs"`},
		"unknown in entry":   {schedule(`"crn":"x"`), "agents[0].scheduler[0].crn", `did you mean "cron"`},
		"unknown, far":       {agent(`"zzzzzz":1`), "agents[0].zzzzzz", "known are"},
		"unknown in tenant":  {`{"agents":[],"tenant":{"setings":{}}}`, "tenant.setings", `"settings"`},
		"tool's name":        {agent(`"tools":{"a.b":{}}`), `agents[0].tools["a.b"]`, "must match"},
		"tool's name, empty": {agent(`"tools":{"":{}}`), `agents[0].tools[""]`, "must match"},
		"settings null":      {agent(`"tools":{"T":null}`), "agents[0].tools.T", "must be an object, not null"},
		"settings string":    {agent(`"tools":{"T":"s3cr3t"}`), "agents[0].tools.T", "must be an object"},
		"secret's name":      {agent(`"tools":{"T":{"p":{"$secret":"s3cr3t value"}}}`), "agents[0].tools.T.p.$secret", "must be a secret's name"},
		"secret a number":    {agent(`"tools":{"T":{"p":[{"$secret":5}]}}`), "agents[0].tools.T.p[0].$secret", "must be a string"},
		"secret with more":   {agent(`"tools":{"T":{"p":{"$secret":"n","s3":"s3cr3t"}}}`), "agents[0].tools.T.p.s3", "not a known field"},
		"negative quota":     {`{"agents":[],"tenant":{"files":{"quotaBytes":-1}}}`, "tenant.files.quotaBytes", "at least 0"},
		"no version":         {`{"agents":[],"tenant":{"files":{"versions":0}}}`, "tenant.files.versions", "at least 1"},
		"too many versions":  {`{"agents":[],"tenant":{"files":{"versions":101}}}`, "tenant.files.versions", "at most 100"},
		"quota in words":     {`{"agents":[],"tenant":{"files":{"quotaBytes":"1GB"}}}`, "tenant.files.quotaBytes", "integer"},
		"unknown in files":   {`{"agents":[],"tenant":{"files":{"maxFile":1}}}`, "tenant.files.maxFile", `"maxFiles"`},
		"tenant's secret":    {`{"agents":[],"tenant":{"settings":{"a":{"$secret":""}}}}`, "tenant.settings.a.$secret", "is required"},
		"no cron":            {agent(`"scheduler":[{"taskMessage":"m"}]`), "agents[0].scheduler[0].cron", "is required"},
		"empty cron":         {agent(`"scheduler":[{"cron":"","taskMessage":"m"}]`), "agents[0].scheduler[0].cron", "is required"},
		"bad cron":           {agent(`"scheduler":[{"cron":"61 * * * *","taskMessage":"m"}]`), "agents[0].scheduler[0].cron", "not a cron expression"},
		"cron with a zone":   {agent(`"scheduler":[{"cron":"TZ=UTC 1 * * * *","taskMessage":"m"}]`), "agents[0].scheduler[0].cron", "timezone field"},
		"never":              {agent(`"scheduler":[{"cron":"0 0 30 2 *","taskMessage":"m"}]`), "agents[0].scheduler[0].cron", "never fires"},
		"no message":         {agent(`"scheduler":[{"cron":"@daily"}]`), "agents[0].scheduler[0].taskMessage", "is required"},
		"empty message":      {agent(`"scheduler":[{"cron":"@daily","taskMessage":""}]`), "agents[0].scheduler[0].taskMessage", "is required"},
		"blank message":      {agent(`"scheduler":[{"cron":"@daily","taskMessage":" \n"}]`), "agents[0].scheduler[0].taskMessage", "blank"},
		"zone":               {schedule(`"timezone":"Europe/Berlln"`), "agents[0].scheduler[0].timezone", "IANA"},
		"zone Local":         {agent(`"timezone":"Local"`), "agents[0].timezone", "IANA"},
		"zone, a path":       {agent(`"timezone":"../../etc/passwd"`), "agents[0].timezone", "IANA"},
		"missed":             {schedule(`"missed":"all"`), "agents[0].scheduler[0].missed", `"once" or "skip"`},
		"wakeMode":           {schedule(`"wakeMode":"Chat"`), "agents[0].scheduler[0].wakeMode", `"chat" or "stateless"`},
		"jitter":             {schedule(`"jitter":"30"`), "agents[0].scheduler[0].jitter", "duration"},
		"negative":           {schedule(`"expiresAfter":"-1h"`), "agents[0].scheduler[0].expiresAfter", "negative"},
		"chatId":             {schedule(`"chatId":"a\u0000b"`), "agents[0].scheduler[0].chatId", "control"},
		"chatId too long":    {schedule(`"chatId":"` + strings.Repeat("x", 257) + `"`), "agents[0].scheduler[0].chatId", "257 bytes"},
		"chatId empty":       {schedule(`"chatId":""`), "agents[0].scheduler[0].chatId", "is required"},
		"enabled":            {schedule(`"enabled":"yes"`), "agents[0].scheduler[0].enabled", "must be a boolean"},
		"entry id":           {schedule(`"id":"a b"`), "agents[0].scheduler[0].id", "must match"},
		"job of no tool":     {agent(`"toolJobs":[{"toolName":"T","jobTypeId":"j","cron":"@daily"}]`), "agents[0].toolJobs[0].toolName", `"T" is not among the agent's tools`},
		"job without tool":   {agent(`"toolJobs":[{"jobTypeId":"j","cron":"@daily"}]`), "agents[0].toolJobs[0].toolName", "is required"},
		"job type":           {agent(`"tools":{"T":{}},"toolJobs":[{"toolName":"T","jobTypeId":"a b","cron":"@daily"}]`), "agents[0].toolJobs[0].jobTypeId", "must match"},
		"ids twice": {agent(`"tools":{"T":{}},"scheduler":[{"id":"x","cron":"@daily","taskMessage":"m"}],"toolJobs":[{"jobId":"x","toolName":"T","jobTypeId":"j","cron":"@daily"}]`),
			"agents[0].toolJobs[0].jobId", `"x" is the id of scheduler[0] already`},
		"twins":              {agent(`"scheduler":[{"cron":"0 8 * * *","taskMessage":"m"},{"cron":" 0  8 * * *","wakeMode":"chat","timezone":"UTC","taskMessage":"m"}]`), "agents[0].scheduler[1]", "scheduler[0]"},
		"single: no prefix":  {`{"agentId":"a","scheduler":[{"cron":"x","taskMessage":"m"}]}`, "scheduler[0].cron", "not a cron"},
		"both forms":         {`{"agentId":"a","agents":[]}`, "agentId", "not a known field"},
		"hash in an id":      {`{"agentId":"租户"}`, "agentId", "must match"},
		"id too long":        {`{"agentId":"` + strings.Repeat("a", 65) + `"}`, "agentId", "must match"},
		"newline in an id":   {`{"agentId":"a\n"}`, "agentId", "must match"},
		"explicit = derived": {agent(`"scheduler":[{"cron":"@daily","taskMessage":"m"},{"id":"` + derived(t, `{"agentId":"a","scheduler":[{"cron":"@daily","taskMessage":"m"}]}`) + `","cron":"@hourly","taskMessage":"n"}]`), "agents[0].scheduler[1].id", "scheduler[0] already"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, c.raw)
			var e *errcode.Error
			if !errors.As(err, &e) || e.Code != errcode.InvalidRequest {
				t.Fatalf("got %v, want invalid_request", err)
			}
			if strings.Contains(e.Message, "s3cr3t") {
				t.Fatalf("a setting's value in the error: %s", e.Message)
			}
			for _, f := range e.Details.Fields {
				if (c.field == "" || f.Field == c.field) && strings.Contains(f.Message, c.text) {
					return
				}
			}
			t.Fatalf("got %+v, want %s: …%s…", e.Details.Fields, c.field, c.text)
		})
	}
}

func derived(t testing.TB, raw string) string {
	t.Helper()
	p, err := parse(t, raw)
	if err != nil {
		t.Fatal(err)
	}
	var a message.AgentConfig
	if err := json.Unmarshal(p.Agents[0].JSON, &a); err != nil {
		t.Fatal(err)
	}
	return a.Scheduler[0].ID
}

// A derived id stands as long as the entry does the same, and changes with it.
func TestDerivedIDs(t *testing.T) {
	id := func(agent, entry string) string {
		return derived(t, `{"agentId":"a"`+agent+`,"scheduler":[{"cron":"0 8 * * *","taskMessage":"m"`+entry+`}]}`)
	}
	base := id("", "")
	if base != "34fc7b69d839" {
		t.Errorf("the derived id is %s now: entries applied before would start anew", base)
	}
	for _, same := range [][2]string{{``, `,"enabled":false`}, {``, `,"runOnStart":true`}, {``, `,"missed":"skip","jitter":"1s","expiresAfter":"1h"`},
		{``, `,"wakeMode":"chat"`}, {``, `,"timezone":"UTC"`}, {`,"timezone":"UTC"`, ``}, {`,"tools":{"T":{}}`, ``}} {
		if got := id(same[0], same[1]); got != base {
			t.Errorf("%v changed the id", same)
		}
	}
	for _, other := range [][2]string{{``, `,"wakeMode":"stateless"`}, {``, `,"chatId":"c"`}, {``, `,"timezone":"Europe/Berlin"`}, {`,"timezone":"Europe/Berlin"`, ``}} {
		if got := id(other[0], other[1]); got == base {
			t.Errorf("%v kept the id", other)
		}
	}
}

// Every fault of a file is reported at once, of both kinds.
func TestAllFaultsAtOnce(t *testing.T) {
	_, err := parse(t, `{"agents":[{"agentId":"a","timezone":"X/Y","scheduler":[{"cron":"x"}]},{"agentId":"a b","tools":{"T":1}}]}`)
	var e *errcode.Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range e.Details.Fields {
		got[f.Field] = true
	}
	for _, want := range []string{"agents[0].timezone", "agents[0].scheduler[0].cron", "agents[0].scheduler[0].taskMessage", "agents[1].agentId", "agents[1].tools.T"} {
		if !got[want] {
			t.Errorf("%s is missing in %v", want, e)
		}
	}
}

func TestFaultsAreBounded(t *testing.T) {
	_, err := parse(t, `{"agents":[`+strings.Repeat(`{},`, 5000)+`{}]}`)
	var e *errcode.Error
	if !errors.As(err, &e) || len(e.Details.Fields) != maxFaults+1 || !strings.Contains(e.Message, "4901 more") {
		t.Fatalf("got %d faults", len(e.Details.Fields))
	}
}

func TestTooLarge(t *testing.T) {
	big := strings.Repeat("s3cr3t", MaxAgent/6+1)
	for _, raw := range []string{
		`{"agentId":"a","tools":{"T":{"v":"` + big + `"}}}`,
		`{"agents":[{"agentId":"b"},{"agentId":"a","tools":{"T":{"v":"` + big + `"}}}]}`,
		`{"agents":[],"tenant":{"settings":{"v":"` + big + `"}}}`,
	} {
		_, err := parse(t, raw)
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.TooLarge || *e.Details.Limit != MaxAgent || strings.Contains(e.Message, "s3cr3t") {
			t.Errorf("got %.200v", err)
		}
	}
}

// Layout and order of settings' keys do not make a configuration another.
func TestCanonical(t *testing.T) {
	a, err := parse(t, `{"agentId":"a","tools":{"T":{"b":1,"a":"<&>"}},"toolJobs":[],"scheduler":[{"cron":"@daily","taskMessage":"m","runOnStart":false}]}`)
	if err != nil {
		t.Fatal(err)
	}
	b, err := parse(t, "{ \"scheduler\":[{\"taskMessage\":\"m\",\"cron\":\"@daily\"}], \"tools\":{\"T\":{\"a\":\"\\u003c&>\",\n\"b\":1}},\"agentId\":\"a\",\"x-note\":1}")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Agents[0].JSON, b.Agents[0].JSON) {
		t.Errorf("%s\n%s", a.Agents[0].JSON, b.Agents[0].JSON)
	}
	if !strings.Contains(string(a.Agents[0].JSON), `"<&>"`) {
		t.Errorf("escaped: %s", a.Agents[0].JSON)
	}
}

func FuzzConfig(f *testing.F) {
	for _, file := range []string{"testdata/agents.json", "testdata/support-bot.json"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	for _, s := range []string{`{}`, `{"agents":[]}`, `[]`, `{"agents":[{"agentId":"a","tools":{"T":{"p":{"$secret":"n"}}}}],"tenant":{"settings":{"a":1e999}}}`,
		`{"agentId":"a","scheduler":[{"cron":"@every 1m","taskMessage":"m","chatId":"ü","jitter":"1s"},{"cron":"TZ=x","taskMessage":""}]}`,
		`{"agentId":"a","x-":"\ud83d\ude42","tools":{"a.b":null}}`, `{"agents":[{"agentId":"a"},{"agentId":"a"}]}`} {
		f.Add([]byte(s))
	}
	p := parser(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := p.Parse(raw)
		if err != nil {
			if c := errcode.Of(err); c != errcode.InvalidRequest && c != errcode.TooLarge {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		// What is accepted is accepted again as it is stored, and stays the same.
		for _, a := range got.Agents {
			again, err := p.Parse(a.JSON)
			if err != nil || len(again.Agents) != 1 || !bytes.Equal(again.Agents[0].JSON, a.JSON) {
				t.Fatalf("%s is not stable: %v", a.JSON, err)
			}
		}
		if got.Tenant != nil {
			again, err := p.Parse(fmt.Appendf(nil, `{"agents":[],"tenant":%s}`, got.Tenant))
			if err != nil || !bytes.Equal(again.Tenant, got.Tenant) {
				t.Fatalf("%s is not stable: %v", got.Tenant, err)
			}
		}
	})
}
