package e2e

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const ours = "github.com/toolbus/toolbus/"

// listed is a package as go list shows it, with what the walls are about.
type listed struct {
	ImportPath   string
	Name         string
	Standard     bool
	Dir          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// wall is one rule: what packages it is about, and what they must not reach,
// directly or through others.
type wall struct {
	rule  string // as an architect would say it
	from  func(p listed) bool
	allow func(from, to listed) bool
	tests bool // also the direct imports of tests
}

func under(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

func isOurs(p listed) bool { return strings.HasPrefix(p.ImportPath, ours) }

func in(root string) func(listed) bool {
	return func(p listed) bool { return under(p.ImportPath, ours+root) }
}

func isNATSServer(p listed) bool { return under(p.ImportPath, "github.com/nats-io/nats-server/v2") }

func isNATS(p listed) bool {
	return isNATSServer(p) || under(p.ImportPath, "github.com/nats-io/nats.go") || under(p.ImportPath, "github.com/synadia-io/orbit.go")
}

// toolOf is the name of the built-in tool that a package belongs to, or "". The
// file tools stand in pkg, where tests of tools that call them find them.
func toolOf(importPath string) string {
	if importPath == ours+"pkg/tool/filetools" {
		return "filetools"
	}
	rest, ok := strings.CutPrefix(importPath, ours+"services/tools/")
	name, _, _ := strings.Cut(rest, "/")
	if !ok || name == "catalog" {
		return ""
	}
	return name
}

// serviceOf is the name of the service that a package belongs to, or "".
func serviceOf(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, ours+"services/")
	name, _, _ := strings.Cut(rest, "/")
	if !ok || slices.Contains([]string{"tools", "internal", "toolbus", "e2e"}, name) {
		return ""
	}
	return name
}

// walls are the rules of docs/adr/0001.
func walls() []wall {
	return []wall{
		{
			rule:  "contracts reaches the standard library only",
			from:  in("contracts"),
			allow: func(_, to listed) bool { return to.Standard || under(to.ImportPath, ours+"contracts") },
		},
		{
			rule:  "pkg/tool reaches no transport: a tool can be tested without NATS",
			from:  in("pkg/tool"),
			allow: func(_, to listed) bool { return !isNATS(to) },
		},
		{
			rule: "a built-in tool reaches, of ours, pkg/tool and contracts only, and never another tool",
			from: func(p listed) bool { return toolOf(p.ImportPath) != "" },
			allow: func(from, to listed) bool {
				return !isOurs(to) || under(to.ImportPath, ours+"contracts") || under(to.ImportPath, ours+"pkg/tool") ||
					toolOf(to.ImportPath) == toolOf(from.ImportPath)
			},
			tests: true,
		},
		{
			rule: "examples reach pkg and contracts only: they are what an outsider can build",
			from: in("examples"),
			allow: func(_, to listed) bool {
				return !isOurs(to) || in("pkg")(to) || in("contracts")(to) || in("examples")(to)
			},
			tests: true,
		},
		{
			rule:  "pkg never reaches services or examples",
			from:  in("pkg"),
			allow: func(_, to listed) bool { return !isOurs(to) || in("pkg")(to) || in("contracts")(to) },
			tests: true,
		},
		{
			rule: "only toolbus and pkg/natstest link nats-server",
			from: func(p listed) bool {
				return isOurs(p) && !in("services/toolbus")(p) && !in("pkg/natstest")(p)
			},
			allow: func(_, to listed) bool { return !isNATSServer(to) },
		},
		{
			rule: "a service never reaches another service: they meet on the bus",
			from: func(p listed) bool { return serviceOf(p.ImportPath) != "" },
			allow: func(from, to listed) bool {
				other := serviceOf(to.ImportPath)
				return other == "" || other == serviceOf(from.ImportPath)
			},
		},
	}
}

// checkWalls returns one line for every breach, with the way that leads there,
// and for every rule that no package was checked against.
func checkWalls(pkgs []listed, rules []wall) []string {
	byPath := map[string]listed{}
	for _, p := range pkgs {
		byPath[p.ImportPath] = p
	}
	var breaches []string
	for _, w := range rules {
		checked := false
		for _, p := range pkgs {
			if !w.from(p) {
				continue
			}
			checked = true
			starts := [][]string{{p.ImportPath}}
			if w.tests {
				for _, imp := range append(slices.Clone(p.TestImports), p.XTestImports...) {
					if to, ok := byPath[imp]; ok && !w.allow(p, to) {
						breaches = append(breaches, fmt.Sprintf("%s (a test of %s imports %s)", w.rule, p.ImportPath, imp))
					}
				}
			}
			if way := forbidden(byPath, starts, p, w); way != nil {
				breaches = append(breaches, fmt.Sprintf("%s (%s)", w.rule, strings.Join(way, " -> ")))
			}
		}
		if !checked {
			breaches = append(breaches, "no package to check: "+w.rule)
		}
	}
	return breaches
}

// forbidden is the shortest way from p to a package that w does not allow, or
// nil.
func forbidden(byPath map[string]listed, ways [][]string, p listed, w wall) []string {
	seen := map[string]bool{p.ImportPath: true}
	for len(ways) > 0 {
		way := ways[0]
		ways = ways[1:]
		for _, imp := range byPath[way[len(way)-1]].Imports {
			to, known := byPath[imp]
			if seen[imp] || !known {
				continue
			}
			seen[imp] = true
			next := append(slices.Clone(way), imp)
			if !w.allow(p, to) {
				return next
			}
			ways = append(ways, next)
		}
	}
	return nil
}

// badNames are package names that say nothing.
var badNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared"}

// checkNames returns our packages with a name that says nothing.
func checkNames(pkgs []listed) []string {
	var bad []string
	for _, p := range pkgs {
		if isOurs(p) && (slices.Contains(badNames, p.Name) || slices.Contains(badNames, path.Base(p.ImportPath))) {
			bad = append(bad, p.ImportPath+": a package's name says what it does")
		}
	}
	return bad
}

// checkInit returns where our code, tests apart, declares func init. Nothing
// registers itself: what a process holds stands in its main or its catalogue.
func checkInit(pkgs []listed) ([]string, error) {
	var found []string
	for _, p := range pkgs {
		if !isOurs(p) {
			continue
		}
		for _, f := range p.GoFiles {
			file := filepath.Join(p.Dir, f)
			lines, err := initsIn(file, nil)
			if err != nil {
				return nil, err
			}
			found = append(found, lines...)
		}
	}
	return found, nil
}

// initsIn parses src, or the named file when src is nil.
func initsIn(name string, src any) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, d := range file.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			found = append(found, fset.Position(fn.Pos()).String()+": func init")
		}
	}
	return found, nil
}
