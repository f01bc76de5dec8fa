package sqljob

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Dialect is a database's way of writing SQL, by the name that GORM's dialectors
// give.
type Dialect string

// The dialects. MySQL stands for MariaDB, too.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
	MySQL    Dialect = "mysql"
)

// params are the names that can be bound.
var params = []string{"key", "job", "tick", "tick_ms", "args", "attempt", "fence"}

// statement is one statement, ready to be executed.
type statement struct {
	text  string   // with the database's placeholders
	binds []string // names of the parameters, one per placeholder
	words []string // code words in upper case, in order; other code as "" in between
	line  int      // where it begins, from 1
}

// problem is why a text is refused.
type problem struct {
	line   int
	reason string
}

func (p *problem) Error() string { return fmt.Sprintf("line %d: %s", p.line, p.reason) }

// scanner splits a text into statements. It knows what is code and what is not,
// nothing of grammar.
type scanner struct {
	d    Dialect
	text string
	pos  int
	out  strings.Builder
	st   statement
	all  []statement
}

// split returns the statements of text that are not empty.
func split(d Dialect, text string) ([]statement, error) {
	s := &scanner{d: d, text: text}
	if i := strings.IndexByte(text, 0); i >= 0 {
		s.pos = i
		return nil, s.refuse("there is a NUL byte: databases stop reading at one")
	}
	for s.pos < len(s.text) {
		from := s.pos
		replaced, err := s.next()
		if err != nil {
			return nil, err
		}
		if !replaced {
			s.out.WriteString(s.text[from:s.pos])
		}
	}
	s.end()
	return s.all, nil
}

func (s *scanner) refuse(format string, args ...any) error {
	return &problem{1 + strings.Count(s.text[:min(s.pos, len(s.text))], "\n"), fmt.Sprintf(format, args...)}
}

// rest is what has not been read.
func (s *scanner) rest() string { return s.text[s.pos:] }

func (s *scanner) has(prefix string) bool { return strings.HasPrefix(s.rest(), prefix) }

// code notes a word of code, or "" for a sign.
func (s *scanner) code(word string) {
	if len(s.st.words) == 0 {
		s.st.line = 1 + strings.Count(s.text[:s.pos], "\n")
	}
	s.st.words = append(s.st.words, word)
}

func (s *scanner) end() {
	if s.st.text = strings.TrimSpace(s.out.String()); len(s.st.words) > 0 {
		s.all = append(s.all, s.st)
	}
	s.st = statement{}
	s.out.Reset()
}

// next reads one token. Replaced means that it has written the output itself.
func (s *scanner) next() (replaced bool, err error) {
	c := s.text[s.pos]
	switch {
	case s.has("--") && (s.d != MySQL || s.pos+2 >= len(s.text) || s.text[s.pos+2] <= ' '), c == '#' && s.d == MySQL:
		if i := strings.IndexByte(s.rest(), '\n'); i >= 0 {
			s.pos += i
		} else {
			s.pos = len(s.text)
		}
		return false, nil
	case s.has("/*"):
		return false, s.comment()
	case c == ';':
		s.pos++
		s.end()
		return true, nil
	case c == '\'':
		s.code("")
		return false, s.quoted('\'', s.d == MySQL)
	case c == '"':
		s.code("")
		return false, s.quoted('"', s.d == MySQL)
	case c == '`' && s.d != Postgres:
		s.code("")
		return false, s.quoted('`', false)
	case c == '[' && s.d == SQLite:
		s.code("")
		i := strings.IndexByte(s.rest(), ']')
		if i < 0 {
			return false, s.refuse("a [ is not closed")
		}
		s.pos += i + 1
		return false, nil
	case c == '$' && s.d == Postgres:
		return false, s.dollar()
	case c == ':':
		return s.colon()
	case c == '?' && s.d != Postgres, (c == '@' || c == '$') && s.d == SQLite:
		return false, s.refuse("%c cannot name a parameter here: use :%s", c, strings.Join(params, ", :"))
	case isLetter(c):
		return false, s.word()
	case c >= '0' && c <= '9':
		s.code("")
		for s.pos < len(s.text) && (isLetter(s.text[s.pos]) || s.text[s.pos] >= '0' && s.text[s.pos] <= '9' || s.text[s.pos] == '.') {
			s.pos++
		}
		return false, nil
	case c > ' ':
		s.code("")
	}
	s.pos++
	return false, nil
}

func (s *scanner) comment() error {
	if s.d == MySQL && (s.has("/*!") || s.has("/*M!")) {
		return s.refuse("/*! begins a comment that is executed: write the code without it")
	}
	depth, i := 0, s.pos
	for i < len(s.text) {
		switch {
		case strings.HasPrefix(s.text[i:], "/*") && (depth == 0 || s.d == Postgres):
			depth++
			i += 2
		case strings.HasPrefix(s.text[i:], "*/"):
			i += 2
			if depth--; depth == 0 {
				s.pos = i
				return nil
			}
		default:
			i++
		}
	}
	return s.refuse("a comment is not closed")
}

// quoted reads a string or a quoted name, in which the quote is doubled. With
// backslashes a quote after one is refused, because its meaning depends on a mode
// of the server.
func (s *scanner) quoted(quote byte, backslashes bool) error {
	for i := s.pos + 1; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '\\' && backslashes:
			if i++; i < len(s.text) && (s.text[i] == '\'' || s.text[i] == '"') {
				s.pos = i
				return s.refuse("a backslash stands before a quote, which ends the string or not as the server is set: double the quote")
			}
		case c == quote && i+1 < len(s.text) && s.text[i+1] == quote:
			i++
		case c == quote:
			s.pos = i + 1
			return nil
		}
	}
	return s.refuse("a %c is not closed", quote)
}

// escaped reads PostgreSQL's E'...'.
func (s *scanner) escaped() error {
	for i := s.pos + 1; i < len(s.text); i++ {
		switch s.text[i] {
		case '\\':
			i++
		case '\'':
			if i+1 < len(s.text) && s.text[i+1] == '\'' {
				i++
				continue
			}
			s.pos = i + 1
			return nil
		}
	}
	return s.refuse("a ' is not closed")
}

// dollar reads PostgreSQL's $tag$...$tag$.
func (s *scanner) dollar() error {
	s.code("")
	rest := s.rest()[1:]
	i := 0
	for i < len(rest) && (isLetter(rest[i]) || i > 0 && rest[i] >= '0' && rest[i] <= '9') {
		i++
	}
	if i == len(rest) || rest[i] != '$' {
		return s.refuse("$ cannot name a parameter here: use :%s", strings.Join(params, ", :"))
	}
	tag := s.rest()[:i+2]
	end := strings.Index(rest[i+1:], tag)
	if end < 0 {
		return s.refuse("a %s is not closed", tag)
	}
	s.pos += len(tag) + end + len(tag)
	return nil
}

func (s *scanner) colon() (replaced bool, err error) {
	s.code("")
	if s.has("::") || s.has(":=") {
		s.pos += 2
		return false, nil
	}
	name := s.rest()[1:]
	i := 0
	for i < len(name) && (isLetter(name[i]) || i > 0 && name[i] >= '0' && name[i] <= '9') {
		i++
	}
	if name = name[:i]; i == 0 {
		s.pos++
		return false, nil
	}
	if !slices.Contains(params, name) {
		return false, s.refuse("no parameter is called :%.32s: use :%s", name, strings.Join(params, ", :"))
	}
	s.pos += 1 + i
	s.st.binds = append(s.st.binds, name)
	if s.d == Postgres {
		fmt.Fprintf(&s.out, "$%d", len(s.st.binds))
	} else {
		s.out.WriteByte('?')
	}
	return true, nil
}

func (s *scanner) word() error {
	from := s.pos
	for s.pos < len(s.text) && (isLetter(s.text[s.pos]) || s.text[s.pos] >= '0' && s.text[s.pos] <= '9' || s.text[s.pos] == '$') {
		s.pos++
	}
	word := s.text[from:s.pos]
	end := s.pos
	s.pos = from
	s.code(strings.ToUpper(word))
	s.pos = end
	if s.d == Postgres && (word == "E" || word == "e") && s.has("'") {
		return s.escaped()
	}
	return nil
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= utf8.RuneSelf
}
