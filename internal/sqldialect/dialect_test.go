package sqldialect_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func open(t *testing.T) (sqldialect.Conn, *gorm.DB) {
	t.Helper()
	db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "a.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	c, err := sqldialect.Pool(db)
	if err != nil {
		t.Fatal(err)
	}
	return c, db
}

type coded int

func (c coded) Error() string { return fmt.Sprintf("code %d", int(c)) }
func (c coded) Code() int     { return int(c) }

func TestClasses(t *testing.T) {
	d := sqldialect.SQLite()
	for _, c := range []struct {
		err        error
		want       sqldialect.Class
		notApplied bool
	}{
		{nil, sqldialect.Other, false},
		{errors.New("x"), sqldialect.Other, false},
		{coded(5), sqldialect.Busy, true},
		{coded(6), sqldialect.Busy, true},
		{coded(261), sqldialect.Busy, true},
		{coded(517), sqldialect.Busy, true},
		{errors.Join(context.DeadlineExceeded, coded(5)), sqldialect.Busy, true},
		{coded(13), sqldialect.Full, true},
		{coded(8), sqldialect.ReadOnly, true},
		{coded(1032), sqldialect.ReadOnly, true},
		{coded(11), sqldialect.Corrupt, false},
		{coded(26), sqldialect.Corrupt, false},
		{coded(10 | 4<<8), sqldialect.Unavailable, false},
		{coded(14), sqldialect.Unavailable, false},
		{coded(9), sqldialect.Unavailable, false},
		{coded(2067), sqldialect.Unique, true},
		{coded(1555), sqldialect.Unique, true},
		{coded(19 | 5<<8), sqldialect.Other, false}, // NOT NULL
		{coded(1), sqldialect.Other, false},
		{context.Canceled, sqldialect.Unavailable, false},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), sqldialect.Unavailable, false},
		{driver.ErrBadConn, sqldialect.Unavailable, false},
		{errors.New("sql: database is closed"), sqldialect.Unavailable, false},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			if c.err == nil {
				err = nil
			}
			if got := d.Classify(err); got != c.want {
				t.Errorf("Classify(%v) = %v, want %v", err, got, c.want)
			}
			if got := d.NotApplied(err); got != c.notApplied {
				t.Errorf("NotApplied(%v) = %v", err, got)
			}
		}
	}
}

func TestUniqueColumns(t *testing.T) {
	c, _ := open(t)
	ctx := t.Context()
	exec(t, c, "CREATE TABLE t (id BLOB PRIMARY KEY, a TEXT, b TEXT, n INTEGER NOT NULL DEFAULT 0)")
	exec(t, c, "CREATE UNIQUE INDEX t_ab ON t (a, b) WHERE b IS NOT NULL")
	exec(t, c, "INSERT INTO t VALUES (x'01', 'a', 'b', 0)")
	_, err := c.Exec(ctx, "INSERT INTO t VALUES (x'02', 'a', 'b', 0)")
	if got := c.UniqueColumns(fmt.Errorf("x: %w", err)); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("columns of %v: %v", err, got)
	}
	_, err = c.Exec(ctx, "INSERT INTO t VALUES (x'01', 'c', 'd', 0)")
	if got := c.UniqueColumns(err); !slices.Equal(got, []string{"id"}) {
		t.Errorf("columns of %v: %v", err, got)
	}
	_, err = c.Exec(ctx, "INSERT INTO t (id, n) VALUES (x'03', NULL)")
	if got := c.UniqueColumns(err); err == nil || got != nil {
		t.Errorf("columns of %v: %v", err, got)
	}
	_, err = c.Exec(ctx, "SELECT * FROM missing_table")
	if c.Classify(err) != sqldialect.Schema {
		t.Errorf("class of %v: %v", err, c.Classify(err))
	}
	if _, err = c.Exec(ctx, "INSERT INTO t (nope) VALUES (1)"); c.Classify(err) != sqldialect.Schema {
		t.Errorf("class of %v: %v", err, c.Classify(err))
	}
}

func exec(t *testing.T, c sqldialect.Conn, query string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// The clock must agree with this machine's to the millisecond, and the cast must
// not cut a millisecond off.
func TestClock(t *testing.T) {
	c, _ := open(t)
	for range 200 {
		before := time.Now().UnixMilli()
		var ms, us int64
		if err := c.QueryRow(t.Context(), "SELECT "+c.NowMillis+", "+c.NowMicros, nil, &ms, &us); err != nil {
			t.Fatal(err)
		}
		if after := time.Now().UnixMilli(); ms < before || ms > after || us != ms*1000 {
			t.Fatalf("clock %d (%d us), want within [%d, %d]", ms, us, before, after)
		}
	}
	var off int64
	err := c.QueryRow(t.Context(), `WITH RECURSIVE ms(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM ms WHERE n < 9999)
		SELECT count(*) FROM ms WHERE CAST(round(unixepoch(1700000000 + n / 1000.0, 'unixepoch', 'subsec') * 1000) AS INTEGER) <> 1700000000000 + n`,
		nil, &off)
	if err != nil || off != 0 {
		t.Errorf("%d of 10000 milliseconds come back changed (%v)", off, err)
	}
}

// A statement has one clock, however slowly its rows are read. (SQLite reads "now"
// again for each; the second column shows it.)
func TestClockOfAStatement(t *testing.T) {
	c, _ := open(t)
	with, now := c.Clock()
	each := "SELECT " + now + ", " + c.NowMillis
	var clocks []int64
	var first, plain int64
	err := c.Query(t.Context(), with+each+" UNION ALL "+each, nil, func(rows sqldialect.Rows) error {
		var clock int64
		err := rows.Scan(&clock, &plain)
		if clocks = append(clocks, clock); len(clocks) > 1 || err != nil {
			return err
		}
		for first = plain; ; {
			var at int64
			if err := c.QueryRow(t.Context(), "SELECT "+c.NowMillis, nil, &at); err != nil || at > first {
				return err
			}
		}
	})
	if err != nil || len(clocks) != 2 || clocks[0] != clocks[1] || plain <= first {
		t.Errorf("clocks %v, beside %d and then %d, %v", clocks, first, plain, err)
	}
}

func TestTx(t *testing.T) {
	c, db := open(t)
	ctx := t.Context()
	exec(t, c, "CREATE TABLE t (a INTEGER)")
	count := func() (n int) {
		if err := c.QueryRow(ctx, "SELECT count(*) FROM t", nil, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Run("busy is retried as a whole", func(t *testing.T) {
		tries := 0
		err := c.Tx(ctx, func(tx sqldialect.Conn) error {
			tries++
			exec(t, tx, "INSERT INTO t VALUES (?)", tries)
			if tries < 3 {
				return coded(517)
			}
			return nil
		})
		if err != nil || tries != 3 || count() != 1 {
			t.Errorf("err %v, tries %d, rows %d", err, tries, count())
		}
	})
	t.Run("another error is not", func(t *testing.T) {
		tries := 0
		want := errors.New("no")
		err := c.Tx(ctx, func(tx sqldialect.Conn) error {
			tries++
			exec(t, tx, "INSERT INTO t VALUES (2)")
			return want
		})
		if !errors.Is(err, want) || tries != 1 || count() != 1 {
			t.Errorf("err %v, tries %d, rows %d", err, tries, count())
		}
	})
	t.Run("a panic rolls back", func(t *testing.T) {
		func() {
			defer func() { _ = recover() }()
			_ = c.Tx(ctx, func(tx sqldialect.Conn) error {
				exec(t, tx, "INSERT INTO t VALUES (3)")
				panic("x")
			})
		}()
		exec(t, c, "UPDATE t SET a = a") // the writer is free
		if count() != 1 {
			t.Errorf("rows %d", count())
		}
	})
	t.Run("the context ends the retries", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		err := c.Tx(ctx, func(sqldialect.Conn) error { return coded(5) })
		if c.Classify(err) != sqldialect.Busy && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err %v", err)
		}
	})
	t.Run("a transaction is no pool", func(t *testing.T) {
		tx := db.Begin()
		defer tx.Rollback()
		if _, err := sqldialect.Pool(tx); err == nil {
			t.Error("accepted")
		}
		if w, err := sqldialect.Within(tx); err != nil || !w.InTx() || w.Tx(ctx, nil) == nil {
			t.Errorf("within: %v", err)
		}
	})
}

func files(more ...string) fstest.MapFS {
	fs := fstest.MapFS{
		"m/sqlite/0001_first.sql": {Data: []byte("-- a comment\nCREATE TABLE {prefix}a (\n  x TEXT\n);\n-- guard: some-index\nCREATE UNIQUE INDEX {prefix}a_x ON {prefix}a (x);\n")},
	}
	for i := 0; i < len(more); i += 2 {
		fs["m/sqlite/"+more[i]] = &fstest.MapFile{Data: []byte(more[i+1])}
	}
	return fs
}

func load(t *testing.T, fs fstest.MapFS) *sqldialect.Set {
	t.Helper()
	s, err := sqldialect.LoadSet("test", fs, "m", "p_", sqldialect.SQLite(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMigrations(t *testing.T) {
	c, _ := open(t)
	ctx := t.Context()
	one := load(t, files())
	var schema *sqldialect.SchemaError
	if err := one.Check(ctx, c); !errors.As(err, &schema) || schema.Current != 0 || schema.Latest != 1 {
		t.Fatalf("check of an empty database: %v", err)
	}
	for range 2 {
		if err := one.Up(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, c, "INSERT INTO p_a VALUES ('x')")
	if _, err := c.Exec(ctx, "INSERT INTO p_a VALUES ('x')"); c.Classify(err) != sqldialect.Unique {
		t.Errorf("the index is missing: %v", err)
	}

	broken := load(t, files("0002_more.sql", "CREATE TABLE {prefix}b (x TEXT);\nCREATE TABLE {prefix}a (x TEXT);\n"))
	if err := broken.Up(ctx, c); err == nil || !strings.Contains(err.Error(), "0002_more") {
		t.Fatalf("broken migration: %v", err)
	}
	if _, err := c.Exec(ctx, "SELECT * FROM p_b"); c.Classify(err) != sqldialect.Schema {
		t.Errorf("a part of a migration that failed was kept: %v", err)
	}

	two := load(t, files("0002_more.sql", "CREATE TABLE {prefix}b (x TEXT);\n"))
	if st, err := two.Status(ctx, c); err != nil || st.Current != 1 || st.Latest != 2 || !slices.Equal(st.Pending, []string{"0002_more"}) {
		t.Fatalf("status %+v, %v", st, err)
	}
	if err := two.Up(ctx, c); err != nil {
		t.Fatal(err)
	}

	// The older program refuses, and says both versions.
	err := one.Up(ctx, c)
	if !errors.As(err, &schema) || schema.Current != 2 || !strings.Contains(err.Error(), "version 2") || !strings.Contains(err.Error(), "version 1") {
		t.Errorf("newer schema: %v", err)
	}
	other := load(t, files("0002_more.sql", "CREATE TABLE {prefix}c (x TEXT);\n"))
	if err := other.Up(ctx, c); !errors.As(err, &schema) || !strings.Contains(err.Error(), "0002_more") {
		t.Errorf("changed migration: %v", err)
	}
}

func TestPrintedSQLMakesTheSameDatabase(t *testing.T) {
	c, _ := open(t)
	s := load(t, files())
	for stmt := range strings.SplitSeq(s.SQL(c.Dialect), ";\n") {
		if stmt != "" {
			exec(t, c, stmt)
		}
	}
	if err := s.Check(t.Context(), c); err != nil {
		t.Error(err)
	}
}

func TestBadSets(t *testing.T) {
	for name, fs := range map[string]fstest.MapFS{
		"gap":  files("0003_x.sql", "SELECT 1;"),
		"name": files("second.sql", "SELECT 1;"),
	} {
		if _, err := sqldialect.LoadSet("test", fs, "m", "p_", sqldialect.SQLite(), nil); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
	for _, prefix := range []string{"", "A", "a-b", "a;", "a b", "1a", strings.Repeat("a", 40)} {
		if _, err := sqldialect.LoadSet("test", files(), "m", prefix, sqldialect.SQLite(), nil); err == nil {
			t.Errorf("prefix %q: loaded", prefix)
		}
	}
}
