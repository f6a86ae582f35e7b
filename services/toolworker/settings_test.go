package toolworker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/tool"
	"github.com/toolbus/toolbus/pkg/worker"
)

type mailSettings struct {
	Host     string   `json:"host"`
	Port     int      `json:"port" default:"993"`
	Password string   `json:"password"`
	Folders  []string `json:"folders,omitempty"`
	Security string   `json:"security" enum:"tls,starttls" default:"tls"`
}

// faultsOf applies a configuration and returns the fields at fault.
func (s *system) faultsOf(tenant, config string) map[string]string {
	s.t.Helper()
	err := bus.Request(s.t.Context(), s.nc, subject.Registry(tenant, "apply"), message.RegistryApply{Config: json.RawMessage(config)}, nil)
	var e *errcode.Error
	if err == nil {
		return nil
	}
	if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details == nil {
		s.t.Fatal(err)
	}
	faults := map[string]string{}
	for _, f := range e.Details.Fields {
		faults[f.Field] = f.Message
	}
	return faults
}

// Settings are checked against the tool's schema when they are applied, and filled in
// when they are used; a secret fits wherever a string does.
func TestSettingsFitTheirSchema(t *testing.T) {
	s := start(t)
	secrets := t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "mail"), []byte("hunter22\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type args struct {
		To   string `json:"to"`
		Text string `json:"text"`
	}
	mail := tool.New("Mail", "Sends mail.", func(_ context.Context, c *tool.Call, _ args) (tool.Result, error) {
		var set mailSettings
		if err := c.BindSettings(&set); err != nil {
			return tool.Result{}, err
		}
		if set.Password != "hunter22" {
			return tool.Fail("wrong password"), nil
		}
		set.Password = ""
		return tool.Data(set), nil
	}, tool.Settings[mailSettings]())
	s.worker(func(c *worker.Config) { c.SecretsDir = secrets }, mail)
	good := `{"agentId":"bot","tools":{"Mail":{"host":"imap.example.com","password":{"$secret":"mail"},"timeout":"30s","pinned":{"to":"boss"}}}}`
	if faults := s.faultsOf("acme", good); faults != nil {
		t.Fatal(faults)
	}
	a := s.agent("acme", "bot")
	r, err := a.Call(t.Context(), "Mail", map[string]string{"text": "hi"})
	if want := `{"host":"imap.example.com","port":993,"password":"","security":"tls"}`; err != nil || r.Content != want {
		t.Fatalf("%s %s, %v", r.Content, r.ErrorMessage, err)
	}
	for entry, want := range map[string]map[string]string{
		`{}`:                         {"host": "is required", "password": "is required"},
		`{"host":"h","pasword":"x"}`: {"password": "is required", "pasword": `did you mean "password"`},
		`{"host":"h","password":{"$secret":"mail"},"port":"993"}`:        {"port": "must be integer"},
		`{"host":"h","password":"x","port":{"$secret":"mail"}}`:          {"port": "must be integer, not string"},
		`{"host":"h","password":"x","security":"none"}`:                  {"security": "must be one of"},
		`{"host":"h","password":"x","folders":["a",1]}`:                  {"folders[1]": "must be string"},
		`{"host":"h","password":"x","timeout":"soon"}`:                   {"timeout": "duration"},
		`{"host":"h","password":"x","maxConcurrent":0}`:                  {"maxConcurrent": "over zero"},
		`{"host":"h","password":"x","pinned":{"form":"me"}}`:             {"pinned.form": "unknown field"},
		`{"host":"h","password":"x","pinned":{"to":5}}`:                  {"pinned.to": "must be string"},
		`{"host":"h","password":"x","pinned":{"to":{"$secret":"mail"}}}`: {"pinned.to": "cannot be a secret"},
		`{"host":"h","password":"x","security":{"$secret":"mail"}}`:      nil,
		`{"$secret":"mail"}`: nil,
	} {
		faults := s.faultsOf("other", `{"agents":[{"agentId":"bot","tools":{"Mail":`+entry+`}}]}`)
		if len(faults) != len(want) {
			t.Errorf("%s: faults %v, want %v", entry, faults, want)
		}
		for field, text := range want {
			if got := faults["agents[0].tools.Mail."+field]; !strings.Contains(got, text) {
				t.Errorf("%s: %s: %q, want %q", entry, field, got, text)
			}
		}
	}
	// What was applied while no worker was there is checked when it is used.
	late := tool.New("Late", "Comes later.", func(context.Context, *tool.Call, none) (tool.Result, error) { return tool.OK("ran"), nil }, tool.Settings[mailSettings]())
	s.apply("acme", `{"agentId":"late","tools":{"Late":{"host":"h","password":{"$secret":"mail"},"security":{"$secret":"mail"}}}}`)
	s.worker(func(c *worker.Config) { c.SecretsDir = secrets }, late)
	_, err = s.agent("acme", "late").Call(t.Context(), "Late", nil)
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || len(e.Details.Fields) != 1 || e.Details.Fields[0].Field != "tools.Late.security" {
		t.Errorf("got %v", err)
	} else if strings.Contains(err.Error(), "hunter22") {
		t.Errorf("the error shows the secret: %v", err)
	}
}

func TestSettingsSchemasMustWork(t *testing.T) {
	def := func(settings string) tool.Definition {
		return tool.Definition{Name: "t", Description: "x", InputSchema: json.RawMessage(`{"type":"object"}`), SettingsSchema: json.RawMessage(settings)}
	}
	for settings, ok := range map[string]bool{
		`{"type":"object","properties":{"host":{"type":"string"}}}`: true,
		`{"type":"object","properties":{"timeout":{}}}`:             false,
		`{"type":"string"}`: false,
		`[]`:                false,
	} {
		if err := def(settings).Validate(); (err == nil) != ok {
			t.Errorf("%s: %v", settings, err)
		}
	}
}
