package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A wall clock that is wrong must not matter to who holds a lock or leads (ShedLock 91
// and 231): nothing there makes a number of a [time.Time]. Differences of times that
// [time.Now] gave are of the monotonic clock, and what lasts is told to servers as a
// duration. A comment that begins with "wall clock:" says why a line may.
func TestLocksAskNoWallClock(t *testing.T) {
	g := loadGraph(t)
	for _, name := range g.ours() {
		if !matchesAny([]string{"locks/...", "leader/...", "internal/leaseclock"}, name) || matchesAny(testSupport, name) {
			continue
		}
		paths, err := filepath.Glob(filepath.Join(g[full(name)].Dir, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v, %v", name, paths, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range wallClocks(fset, f) {
				t.Errorf("%s: makes a number of a clock's time: locks know durations only, or say why with a comment \"// wall clock: ...\"", at)
			}
		}
	}
}

// wallClocks returns where a file asks a time what it is by the wall clock.
func wallClocks(fset *token.FileSet, f *ast.File) []token.Position {
	methods := []string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "Format", "AppendFormat", "MarshalText", "MarshalJSON"}
	excused := excusedLines(fset, f, "wall clock: ")
	var found []token.Position
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		fn, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(methods, fn.Sel.Name) {
			return true
		}
		if x, ok := fn.X.(*ast.Ident); ok && x.Name == "time" {
			return true // makes a time of a number
		}
		if at := fset.Position(call.Pos()); !excused[at.Line] {
			found = append(found, at)
		}
		return true
	})
	return found
}

func TestWallClocksAreFound(t *testing.T) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", `package x

func f(t time.Time) {
	_ = time.Now().UnixMilli()
	_ = time.Unix(1, 0).Sub(t)
	_ = t.Format("x")
	// wall clock: for people
	_ = t.UnixNano()
}
`, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var lines []int
	for _, at := range wallClocks(fset, f) {
		lines = append(lines, at.Line)
	}
	if want := []int{4, 6}; !slices.Equal(lines, want) {
		t.Errorf("found on lines %v, want %v", lines, want)
	}
}
