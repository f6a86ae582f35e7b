package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The rate that a bar shows counts what moved before it was shown together with
// the time that took. A transfer that is over sooner shows none.
func TestBarShowsTheRate(t *testing.T) {
	for name, size := range map[string]int64{"known size": 100e6, "stdin": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				bar := newTransfer(&out, "big\x1b[2J", size)
				for range 9 {
					time.Sleep(100 * time.Millisecond)
					bar.add(1e6)
				}
				if out.Len() > 0 {
					t.Fatalf("after 0.9 s it shows %q", out.String())
				}
				for range 5 {
					time.Sleep(100 * time.Millisecond)
					bar.add(1e6)
				}
				shown := out.String()
				if n := strings.Count(shown, ", 10 MB/s)"); n == 0 || n != strings.Count(shown, "B/s") || !strings.Contains(shown, "(14") {
					t.Errorf("at 10 MB a second it shows %q", shown)
				}
				if strings.Contains(shown, "\x1b") {
					t.Errorf("the name steers the terminal: %q", shown)
				}
				bar.end()
				left := out.String()[len(shown):]
				if left == "" || strings.TrimSpace(strings.ReplaceAll(left, "\r", "")) != "" {
					t.Errorf("the end leaves %q", left)
				}
			})
		})
	}
}
