package strictyaml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Position is a place in the document, both from 1. The zero Position is the
// document as a whole.
type Position struct{ Line, Column int }

// Problem is one thing that is wrong with a document.
//
//nolint:errname // callers read its fields as often as its text
type Problem struct {
	File string
	Position
	// Path of the value, such as jobs[0].http.url; empty for the document.
	Path string
	// Message says what is wrong, Remedy what to write instead.
	Message, Remedy string
}

// Error is "file:line:column: path: message: remedy".
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Remedy != "" {
		b.WriteString(": " + p.Remedy)
	}
	return b.String()
}

// Problems is the error of a document: all that is wrong with it, by line. It is
// never empty.
//
//nolint:errname // as Problem
type Problems []Problem

// Error lists the problems, one a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the single problems to errors.As.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.Compact(ps)
}

// Nearest is the name that was probably meant by got, or "" if none is near
// enough: at most a third of the letters may differ.
func Nearest(got string, names []string) string {
	best, least := "", max(1, len(got)/3)+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		if d := distance(strings.ToLower(got), strings.ToLower(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance counts insertions, deletions, replacements and swaps of neighbours
// (optimal string alignment).
func distance(a, b string) int {
	const farther = 64
	if len(a) > farther || len(b) > farther {
		return farther
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Allowed words the remedy for a name that is none of names.
func Allowed(got string, names []string) string {
	if near := Nearest(got, names); near != "" {
		return fmt.Sprintf("did you mean %s? allowed are %s", near, strings.Join(names, ", "))
	}
	return "allowed are " + strings.Join(names, ", ")
}
