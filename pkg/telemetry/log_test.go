package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolbus/toolbus/pkg/telemetry"
)

func newLogger(t *testing.T, cfg telemetry.Config) (telemetry.Logger, *bytes.Buffer) {
	t.Helper()
	var buf bytes.Buffer
	l, closer, err := telemetry.NewLogger(&buf, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closer.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, &buf
}

func TestLevels(t *testing.T) {
	for level, want := range map[string][]string{
		"debug": {"debug", "info", "warn", "error"},
		"info":  {"info", "warn", "error"},
		"":      {"info", "warn", "error"},
		"warn":  {"warn", "error"},
		"error": {"error"},
	} {
		l, buf := newLogger(t, telemetry.Config{LogLevel: level})
		l.Debug("m")
		l.Info("m")
		l.Warn("m")
		l.Error("m")
		lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
		if len(lines) != len(want) {
			t.Errorf("level %q: %q", level, lines)
			continue
		}
		for i, line := range lines {
			if !strings.Contains(line, "level="+want[i]) {
				t.Errorf("level %q: line %d is %q, want level=%s", level, i, line, want[i])
			}
		}
	}
}

func TestBadConfiguration(t *testing.T) {
	for _, cfg := range []telemetry.Config{{LogLevel: "trace"}, {LogLevel: "INFO"}, {LogFormat: "xml"}} {
		if _, _, err := telemetry.NewLogger(&bytes.Buffer{}, cfg); err == nil {
			t.Errorf("%+v accepted", cfg)
		}
	}
}

func TestModuleStandsOnEveryLine(t *testing.T) {
	l, buf := newLogger(t, telemetry.Config{LogFormat: "json"})
	l.Info("a")
	l.With("service", "files").Info("b", "n", 1)
	l.With("service", "files").Module("Tool_Mail").Info("c", "err", errors.New("line\nbreak"))
	l.Module("Tool_Mail").With("call", "x").Warn("d", "odd")
	for i, want := range []map[string]any{
		{"module": "Core", "msg": "a", "level": "info"},
		{"module": "Core", "msg": "b", "service": "files", "n": 1.0},
		{"module": "Tool_Mail", "msg": "c", "service": "files", "err": "line\nbreak"},
		{"module": "Tool_Mail", "msg": "d", "call": "x", "level": "warn"},
	} {
		line, err := buf.ReadBytes('\n')
		if err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		var got map[string]any
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("line %d %q: %v", i, line, err)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("line %d: %s is %v, want %v", i, k, got[k], v)
			}
		}
		if ts, err := time.Parse(time.RFC3339Nano, got["ts"].(string)); err != nil || time.Since(ts) > time.Minute {
			t.Errorf("line %d: ts %v", i, got["ts"])
		}
	}
}

// A line break in a value must not start a line of its own.
func TestOneMessageIsOneLine(t *testing.T) {
	l, buf := newLogger(t, telemetry.Config{})
	l.Info("a\nlevel=error msg=forged", "k", "x\r\nlevel=error")
	if n := strings.Count(buf.String(), "\n"); n != 1 {
		t.Errorf("%d lines: %q", n, buf.String())
	}
}

func readFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		got[filepath.ToSlash(rel)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestModuleFiles(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "logs")
	l, buf := newLogger(t, telemetry.Config{LogDir: dir, LogLevel: "warn"})
	before := time.Now().UTC().Format(time.DateOnly)
	l.Info("below the level")
	l.Warn("core")
	l.Module("Tool_Mail").Warn("mail", "module", "Core") // a tool cannot write into another module's file
	for _, m := range []string{"../../escape", "/etc/passwd", "..", "", "a\x00b", strings.Repeat("x", 1000)} {
		l.Module(m).Warn("odd module")
	}
	after := time.Now().UTC().Format(time.DateOnly)
	files := readFiles(t, root)
	for _, day := range []string{before, after} {
		if s, ok := files["logs/"+day+"/Core.log"]; ok {
			if strings.Count(s, "\n") != 1 || !strings.Contains(s, "msg=core") {
				t.Errorf("Core.log: %q", s)
			}
		} else if before == after {
			t.Errorf("no Core.log: %v", files)
		}
	}
	if before == after && !strings.Contains(files["logs/"+before+"/Tool_Mail.log"], "msg=mail") {
		t.Errorf("no Tool_Mail.log: %v", files)
	}
	if len(files) != 8 && before == after {
		t.Errorf("%d files, want one per module: %v", len(files), files)
	}
	for name := range files {
		if !strings.HasPrefix(name, "logs/") {
			t.Errorf("%s is outside of the folder", name)
		}
	}
	if n := strings.Count(buf.String(), "\n"); n != 8 {
		t.Errorf("the main log has %d lines, want all 8: %s", n, buf)
	}
}

func TestModuleFilesConcurrently(t *testing.T) {
	dir := t.TempDir()
	l, _ := newLogger(t, telemetry.Config{LogDir: dir})
	var wg sync.WaitGroup
	for i := range 8 {
		m := l.Module([]string{"Core", "Tool_A"}[i%2])
		wg.Go(func() {
			for range 100 {
				m.Info("line", "text", strings.Repeat("x", 300))
			}
		})
	}
	wg.Wait()
	lines := 0
	for name, s := range readFiles(t, dir) {
		for line := range strings.Lines(s) {
			lines++
			if !strings.HasPrefix(line, "level=info ts=") || !strings.HasSuffix(line, "x\n") {
				t.Fatalf("%s: torn line %q", name, line)
			}
		}
	}
	if lines != 800 {
		t.Errorf("%d lines, want 800", lines)
	}
}
