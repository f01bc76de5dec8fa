package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// module writes a module with the real switch, the given table and files.
func module(t *testing.T, table string, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"go.mod":  "module github.com/solotick/solotick\n\ngo 1.26\n",
		tableFile: table,
	}
	for _, name := range []string{"on.go", "off.go", "doc.go"} {
		src, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		all["internal/mutation/"+name] = string(src)
	}
	maps.Copy(all, files)
	for name, content := range all {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const guarded = `package p

import "github.com/solotick/solotick/internal/mutation"

// Allowed reports whether n is small enough.
func Allowed(n int) bool { return mutation.On("limit") || n < 10 }
`

const watchful = `package p

import "testing"

func TestLimit(t *testing.T) {
	if Allowed(10) {
		t.Error("10 is allowed")
	}
}
`

func TestVerdicts(t *testing.T) {
	tests := []struct {
		name  string
		table string
		files map[string]string
		want  string // part of the error, or of the output where there is to be none
		fails bool
	}{
		{
			name:  "noticed",
			table: "# comment\n\nlimit\tp\t^TestLimit$\n",
			files: map[string]string{"p/p.go": guarded, "p/p_test.go": watchful},
			want:  "noticed in p",
		},
		{
			name:  "noticed by the second package",
			table: "limit\t./q p\t.\n",
			files: map[string]string{
				"p/p.go": guarded, "p/p_test.go": watchful,
				"q/q_test.go": "package q\n\nimport \"testing\"\n\nfunc TestNothing(*testing.T) {}\n",
			},
			want: "noticed in p",
		},
		{
			name:  "noticed by a panic",
			table: "limit\tp\t.\n",
			files: map[string]string{
				"p/p.go":      guarded,
				"p/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestLimit(*testing.T) {\n\tif Allowed(10) {\n\t\tpanic(10)\n\t}\n}\n",
			},
			want: "noticed in p",
		},
		{
			name:  "noticed by a program that the test builds",
			table: "limit\tp\t.\n",
			files: map[string]string{
				"p/p.go":      guarded,
				"cmd/c.go":    "package main\n\nimport (\n\t\"os\"\n\n\t\"github.com/solotick/solotick/p\"\n)\n\nfunc main() {\n\tif p.Allowed(10) {\n\t\tos.Exit(3)\n\t}\n}\n",
				"p/p_test.go": "package p\n\nimport (\n\t\"os/exec\"\n\t\"testing\"\n)\n\nfunc TestLimit(t *testing.T) {\n\tif err := exec.Command(\"go\", \"run\", \"../cmd\").Run(); err != nil {\n\t\tt.Error(err)\n\t}\n}\n",
			},
			want: "noticed in p",
		},
		{
			name:  "hangs",
			table: "limit\tp\t.\n",
			files: map[string]string{
				"p/p.go":      guarded,
				"p/p_test.go": "package p\n\nimport (\n\t\"testing\"\n\t\"time\"\n)\n\nfunc TestLimit(*testing.T) {\n\tfor Allowed(10) {\n\t\ttime.Sleep(time.Second)\n\t}\n}\n",
			},
			want: "noticed in p (hangs)",
		},
		{
			name:  "not noticed",
			table: "limit\tp\t.\n",
			files: map[string]string{
				"p/p.go":      guarded,
				"p/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestLimit(t *testing.T) {\n\tif !Allowed(1) {\n\t\tt.Error(\"1 is refused\")\n\t}\n}\n",
			},
			want: "NOT NOTICED", fails: true,
		},
		{
			name:  "pattern matches nothing",
			table: "limit\tp\t^TestLimits$\n",
			files: map[string]string{"p/p.go": guarded, "p/p_test.go": watchful},
			want:  "has no test that matches", fails: true,
		},
		{
			name:  "only skipped tests",
			table: "limit\tp\t.\n",
			files: map[string]string{
				"p/p.go":      guarded,
				"p/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestLimit(t *testing.T) { t.Skip() }\n",
			},
			want: "has no test that matches", fails: true,
		},
		{
			name:  "package without tests",
			table: "limit\tp\t.\n",
			files: map[string]string{"p/p.go": guarded},
			want:  "p has no", fails: true,
		},
		{
			name:  "does not build",
			table: "limit\tp\t.\n",
			files: map[string]string{"p/p.go": guarded, "p/p_test.go": watchful, "p/wrong_test.go": "package p\n\nvar x int = \"\"\n"},
			want:  "does not build", fails: true,
		},
		{
			name:  "fails anyway",
			table: "limit\tp\t.\n",
			files: map[string]string{"p/p.go": guarded, "p/p_test.go": strings.Replace(watchful, "Allowed(10)", "Allowed(1)", 1)},
			want:  "fails with nothing broken", fails: true,
		},
		{
			name:  "ends without a failed test",
			table: "limit\tp\t.\n",
			files: map[string]string{
				"p/p.go":      guarded,
				"p/p_test.go": "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestMain(m *testing.M) {\n\tm.Run()\n\tif Allowed(10) {\n\t\tos.Exit(1)\n\t}\n}\n\nfunc TestLimit(*testing.T) {}\n",
			},
			want: "ended without a failed test", fails: true,
		},
		{
			name:  "guard missing from the table",
			table: "",
			files: map[string]string{"p/p.go": guarded},
			want:  `p.go:6:35: guard "limit" is not in`, fails: true,
		},
		{
			name:  "guard missing from the code",
			table: "limit\tp\t.\nlimits\tp\t.\n",
			files: map[string]string{"p/p.go": guarded},
			want:  `guard "limits" is in`, fails: true,
		},
		{
			name:  "computed name",
			table: "",
			files: map[string]string{"p/p.go": strings.Replace(guarded, `On("limit")`, `On("li"+"mit")`, 1)},
			want:  "must be a string literal", fails: true,
		},
		{
			name:  "renamed import",
			table: "",
			files: map[string]string{"p/p.go": strings.Replace(strings.Replace(guarded, `import "`, `import m "`, 1), "mutation.On", "m.On", 1)},
			want:  `guard "limit" is not in`, fails: true,
		},
		{name: "guard twice", table: "limit\tp\t.\nlimit\tq\t.\n", want: "stands twice", fails: true},
		{name: "spaces for tabs", table: "limit p .\n", want: "guards.txt:1: 1 tab-separated", fails: true},
		{name: "bad pattern", table: "limit\tp\t(\n", want: "guards.txt:1: pattern", fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			timeout := "1m"
			if tt.name == "hangs" {
				timeout = "5s"
			}
			var out bytes.Buffer
			err := run(t.Context(), []string{"-dir", module(t, tt.table, tt.files), "-timeout", timeout}, &out)
			switch {
			case !tt.fails && err != nil:
				t.Errorf("error %v", err)
			case !tt.fails && !strings.Contains(out.String(), tt.want):
				t.Errorf("output lacks %q:\n%s", tt.want, out.String())
			case tt.fails && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v lacks %q\n%s", err, tt.want, out.String())
			}
		})
	}
}

func TestOneGuard(t *testing.T) {
	root := module(t, "limit\tp\t.\n", map[string]string{"p/p.go": guarded, "p/p_test.go": watchful})
	if err := run(t.Context(), []string{"-dir", root, "-guard", "other"}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), `no guard "other"`) {
		t.Errorf("error %v for a guard that is not there", err)
	}
}

// The table and the code of this module name the same guards, also when nobody
// runs the long check.
func TestTableMatchesTheCode(t *testing.T) {
	const root = "../../.."
	rows, err := readTable(root)
	if err != nil {
		t.Fatal(err)
	}
	found, err := findGuards(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := match(rows, found); err != nil {
		t.Error(err)
	}
}
