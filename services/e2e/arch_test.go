package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repoRoot is the folder of go.work.
func repoRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.work")); err != nil {
		t.Fatal(err)
	}
	return root
}

// workspace lists every package of the workspace and all they depend on.
func workspace(t *testing.T) []listed {
	t.Helper()
	root := repoRoot(t)
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-json=ImportPath,Name,Standard,Dir,GoFiles,Imports,TestImports,XTestImports",
		"./contracts/...", "./pkg/...", "./services/...", "./examples/...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	return pkgs
}

func TestArchitecture(t *testing.T) {
	pkgs := workspace(t)
	for _, b := range checkWalls(pkgs, walls()) {
		t.Error(b)
	}
	for _, b := range checkNames(pkgs) {
		t.Error(b)
	}
	inits, err := checkInit(pkgs)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range inits {
		t.Error(b)
	}
}

// made is a small workspace in which no wall is breached.
func made() []listed {
	pkg := func(p string, imports ...string) listed {
		for i, imp := range imports {
			if strings.HasPrefix(imp, "./") {
				imports[i] = ours + imp[2:]
			}
		}
		return listed{ImportPath: p, Name: filepath.Base(p), Imports: imports}
	}
	our := func(p string, imports ...string) listed { return pkg(ours+p, imports...) }
	std := pkg("fmt")
	std.Standard = true
	return []listed{
		std,
		pkg("github.com/nats-io/nats.go", "fmt"),
		pkg("github.com/nats-io/nats-server/v2/server", "fmt"),
		pkg("example.com/driver", "fmt"),
		our("contracts/errcode", "fmt"),
		our("contracts/subject", "./contracts/errcode"),
		our("pkg/tool", "fmt", "./contracts/errcode"),
		our("pkg/tool/tooltest", "./pkg/tool"),
		our("pkg/bus", "github.com/nats-io/nats.go", "./contracts/subject"),
		our("pkg/natstest", "github.com/nats-io/nats-server/v2/server", "./pkg/bus"),
		our("pkg/worker", "./pkg/tool", "./pkg/bus"),
		our("services/tools/mail", "./pkg/tool", "example.com/driver"),
		our("services/tools/database", "./pkg/tool"),
		our("services/tools/catalog", "./services/tools/mail", "./services/tools/database"),
		our("services/state", "./pkg/bus"),
		our("services/files", "./pkg/bus"),
		our("services/files/cmd/files", "./services/files"),
		our("services/toolbus", "./services/state", "./services/files", "github.com/nats-io/nats-server/v2/server"),
		our("examples/members", "./pkg/tool"),
		our("examples/cmd/examples-worker", "./examples/members", "./pkg/worker"),
	}
}

// Each way to breach a wall is found; without one there is nothing to find.
func TestWallsHold(t *testing.T) {
	if got := checkWalls(made(), walls()); len(got) != 0 {
		t.Fatalf("the sound workspace: %v", got)
	}
	for name, c := range map[string]struct {
		from, to string
		test     bool
		want     string
	}{
		"contracts to a library":             {from: "contracts/errcode", to: "example.com/driver", want: "standard library only"},
		"contracts to pkg":                   {from: "contracts/subject", to: ours + "pkg/tool", want: "standard library only"},
		"contracts to a library through own": {from: "contracts/errcode", to: "github.com/nats-io/nats.go", want: "contracts/subject -> " + ours + "contracts/errcode -> "},
		"pkg/tool to NATS":                   {from: "pkg/tool", to: "github.com/nats-io/nats.go", want: "no transport"},
		"pkg/tool to NATS through bus":       {from: "pkg/tool", to: ours + "pkg/bus", want: "pkg/bus -> github.com/nats-io/nats.go"},
		"tooltest to the server":             {from: "pkg/tool/tooltest", to: "github.com/nats-io/nats-server/v2/server", want: "no transport"},
		"a tool to another":                  {from: "services/tools/mail", to: ours + "services/tools/database", want: "another tool"},
		"a tool's test to another":           {from: "services/tools/mail", to: ours + "services/tools/database", test: true, want: "a test of"},
		"a tool to the bus":                  {from: "services/tools/mail", to: ours + "pkg/bus", want: "pkg/tool and contracts only"},
		"a tool to a service":                {from: "services/tools/mail", to: ours + "services/state", want: "pkg/tool and contracts only"},
		"examples to services":               {from: "examples/members", to: ours + "services/tools/mail", want: "what an outsider can build"},
		"examples' test to services":         {from: "examples/members", to: ours + "services/tools/mail", test: true, want: "a test of"},
		"pkg to services":                    {from: "pkg/worker", to: ours + "services/state", want: "pkg never reaches services"},
		"pkg to examples":                    {from: "pkg/worker", to: ours + "examples/members", want: "pkg never reaches services"},
		"a service command to the server":    {from: "services/files/cmd/files", to: "github.com/nats-io/nats-server/v2/server", want: "link nats-server"},
		"a service to natstest":              {from: "services/files", to: ours + "pkg/natstest", want: "link nats-server"},
		"a service to another":               {from: "services/files", to: ours + "services/state", want: "meet on the bus"},
	} {
		t.Run(name, func(t *testing.T) {
			pkgs := made()
			i := slices.IndexFunc(pkgs, func(p listed) bool { return p.ImportPath == ours+c.from })
			if i < 0 {
				t.Fatalf("no package %s", c.from)
			}
			if c.test {
				pkgs[i].XTestImports = append(pkgs[i].XTestImports, c.to)
			} else {
				pkgs[i].Imports = append(pkgs[i].Imports, c.to)
			}
			if got := strings.Join(checkWalls(pkgs, walls()), "\n"); !strings.Contains(got, c.want) {
				t.Errorf("got %q, want …%s…", got, c.want)
			}
		})
	}
	for _, w := range walls() {
		without := slices.DeleteFunc(made(), w.from)
		if got := checkWalls(without, []wall{w}); len(got) != 1 || !strings.HasPrefix(got[0], "no package to check") {
			t.Errorf("%s: a rule without packages must not pass: %v", w.rule, got)
		}
	}
}

func TestNamesAndInits(t *testing.T) {
	for name, bad := range map[string]bool{"pkg/util": true, "services/internal/helpers": true, "pkg/bus": false} {
		if got := checkNames([]listed{{ImportPath: ours + name, Name: filepath.Base(name)}}); (len(got) > 0) != bad {
			t.Errorf("%s: %v", name, got)
		}
	}
	for src, n := range map[string]int{
		"package p\nfunc init() {}\nfunc init() {}":                  2,
		"package p\ntype t int\nfunc (t) init() {}\nfunc inits() {}": 0,
	} {
		if got, err := initsIn("p.go", src); err != nil || len(got) != n {
			t.Errorf("%q: %v, %v", src, got, err)
		}
	}
}
