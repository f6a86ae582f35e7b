package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The guides' Go code, marked with "go file=<name>", is a module that builds
// and whose tests pass.
func TestGuides(t *testing.T) {
	root := repoRoot(t)
	for _, c := range []struct {
		guide, module string
		files         int
	}{
		{"tool-author.md", "example.com/orders", 7},
		{"agent-author.md", "example.com/assistant", 3},
	} {
		t.Run(c.guide, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, "docs", c.guide))
			if err != nil {
				t.Fatal(err)
			}
			blocks, err := fencedBlocks(string(text))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			write := func(name, content string) {
				t.Helper()
				file := filepath.Join(dir, filepath.FromSlash(name))
				if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			files := 0
			for _, b := range blocks {
				if name, ok := strings.CutPrefix(b.info, "go file="); ok {
					write(name, b.text)
					files++
				} else if strings.HasPrefix(b.info, "go") {
					t.Errorf("%s:%d: Go code that no test builds", c.guide, b.line)
				}
			}
			if files != c.files {
				t.Fatalf("%d files, want %d", files, c.files)
			}
			write("go.mod", "module "+c.module+"\n\ngo 1.26.0\n")
			write("go.work", fmt.Sprintf("go 1.26.0\n\nuse (\n\t.\n\t%q\n\t%q\n)\n", filepath.Join(root, "contracts"), filepath.Join(root, "pkg")))
			sums, err := os.ReadFile(filepath.Join(root, "go.work.sum"))
			if err != nil {
				t.Fatal(err)
			}
			write("go.work.sum", string(sums))
			for _, args := range [][]string{{"vet", "./..."}, {"test", "./..."}} {
				cmd := exec.CommandContext(t.Context(), "go", args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
				}
			}
		})
	}
}
