package archtest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	linkPattern    = regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)
	codePattern    = regexp.MustCompile("`[^`]*`")
	headingPattern = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	targetPattern  = regexp.MustCompile(`^make ([a-z-]+)`)
)

// Links inside the repository lead to a file, and to a heading in it.
func TestMarkdownLinks(t *testing.T) {
	walk(t, func(path string, d os.DirEntry) {
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return
		}
		for _, problem := range deadLinks(t, path) {
			t.Errorf("%s: %s", path, problem)
		}
	})
}

func deadLinks(t *testing.T, path string) []string {
	t.Helper()
	var problems []string
	text, _ := readMarkdown(t, path)
	for _, link := range links(text) {
		u, err := url.Parse(link)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		if u.Scheme != "" || u.Host != "" {
			continue
		}
		target := path
		if u.Path != "" {
			target = filepath.Join(filepath.Dir(path), u.Path)
		}
		if _, err := os.Stat(target); err != nil {
			problems = append(problems, fmt.Sprintf("link %s leads to no file", link))
			continue
		}
		if u.Fragment == "" || filepath.Ext(target) != ".md" {
			continue
		}
		if text, _ := readMarkdown(t, target); !anchors(text)[u.Fragment] {
			problems = append(problems, fmt.Sprintf("link %s leads to no heading", link))
		}
	}
	return problems
}

// readMarkdown returns the lines of the file outside and inside fenced blocks.
func readMarkdown(t *testing.T, path string) (text, code []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fenced := false
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced:
			code = append(code, line)
		default:
			text = append(text, line)
		}
	}
	return text, code
}

func links(lines []string) []string {
	var found []string
	for _, line := range lines {
		for _, m := range linkPattern.FindAllStringSubmatch(codePattern.ReplaceAllString(line, ""), -1) {
			found = append(found, m[1])
		}
	}
	return found
}

// anchors returns the fragments that the headings get when they are rendered: lower
// case, spaces as hyphens, punctuation dropped, repeats numbered.
func anchors(lines []string) map[string]bool {
	found := map[string]bool{}
	for _, line := range lines {
		m := headingPattern.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, m[1])
		unique := anchor
		for n := 1; found[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		found[unique] = true
	}
	return found
}

func TestMarkdownAnchors(t *testing.T) {
	got := anchors([]string{"# Add a lock backend, in one hour", "text", "## `make test`", "## Twice", "## Twice ##"})
	for _, want := range []string{"add-a-lock-backend-in-one-hour", "make-test", "twice", "twice-1"} {
		if !got[want] {
			t.Errorf("no %q in %v", want, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("anchors %v", got)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "a.md")
	text := "# Top\n[ok](#top) [ok](https://example.org/x) [file](missing.md) [heading](#missing) `[code](nowhere.md)`\n```\n[code](nowhere.md)\n```\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := deadLinks(t, file); len(got) != 2 || !strings.Contains(got[0], "missing.md") || !strings.Contains(got[1], "#missing") {
		t.Errorf("dead links %q", got)
	}
}

// The make targets that the documents name are there.
func TestMarkdownTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	walk(t, func(path string, d os.DirEntry) {
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return
		}
		text, code := readMarkdown(t, path)
		for _, line := range text {
			code = append(code, codePattern.FindAllString(line, -1)...)
		}
		for _, line := range code {
			m := targetPattern.FindStringSubmatch(strings.Trim(line, "`$ "))
			if m != nil && !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: there is no target %q in the Makefile", path, m[1])
			}
		}
	})
}
