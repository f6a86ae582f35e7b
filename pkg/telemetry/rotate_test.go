package telemetry

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-kit/log"
)

func TestANewDayIsANewFile(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 5, 12, 23, 59, 59, 0, time.UTC)
	m := &moduleFiles{dir: dir, enc: log.NewLogfmtLogger, now: func() time.Time { return now }, files: map[string]*moduleFile{}}
	for range 2 {
		if err := m.Log("module", "Tool_Mail", "msg", "x"); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	// A zone ahead of UTC must not change the day.
	now = time.Date(2026, 5, 13, 1, 0, 0, 0, time.FixedZone("", 2*3600))
	if err := m.Log("module", "Tool_Mail", "msg", "y"); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	for day, want := range map[string]string{
		"2026-05-12": "module=Tool_Mail msg=x\nmodule=Tool_Mail msg=y\n",
		"2026-05-13": "module=Tool_Mail msg=x\n",
	} {
		b, err := os.ReadFile(filepath.Join(dir, day, "Tool_Mail.log"))
		if err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", day, b, err)
		}
	}
	if err := m.Log("module", "Core", "msg", "late"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
