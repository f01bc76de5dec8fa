package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/solotick/solotick"

// root is the directory of the module.
const root = "../.."

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Dir          string
}

// graph maps import paths to packages.
type graph map[string]pkg

func loadGraph(t *testing.T) graph {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-json=ImportPath,Standard,Imports,TestGoFiles,XTestGoFiles,Dir", "./...")
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	g := graph{}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		g[p.ImportPath] = p
	}
	readSources(t)
	return g
}

// readSources opens every Go file of the module, so that a cached result of
// these tests is dropped when one changes: go test does not see what go list read.
func readSources(t *testing.T) {
	t.Helper()
	walk(t, func(path string, d os.DirEntry) {
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return
		}
		if f, err := os.Open(path); err == nil {
			_ = f.Close() // nothing was written
		}
	})
}

// walk visits the tree of the module, less what git or a build keeps there.
func walk(t *testing.T, visit func(path string, d os.DirEntry)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) { // a test beside this one cleaned up
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		visit(path, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ours returns the packages of the module, sorted, by their path inside it.
func (g graph) ours() []string {
	var paths []string
	for path := range g {
		if rel, ok := inModule(path); ok {
			paths = append(paths, rel)
		}
	}
	slices.Sort(paths)
	return paths
}

// inModule returns the path inside the module, "." for its root.
func inModule(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// full is the opposite of inModule for the packages of ours.
func full(rel string) string {
	if rel == "." {
		return module
	}
	return module + "/" + rel
}

// short is how a package is called in patterns and messages: our own without the
// module's path.
func short(path string) string {
	if rel, ok := inModule(path); ok {
		return rel
	}
	return path
}

// linked returns every package that from links, each with the shortest chain of
// imports that leads to it. Walking stops at packages for which stop is true.
func (g graph) linked(from string, stop func(path string) bool) map[string][]string {
	chains := map[string][]string{}
	queue := [][]string{{from}}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		last := chain[len(chain)-1]
		if len(chain) > 1 && stop(last) {
			continue
		}
		for _, next := range slices.Sorted(slices.Values(g[last].Imports)) {
			if _, seen := chains[next]; seen || next == from {
				continue
			}
			chains[next] = append(slices.Clone(chain), next)
			queue = append(queue, chains[next])
		}
	}
	return chains
}

func show(chain []string) string {
	names := make([]string, len(chain))
	for i, path := range chain {
		names[i] = short(path)
	}
	return strings.Join(names, " -> ")
}

// matches reports whether the pattern covers the package, both as short returns
// it. As in the go command, "x/..." is x and everything below; "*" stands for a
// part of one element; "..." is everything.
func matches(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		depth := strings.Count(base, "/") + 1
		elems := strings.Split(name, "/")
		if len(elems) < depth {
			return false
		}
		name = strings.Join(elems[:depth], "/")
		pattern = base
	}
	ok, err := filepath.Match(pattern, name)
	if err != nil {
		panic(fmt.Sprintf("pattern %q: %v", pattern, err))
	}
	return ok
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

// sortedKeys keeps messages in the same order on every run.
func sortedKeys(m map[string][]string) []string { return slices.Sorted(maps.Keys(m)) }
