package strictyaml

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Options of a reading. The zero value reads the process's environment and the
// disk.
type Options struct {
	// File names the document in messages. Default "config".
	File string
	// Env looks up a variable. Default os.LookupEnv.
	Env func(name string) (value string, set bool)
	// ReadFile reads the file behind a k_file key. Default os.ReadFile.
	ReadFile func(path string) ([]byte, error)
	// Synonyms are the known keys behind words that people write for them. Default
	// none.
	Synonyms map[string]string
}

// Document is a YAML document that was read. It collects the problems of its
// parsing, its decoding and of checks by the caller. It is not safe for
// concurrent use.
type Document struct {
	o      Options
	root   *node
	lines  []string            // as read, to look for slips
	places map[string]Position // of decoded values, by path
	found  Problems
	hidden []hidden
}

// hidden is a text that must not be shown and what stands for it.
type hidden struct{ text, shown string }

// Parse reads data. Problems are kept for Err; a document with a syntax error
// decodes to nothing.
func Parse(data []byte, o Options) *Document {
	if o.File == "" {
		o.File = "config"
	}
	if o.Env == nil {
		o.Env = os.LookupEnv
	}
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
	d := &Document{o: o, places: map[string]Position{}}
	d.root = d.parse(data)
	return d
}

// Err is what is wrong so far: Problems, or nil.
func (d *Document) Err() error {
	if len(d.found) == 0 {
		return nil
	}
	// The longest first, since one text may be part of another.
	slices.SortFunc(d.hidden, func(a, b hidden) int { return len(b.text) - len(a.text) })
	ps := make(Problems, len(d.found))
	for i, p := range d.found {
		p.Message, p.Remedy = d.scrub(p.Message), d.scrub(p.Remedy)
		ps[i] = p
	}
	return ps.sorted()
}

// Fork is a document with the same values and no problems, for checks that are
// made after it was accepted.
func (d *Document) Fork() *Document {
	f := *d
	f.found, f.hidden = nil, slices.Clone(d.hidden)
	return &f
}

// Readable reports whether there is anything to decode.
func (d *Document) Readable() bool { return d.root != nil }

// At is the place of the value at path or, if there is none, of its nearest
// ancestor.
func (d *Document) At(path string) Position {
	for path != "" {
		if p, ok := d.places[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return Position{}
}

// Has reports whether a value was given at path.
func (d *Document) Has(path string) bool {
	_, ok := d.places[path]
	return ok
}

// Add adds a problem of the value at path.
func (d *Document) Add(path, message, remedy string) { d.problem(d.At(path), path, message, remedy) }

// Problem is a problem of the value at path that is not added.
func (d *Document) Problem(path, message, remedy string) Problem {
	return Problem{d.o.File, d.At(path), path, d.scrub(message), d.scrub(remedy)}
}

// AddError adds the errors that a configuration's Validate joined. Each reads
// "package: field: problem" or "package: invalid field: problem", with the field's
// path below prefix. Problems are added as they are.
func (d *Document) AddError(prefix string, err error) {
	if err == nil {
		return
	}
	if found, ok := errors.AsType[Problems](err); ok {
		d.found = append(d.found, found...)
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			d.AddError(prefix, e)
		}
		return
	}
	message := err.Error()
	path := prefix
	if pkg, rest, ok := strings.Cut(message, ": "); ok && !strings.Contains(pkg, " ") {
		message = strings.TrimPrefix(rest, "invalid ")
		if field, problem, ok := strings.Cut(message, ": "); ok {
			word, more, _ := strings.Cut(field, " ")
			switch below := join(prefix, strings.TrimPrefix(word, prefix+".")); {
			case more == "":
				path, message = below, problem
			case d.Has(below): // it says more about the field than its name
				path = below
			}
		}
	}
	d.Add(path, message, "")
}

func (d *Document) problem(p Position, path, message, remedy string) {
	d.found = append(d.found, Problem{File: d.o.File, Position: p, Path: path, Message: message, Remedy: remedy})
}

// hide keeps text out of messages, where it may get by way of a caller's check.
func (d *Document) hide(text, shown string) {
	const tooShort = 4 // to hide "1" would make every message unreadable, and tell nothing
	if len(text) >= tooShort && text != shown {
		d.hidden = append(d.hidden, hidden{text, shown})
	}
}

func (d *Document) scrub(s string) string {
	for _, h := range d.hidden {
		s = strings.ReplaceAll(s, h.text, h.shown)
		if q := fmt.Sprintf("%q", h.text); len(q) > 2 {
			s = strings.ReplaceAll(s, q[1:len(q)-1], h.shown)
		}
	}
	return s
}
