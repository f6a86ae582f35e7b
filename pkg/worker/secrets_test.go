package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

func TestSecretsAreFilledInAndMissingOnesFailClosed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mail-password"), []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "outside"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../outside", filepath.Join(dir, "escape")); err != nil {
		t.Fatal(err)
	}
	s := secrets{dir: dir, env: func(k string) (string, bool) {
		return "from-env", k == "TOOLBUS_SECRET_DB_DSN"
	}}
	for _, c := range []struct {
		settings, want string
		code           errcode.Code
	}{
		{`{"a":1.50,"b":"x"}`, `{"a":1.50,"b":"x"}`, ""},
		{`{"p":{"$secret":"mail-password"},"n":12345678901234567890}`, `{"n":12345678901234567890,"p":"from-file"}`, ""},
		{`{"deep":[{"p":{"$secret":"db-dsn"}}]}`, `{"deep":[{"p":"from-env"}]}`, ""},
		{`{"p":{"$secret":"nope"}}`, "", errcode.Unavailable},
		{`{"p":{"$secret":"../outside"}}`, "", errcode.InvalidRequest},
		{`{"p":{"$secret":"escape"}}`, "", errcode.Unavailable},
		{`{"p":{"$secret":""}}`, "", errcode.InvalidRequest},
	} {
		got, _, err := s.resolve(json.RawMessage(c.settings))
		if errcode.Of(err) != c.code {
			t.Errorf("%s: got %v, want %q", c.settings, err, c.code)
		}
		if err == nil && string(got) != c.want {
			t.Errorf("%s: got %s, want %s", c.settings, got, c.want)
		}
	}
}

func TestSecretsNeverReachTextsOrLogs(t *testing.T) {
	s := secrets{env: func(string) (string, bool) { return "s3cr3t-value", true }}
	_, r, err := s.resolve(json.RawMessage(`{"p":{"$secret":"x"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.text("dial user:s3cr3t-value@db: refused"); strings.Contains(got, "s3cr3t") || !strings.Contains(got, "refused") {
		t.Errorf("got %q", got)
	}
	var out bytes.Buffer
	base, _, err := telemetry.NewLogger(&out, telemetry.Config{LogLevel: "debug"})
	if err != nil {
		t.Fatal(err)
	}
	log := r.logger(base)
	log.Debug("with s3cr3t-value", "a", "s3cr3t-value")
	log.Info("x", "err", errors.New("bad s3cr3t-value"))
	log.Warn("x", "map", map[string]string{"k": "s3cr3t-value"})
	log.Error("x", "bytes", []string{"s3cr3t-value"}, "n", 5)
	if got := out.String(); strings.Contains(got, "s3cr3t") || strings.Count(got, "redacted") < 5 {
		t.Errorf("log:\n%s", got)
	}
}
