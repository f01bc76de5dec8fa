package main

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	tableFile  = "internal/mutation/guards.txt"
	importPath = "github.com/solotick/solotick/internal/mutation"
)

// row is one line of the table.
type row struct {
	guard    string
	packages []string // relative to the module root, without "./"
	run      string   // for -test.run
}

func readTable(root string) ([]row, error) {
	f, err := os.Open(filepath.Join(root, tableFile))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from

	var rows []row
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s:%d: %d tab-separated fields, want guard, packages and pattern", tableFile, n, len(fields))
		}
		r := row{guard: strings.TrimSpace(fields[0]), run: strings.TrimSpace(fields[2])}
		for p := range strings.FieldsSeq(fields[1]) {
			r.packages = append(r.packages, strings.TrimPrefix(p, "./"))
		}
		switch {
		case r.guard == "" || r.run == "" || len(r.packages) == 0:
			return nil, fmt.Errorf("%s:%d: a field is empty", tableFile, n)
		case seen[r.guard]:
			return nil, fmt.Errorf("%s:%d: guard %q stands twice; give one row all its packages", tableFile, n, r.guard)
		}
		if _, err := regexp.Compile(r.run); err != nil {
			return nil, fmt.Errorf("%s:%d: pattern: %w", tableFile, n, err)
		}
		seen[r.guard] = true
		rows = append(rows, r)
	}
	return rows, lines.Err()
}

// findGuards returns the guards that the module's code asks about, each with the
// place of its first question. Only a literal name can be matched with the table,
// so anything else is an error.
func findGuards(root string) (map[string]string, error) {
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		return findInFile(path, found)
	})
	return found, err
}

func findInFile(path string, found map[string]string) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	name := ""
	for _, imp := range file.Imports {
		if imp.Path.Value != strconv.Quote(importPath) {
			continue
		}
		name = "mutation"
		if imp.Name != nil {
			name = imp.Name.Name
		}
	}
	if name == "" {
		return nil
	}

	var errs []error
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "On" {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); !ok || x.Name != name {
			return true
		}
		at := fset.Position(call.Pos()).String()
		lit, ok := call.Args[0].(*ast.BasicLit)
		if !ok {
			errs = append(errs, fmt.Errorf("%s: the name of a guard must be a string literal", at))
			return true
		}
		guard, err := strconv.Unquote(lit.Value)
		if err != nil || guard == "" {
			errs = append(errs, fmt.Errorf("%s: a guard needs a name", at))
			return true
		}
		if _, ok := found[guard]; !ok {
			found[guard] = at
		}
		return true
	})
	return errors.Join(errs...)
}

// match demands that table and code name the same guards.
func match(rows []row, found map[string]string) error {
	var errs []error
	listed := map[string]bool{}
	for _, r := range rows {
		listed[r.guard] = true
		if _, ok := found[r.guard]; !ok {
			errs = append(errs, fmt.Errorf("guard %q is in %s, but no code asks about it", r.guard, tableFile))
		}
	}
	for _, guard := range slices.Sorted(maps.Keys(found)) {
		if !listed[guard] {
			errs = append(errs, fmt.Errorf("%s: guard %q is not in %s: add the tests that must fail without it", found[guard], guard, tableFile))
		}
	}
	return errors.Join(errs...)
}
