package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// parseTests parses the test files of the package.
func parseTests(t *testing.T, fset *token.FileSet, p pkg) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// Every package with tests fails when one of them leaves a goroutine behind.
func TestGoleakEverywhere(t *testing.T) {
	g := loadGraph(t)
	for _, name := range g.ours() {
		files := parseTests(t, token.NewFileSet(), g[full(name)])
		if len(files) > 0 && !slices.ContainsFunc(files, hasLeakCheck) {
			t.Errorf("%s: no TestMain that calls goleak.VerifyTestMain (or goleak.Find, where something else runs the tests)", name)
		}
	}
}

func hasLeakCheck(f *ast.File) bool {
	testMain, check := false, false
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			testMain = testMain || n.Recv == nil && n.Name.Name == "TestMain"
		case *ast.SelectorExpr:
			check = check || isSelector(n, "goleak", "VerifyTestMain") || isSelector(n, "goleak", "Find")
		}
		return true
	})
	return testMain && check
}

func isSelector(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// A test waits for what it waits for, not for some time to pass. In a synctest
// bubble time.Sleep is virtual, so it is allowed in what a test hands to
// synctest.Test, or to a function of its package that calls synctest.Test, and in
// functions of packages that have bubbles where these are not tests themselves or
// stand in a table of cases. Elsewhere a comment on the line, or on the one above, that begins with
// "real time:" says why the time itself is what the test is about.
func TestNoSleepInTests(t *testing.T) {
	g := loadGraph(t)
	for _, name := range g.ours() {
		fset := token.NewFileSet()
		for _, at := range sleeps(fset, parseTests(t, fset, g[full(name)])) {
			if rel, err := filepath.Rel(mustAbs(t, root), at.Filename); err == nil {
				at.Filename = rel
			}
			t.Errorf("%s: time.Sleep outside a synctest bubble: wait for the condition, or say why with a comment \"// real time: ...\"", at)
		}
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// sleeps returns the calls of time.Sleep that the test files of a package may not
// make.
func sleeps(fset *token.FileSet, files []*ast.File) []token.Position {
	openers := bubbleOpeners(files)
	var found []token.Position
	for _, f := range files {
		excused := excusedLines(fset, f, "real time: ")
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && len(openers) > 0 && !isTest(fn.Name.Name) {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if _, table := n.(*ast.CompositeLit); table && len(openers) > 0 {
					return false
				}
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if opensBubble(call, openers) {
					return false
				}
				if at := fset.Position(call.Pos()); isSelector(call.Fun, "time", "Sleep") && !excused[at.Line] {
					found = append(found, at)
				}
				return true
			})
		}
	}
	return found
}

// bubbleOpeners returns the names of the functions that call synctest.Test,
// tests included; a call of one of them opens a bubble.
func bubbleOpeners(files []*ast.File) map[string]bool {
	openers := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if e, ok := n.(ast.Expr); ok && isSelector(e, "synctest", "Test") {
					openers[fn.Name.Name] = true
				}
				return true
			})
		}
	}
	return openers
}

func opensBubble(call *ast.CallExpr, openers map[string]bool) bool {
	if isSelector(call.Fun, "synctest", "Test") {
		return true
	}
	fn, ok := call.Fun.(*ast.Ident)
	return ok && openers[fn.Name]
}

// excusedLines are those with a comment that begins with the text, and those below.
func excusedLines(fset *token.FileSet, f *ast.File, text string) map[int]bool {
	excused := map[int]bool{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "// "+text) {
				excused[fset.Position(c.Pos()).Line] = true
				excused[fset.Position(group.End()).Line+1] = true
			}
		}
	}
	return excused
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Benchmark") || strings.HasPrefix(name, "Fuzz")
}

func TestSleepsAreFound(t *testing.T) {
	tests := []struct {
		name, src string
		want      []int // lines
	}{
		{"in a test", "import \"time\"\nfunc TestX(*testing.T) {\n\ttime.Sleep(1)\n}", []int{4}},
		{"in another function", "import \"time\"\nfunc wait() {\n\ttime.Sleep(1)\n}", []int{4}},
		{"in a bubble", "import (\n\"testing/synctest\"; \"time\")\nfunc TestX(t *testing.T) {\n\tsynctest.Test(t, func(*testing.T) { time.Sleep(1) })\n}", nil},
		{"beside a bubble", "import (\n\"testing/synctest\"; \"time\")\nfunc TestX(t *testing.T) {\n\tsynctest.Test(t, func(*testing.T) {})\n\ttime.Sleep(1)\n}", []int{6}},
		{"in a function for bubbles", "import (\n\"testing/synctest\"; \"time\")\nfunc later() { time.Sleep(1) }\nfunc TestX(t *testing.T) { synctest.Test(t, func(*testing.T) { later() }) }", nil},
		{"in a bubble by another function", "import (\n\"testing/synctest\"; \"time\")\nfunc bubble(t *testing.T, f func(*testing.T)) { synctest.Test(t, f) }\nfunc TestX(t *testing.T) {\n\tbubble(t, func(*testing.T) { time.Sleep(1) })\n}", nil},
		{"beside a bubble by another function", "import (\n\"testing/synctest\"; \"time\")\nfunc bubble(t *testing.T, f func(*testing.T)) { synctest.Test(t, f) }\nfunc TestX(t *testing.T) {\n\ttime.Sleep(1)\n}", []int{6}},
		{"in a table for bubbles", "import (\n\"testing/synctest\"; \"time\")\nfunc TestX(t *testing.T) {\n\tc := []func(){func() { time.Sleep(1) }}\n\tsynctest.Test(t, func(*testing.T) { c[0]() })\n}", nil},
		{"in a table", "import \"time\"\nvar c = []func(){func() { time.Sleep(1) }}", []int{3}},
		{"excused on the line", "import \"time\"\nfunc TestX(*testing.T) {\n\ttime.Sleep(1) // real time: the frozen process must outlive its lease\n}", nil},
		{"excused above", "import \"time\"\nfunc TestX(*testing.T) {\n\t// real time: the frozen process\n\t// must outlive its lease\n\ttime.Sleep(1)\n}", nil},
		{"another comment", "import \"time\"\nfunc TestX(*testing.T) {\n\ttime.Sleep(1) // let it settle\n}", []int{4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "x_test.go", "package x\n"+tt.src, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			var lines []int
			for _, at := range sleeps(fset, []*ast.File{f}) {
				lines = append(lines, at.Line)
			}
			if !slices.Equal(lines, tt.want) {
				t.Errorf("found lines %v, want %v", lines, tt.want)
			}
		})
	}
}

func TestLeakCheckIsFound(t *testing.T) {
	tests := map[string]bool{
		"func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }":                                     true,
		"func TestMain(m *testing.M) { testscript.Main(leakChecked{m}, nil) }\nvar find = goleak.Find": true,
		"func TestMain(m *testing.M) { os.Exit(m.Run()) }":                                             false,
		"func TestX(t *testing.T) { goleak.VerifyNone(t) }":                                            false,
	}
	for src, want := range tests {
		f, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\n"+src, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := hasLeakCheck(f); got != want {
			t.Errorf("%s: %v, want %v", src, got, want)
		}
	}
}

// A name says what is inside.
func TestNames(t *testing.T) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "types", "misc"}
	walk(t, func(path string, d os.DirEntry) {
		name := d.Name()
		if !d.IsDir() {
			var isGo bool
			if name, isGo = strings.CutSuffix(name, ".go"); !isGo {
				return
			}
			name = strings.TrimSuffix(name, "_test")
		}
		if slices.Contains(empty, name) {
			t.Errorf("%s: the name says nothing; call it by the noun inside", path)
		}
	})
}
