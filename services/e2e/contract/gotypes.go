package contract

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// goType is a struct of the contract as its source has it.
type goType struct {
	name   string
	doc    string
	fields []goField
}

type goField struct {
	name     string // in Go; "" when embedded
	json     string
	doc      string
	required bool // no omitempty
	typ      ast.Expr
}

// source is the parsed Go files of a package, tests left out.
type source struct {
	types  []goType          // exported structs that travel, by name
	consts map[string]string // of strings
	funcs  []*ast.FuncDecl
}

func parseSource(dir string) (source, error) {
	s := source{consts: map[string]string{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return s, err
	}
	fset := token.NewFileSet()
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return s, err
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				s.funcs = append(s.funcs, d)
			case *ast.GenDecl:
				if err := s.add(d); err != nil {
					return s, fmt.Errorf("%s: %w", fset.Position(d.Pos()), err)
				}
			}
		}
	}
	slices.SortFunc(s.types, func(a, b goType) int { return strings.Compare(a.name, b.name) })
	return s, nil
}

func (s *source) add(d *ast.GenDecl) error {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for i, n := range spec.Names {
				if i < len(spec.Values) {
					if lit, ok := spec.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
						v, err := strconv.Unquote(lit.Value)
						if err != nil {
							return err
						}
						s.consts[n.Name] = v
					}
				}
			}
		case *ast.TypeSpec:
			if !spec.Name.IsExported() {
				continue
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok || !travels(st) {
				continue
			}
			doc := spec.Doc
			if doc == nil {
				doc = d.Doc
			}
			t := goType{name: spec.Name.Name, doc: text(doc)}
			for _, f := range st.Fields.List {
				fields, err := readField(f)
				if err != nil {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				t.fields = append(t.fields, fields...)
			}
			s.types = append(s.types, t)
		}
	}
	return nil
}

// travels tells whether a struct has a JSON form: some field is tagged, or all
// it has is embedded.
func travels(st *ast.StructType) bool {
	return slices.ContainsFunc(st.Fields.List, func(f *ast.Field) bool { return f.Tag != nil || len(f.Names) == 0 })
}

func readField(f *ast.Field) ([]goField, error) {
	if len(f.Names) == 0 {
		return []goField{{typ: f.Type}}, nil
	}
	if !f.Names[0].IsExported() {
		return nil, nil
	}
	if len(f.Names) > 1 || f.Tag == nil {
		return nil, fmt.Errorf("field %s has no JSON tag of its own", f.Names[0].Name)
	}
	raw, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return nil, err
	}
	name, rest, _ := strings.Cut(reflect.StructTag(raw).Get("json"), ",")
	if name == "-" {
		return nil, nil // not on the wire
	}
	if name == "" {
		return nil, fmt.Errorf("field %s has no JSON name", f.Names[0].Name)
	}
	doc := f.Doc
	if doc == nil {
		doc = f.Comment
	}
	return []goField{{
		name: f.Names[0].Name, json: name, doc: text(doc), typ: f.Type,
		required: !slices.Contains(strings.Split(rest, ","), "omitempty"),
	}}, nil
}

// text is a comment's text with single line breaks taken out.
func text(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	paragraphs := strings.Split(strings.TrimSpace(c.Text()), "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = strings.Join(strings.Fields(p), " ")
	}
	return strings.Join(paragraphs, "\n\n")
}
