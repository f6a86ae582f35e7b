package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCompare(t *testing.T) {
	start := sample{resident: 80 * mib, heap: 40 * mib, goroutines: 300, cpu: 0.7, disk: mib}
	for _, c := range []struct {
		name   string
		change func(*sample)
		want   []string
	}{
		{"the same", func(*sample) {}, nil},
		{"less", func(s *sample) { s.resident, s.goroutines, s.cpu = mib, 10, 0 }, nil},
		{"within", func(s *sample) {
			s.resident, s.heap, s.goroutines, s.cpu, s.disk = 108*mib, 54*mib, 338, 2.05, 9.25*mib
		}, nil},
		{"resident", func(s *sample) { s.resident = 108*mib + 1 }, []string{"resident memory, MiB"}},
		{"heap", func(s *sample) { s.heap = 54*mib + 1 }, []string{"heap, MiB"}},
		{"goroutines", func(s *sample) { s.goroutines = 339 }, []string{"goroutines"}},
		{"busy", func(s *sample) { s.cpu = 2.1 }, []string{"idle CPU, %"}},
		{"a marker is left", func(s *sample) { s.messages, s.bytes = 1, 100 }, []string{"messages", "bytes of messages"}},
		{"files", func(s *sample) { s.disk = 10 * mib }, []string{"files, MiB"}},
	} {
		end := start
		c.change(&end)
		if got := compare(start, end, nil); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	var out strings.Builder
	compare(start, start, &out)
	if n := strings.Count(out.String(), "\n"); n != len(tolerances)+1 || !strings.Contains(out.String(), "80.0") {
		t.Errorf("got\n%s", &out)
	}
}

func TestCurve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curve.csv")
	var out strings.Builder
	c, err := newCurve(&out, path)
	if err != nil {
		t.Fatal(err)
	}
	c.add(sample{phase: "cycles", at: 90 * time.Second, cycles: 7, resident: 2 * mib, heap: mib, goroutines: 3, cpu: 1.25, messages: 4, bytes: 5, disk: 6})
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = "phase,seconds,cycles,rss_bytes,heap_goal_bytes,goroutines,cpu_percent,messages,message_bytes,disk_bytes\n" +
		"cycles,90,7,2097152,1048576,3,1.25,4,5,6\n"
	if string(got) != want {
		t.Errorf("got %q", got)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("got\n%s", &out)
	}
}
