package examples

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestFaultsAreTested: each fault of the list has a row, and each test that it names is
// in the package that it names.
func TestFaultsAreTested(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "lock-faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	suite := sources(t, "locks/lockstest", "_cases.go")
	var numbers []int
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \|(.*)\|(.*)\|$`).FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, n)
		named := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[3], -1)
		if len(named) == 0 {
			t.Errorf("%d: no test is named", n)
		}
		for _, m := range named {
			if name, isCase := strings.CutPrefix(m[1], "case "); isCase {
				if !strings.Contains(suite, `name: "`+name+`"`) {
					t.Errorf("%d: the suite has no case %q", n, name)
				}
				continue
			}
			dir, test, ok := strings.Cut(m[1], ".")
			if !ok || !hasTest(t, dir, test) {
				t.Errorf("%d: there is no %s", n, m[1])
			}
		}
	}
	// Those that are missing were double, or of other recipes.
	want := []int{
		3, 5, 6, 7, 9, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 25, 26, 28, 30, 31, 32, 34, 35, 36, 37, 38, 39, 40,
		41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52,
	}
	if !slices.Equal(numbers, want) {
		t.Errorf("the rows are %v, want %v", numbers, want)
	}
}

func hasTest(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+test+"(t *testing.T) {")
	})
}

// TestLockBackendsSayWhatHappens: the package comment of every backend says what it
// guarantees and what not, which privileges it needs, and what happens when.
func TestLockBackendsSayWhatHappens(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "locks", "*lock", "doc.go"))
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		comment := string(text)
		_, table, found := strings.Cut(comment, "# What happens when")
		if !found {
			t.Errorf("%s: no table of what happens when", file)
		}
		for _, say := range []string{`(?i)guarantee`, `(?i)not guaranteed`, `# (Minimal privileges|Privileges)`} {
			if !regexp.MustCompile(say).MatchString(comment) {
				t.Errorf("%s: nothing of %s", file, say)
			}
		}
		for what, say := range map[string]string{
			"server down":  `(?i)\bdown\b`,
			"slow":         `(?i)\bslow\b`,
			"failed over":  `(?i)fail(ed|s|ed-)? ?over|failover|leader|restarts|member`,
			"partitioned":  `(?i)partition|cut off`,
			"holder stuck": `(?i)paused|stands still`,
		} {
			if !regexp.MustCompile(say).MatchString(table) {
				t.Errorf("%s: the table says nothing of: %s", file, what)
			}
		}
	}
}
