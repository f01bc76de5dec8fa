package sqldialect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Set is the versioned schema of one component in one database. Sets of several
// components share the table <prefix>schema_version. It is an immutable value.
type Set struct {
	component  string
	prefix     string
	migrations []migration
}

type migration struct {
	version    int
	name       string
	checksum   string // of the file as it is embedded, before the prefix is put in
	statements []string
}

var (
	prefixPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)
	filePattern   = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)\.sql$`)
)

// CheckPrefix refuses a table prefix that is not a plain lower-case name: it
// becomes part of the statements' text.
func CheckPrefix(prefix string) error {
	if !prefixPattern.MatchString(prefix) {
		return fmt.Errorf("table prefix %q: use a lower-case letter and then letters, digits and underscores, 32 at most", prefix)
	}
	return nil
}

// LoadSet reads the files NNNN_name.sql of dir/<dialect>. In them {prefix} stands
// for the table prefix, a statement ends with a semicolon at the end of a line,
// and a line "-- guard: name" before a statement names the safety guard that it
// is: the statement is left out if broken, which may be nil, says so of the name.
func LoadSet(component string, files fs.FS, dir, prefix string, d *Dialect, broken func(guard string) bool) (*Set, error) {
	if err := CheckPrefix(prefix); err != nil {
		return nil, fmt.Errorf("sqldialect: %w", err)
	}
	dir += "/" + d.Name
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		return nil, fmt.Errorf("sqldialect: no %s schema for %s: %w", component, d.Name, err)
	}
	s := &Set{component: component, prefix: prefix}
	for i, e := range entries { // ReadDir sorts by name
		m := filePattern.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("sqldialect: migration file %s: name it 0001_what_it_does.sql", e.Name())
		}
		version, _ := strconv.Atoi(m[1])
		if version != i+1 {
			return nil, fmt.Errorf("sqldialect: migration file %s: the next version is %04d", e.Name(), i+1)
		}
		text, err := fs.ReadFile(files, dir+"/"+e.Name())
		if err != nil {
			return nil, fmt.Errorf("sqldialect: migration file %s: %w", e.Name(), err)
		}
		sum := sha256.Sum256(text)
		s.migrations = append(s.migrations, migration{
			version:    version,
			name:       m[2],
			checksum:   hex.EncodeToString(sum[:]),
			statements: split(strings.ReplaceAll(string(text), "{prefix}", prefix), broken),
		})
	}
	return s, nil
}

// split cuts a file into statements without comments, less the broken guards.
func split(text string, broken func(guard string) bool) []string {
	var out []string
	var b strings.Builder
	guard := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		if name, ok := strings.CutPrefix(line, "-- guard: "); ok {
			guard = name
		}
		if line == "" || strings.HasPrefix(strings.TrimSpace(line), "--") {
			continue
		}
		b.WriteString(strings.TrimSuffix(line, ";"))
		if !strings.HasSuffix(line, ";") {
			b.WriteByte('\n')
			continue
		}
		if guard == "" || broken == nil || !broken(guard) {
			out = append(out, b.String())
		}
		b.Reset()
		guard = ""
	}
	return out
}

func (s *Set) table() string { return s.prefix + "schema_version" }

// Latest is the newest version this program knows.
func (s *Set) Latest() int { return len(s.migrations) }

// Status is where a database stands.
type Status struct {
	Component string    `json:"component"`
	Current   int       `json:"current"` // 0 when there are no tables
	Latest    int       `json:"latest"`  // what this program needs
	Applied   []Applied `json:"applied,omitempty"`
	Pending   []string  `json:"pending,omitempty"` // names such as "0002_outbox"
}

// Applied is a migration in the database.
type Applied struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	At      time.Time `json:"at"`

	checksum string
}

// SchemaError says that the tables are not the ones this program works with.
type SchemaError struct {
	Component string
	Current   int // in the database
	Latest    int // of this program
	Problem   string
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s schema: the database is at version %d, this program at version %d: %s", e.Component, e.Current, e.Latest, e.Problem)
}

// Status reads what is applied. It changes nothing.
func (s *Set) Status(ctx context.Context, c Conn) (Status, error) {
	st := Status{Component: s.component, Latest: s.Latest()}
	err := c.Query(ctx, "SELECT version, name, checksum, applied_ms FROM "+s.table()+" WHERE component = ? ORDER BY version",
		[]any{s.component}, func(r Rows) error {
			var a Applied
			var ms int64
			if err := r.Scan(&a.Version, &a.Name, &a.checksum, &ms); err != nil {
				return err
			}
			a.At = time.UnixMilli(ms).UTC()
			st.Applied = append(st.Applied, a)
			return nil
		})
	if err != nil && c.Classify(err) != Schema {
		return Status{}, c.Explain(err)
	}
	if n := len(st.Applied); n > 0 {
		st.Current = st.Applied[n-1].Version
	}
	for _, m := range s.migrations[min(st.Current, len(s.migrations)):] {
		st.Pending = append(st.Pending, fmt.Sprintf("%04d_%s", m.version, m.name))
	}
	return st, nil
}

// check refuses a database that this program must not touch.
func (s *Set) check(st Status) error {
	bad := func(format string, args ...any) error {
		return &SchemaError{s.component, st.Current, st.Latest, fmt.Sprintf(format, args...)}
	}
	if st.Current > st.Latest {
		return bad("it was migrated by a newer program: upgrade this one")
	}
	for i, a := range st.Applied {
		if m := s.migrations[min(a.Version, st.Latest)-1]; a.Version != i+1 || a.checksum != m.checksum {
			return bad("migration %04d_%s in the database is not the one this program has: they were built from different sources", a.Version, a.Name)
		}
	}
	return nil
}

// Check answers nil when the tables are the ones this program needs. It changes
// nothing. Its error is a *SchemaError, or says that the database cannot answer.
func (s *Set) Check(ctx context.Context, c Conn) error {
	st, err := s.Status(ctx, c)
	if err != nil {
		return err
	}
	if err := s.check(st); err != nil {
		return err
	}
	if st.Current < st.Latest {
		return &SchemaError{s.component, st.Current, st.Latest, "run the migrations first (solotick migrate up)"}
	}
	return nil
}

// Up applies what is missing, all in one transaction under a lock, so that one of
// several processes does it and the others find it done. Nothing is written when
// the tables are up to date, newer, or not ours. Safe to call at every start.
//
// MySQL has no transaction around its CREATE and ALTER TABLE: a migration that
// fails there leaves what it has done and is run again, so its statements must be
// harmless when repeated (IF NOT EXISTS).
func (s *Set) Up(ctx context.Context, c Conn) error {
	err := s.Check(ctx, c)
	var schema *SchemaError
	if err == nil || !errors.As(err, &schema) {
		return err
	}
	err = c.exclusively(ctx, s.table(), func(tx Conn) error {
		if _, err := tx.Exec(ctx, s.versionTable(c.Dialect)); err != nil {
			return err
		}
		st, err := s.Status(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.check(st); err != nil {
			return err
		}
		for _, m := range s.migrations[st.Current:] {
			for _, stmt := range m.statements {
				if _, err := tx.Exec(ctx, stmt); err != nil {
					return fmt.Errorf("migration %04d_%s: %w", m.version, m.name, err)
				}
			}
			if _, err := tx.Exec(ctx, s.record(c.Dialect), s.component, m.version, m.name, m.checksum); err != nil {
				return err
			}
		}
		return nil
	})
	return c.Explain(err)
}

func (s *Set) versionTable(d *Dialect) string {
	return "CREATE TABLE IF NOT EXISTS " + s.table() + ` (
  component  VARCHAR(32)  NOT NULL,
  version    INTEGER      NOT NULL,
  name       VARCHAR(128) NOT NULL,
  checksum   VARCHAR(64)  NOT NULL,
  applied_ms BIGINT       NOT NULL,
  PRIMARY KEY (component, version)
)` + d.TableOptions
}

func (s *Set) record(d *Dialect) string {
	return "INSERT INTO " + s.table() + " (component, version, name, checksum, applied_ms) VALUES (?, ?, ?, ?, " + d.NowMillis + ")"
}

// SQL is the whole set as a script to be run by hand in an empty database.
func (s *Set) SQL(d *Dialect) string {
	out := []string{s.versionTable(d)}
	for _, m := range s.migrations {
		out = append(out, m.statements...)
		insert := s.record(d)
		for _, v := range []string{s.component, strconv.Itoa(m.version), m.name, m.checksum} {
			insert = strings.Replace(insert, "?", "'"+v+"'", 1) // names and hex digits: nothing to escape
		}
		out = append(out, insert)
	}
	return strings.Join(slices.Concat(out, []string{""}), ";\n")
}
