package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write the golden files")

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

// TestHelp compares each command's help with a golden file: it is part of the
// interface. Run with -update after a change that is meant.
func TestHelp(t *testing.T) {
	var paths [][]string
	walk(newRoot(), func(cmd *cobra.Command) { paths = append(paths, strings.Fields(cmd.CommandPath())) })
	for _, path := range paths {
		t.Run(strings.Join(path, " "), func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := Run(append(path[1:], "--help"), nil, &out, &errs); code != exitOK || errs.Len() > 0 {
				t.Fatalf("code %d, %s", code, &errs)
			}
			golden := filepath.Join("testdata", "help", strings.Join(path, "-")+".txt")
			if *update {
				if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(want, out.Bytes()) {
				t.Errorf("the help has changed; run this test with -update if that is meant:\n%s", &out)
			}
		})
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	walk(newRoot(), func(cmd *cobra.Command) {
		if cmd.Name() == "help" {
			return
		}
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("%s: no example or no summary", cmd.CommandPath())
		}
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			if len(line) > 100 || !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: example %q is longer than 100 columns or not indented by two", cmd.CommandPath(), line)
			}
		}
		for line := range strings.SplitSeq(cmd.Long, "\n") {
			if len(line) > 82 {
				t.Errorf("%s: the line %q is longer than 82 columns", cmd.CommandPath(), line)
			}
		}
	})
}

func TestColourIsForTerminalsOnly(t *testing.T) {
	if s := newScreen(new(bytes.Buffer)); s.Live || s.Color {
		t.Errorf("%+v", s)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if s := newScreen(f); s.Live || s.Color {
		t.Errorf("%+v", s)
	}
}
