package sqljob

import (
	"context"
	"database/sql"
	"reflect"
	"strings"
	"testing"

	_ "github.com/libtnb/sqlite" // registers the driver
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAccepted(t *testing.T) {
	for _, c := range []struct {
		d     Dialect
		text  string
		texts []string
		binds [][]string
	}{
		{SQLite, "DELETE FROM a WHERE t < :tick", []string{"DELETE FROM a WHERE t < ?"}, [][]string{{"tick"}}},
		{Postgres, "INSERT INTO a VALUES (:key, :args::jsonb, :key)", []string{"INSERT INTO a VALUES ($1, $2::jsonb, $3)"}, [][]string{{"key", "args", "key"}}},
		{MySQL, "UPDATE a SET b = :fence WHERE c = 'it''s :key'", []string{"UPDATE a SET b = ? WHERE c = 'it''s :key'"}, [][]string{{"fence"}}},
		{SQLite, ";; INSERT INTO a VALUES (1); -- COMMIT;\nUPDATE a SET b = 'COMMIT; :x' /* ; BEGIN */ ;", []string{"INSERT INTO a VALUES (1)", "-- COMMIT;\nUPDATE a SET b = 'COMMIT; :x' /* ; BEGIN */"}, [][]string{nil, nil}},
		{SQLite, `SELECT ";", [a;b], ` + "`;`" + `, commit FROM "BEGIN"`, []string{`SELECT ";", [a;b], ` + "`;`" + `, commit FROM "BEGIN"`}, [][]string{nil}},
		{SQLite, "CREATE TABLE IF NOT EXISTS a (b TEXT DEFAULT '?')", []string{"CREATE TABLE IF NOT EXISTS a (b TEXT DEFAULT '?')"}, [][]string{nil}},
		{SQLite, "WITH x AS (SELECT 1) DELETE FROM a", []string{"WITH x AS (SELECT 1) DELETE FROM a"}, [][]string{nil}},
		{Postgres, "UPDATE a SET b = $x$ ; COMMIT $$ :y $x$; DELETE FROM c", []string{"UPDATE a SET b = $x$ ; COMMIT $$ :y $x$", "DELETE FROM c"}, [][]string{nil, nil}},
		{Postgres, `SELECT E'it\'s; ' || 'c:\'; /* a /* ; */ ; */ DELETE FROM c WHERE d ? 'k' AND e @> f`, []string{`SELECT E'it\'s; ' || 'c:\'`, `/* a /* ; */ ; */ DELETE FROM c WHERE d ? 'k' AND e @> f`}, [][]string{nil, nil}},
		{Postgres, "SET LOCAL lock_timeout = '1s'; (SELECT 1) UNION (SELECT 2); CREATE INDEX a ON b (c); LOCK TABLE b; TRUNCATE b", nil, make([][]string, 5)},
		{MySQL, "SELECT 1 --1\n, 'a\\\\', \"b\", `c` # COMMIT;\n; SET_ME := 1", nil, nil},
		{MySQL, "SELECT @a := 1; DELETE FROM b WHERE c = 5--1", []string{"SELECT @a := 1", "DELETE FROM b WHERE c = 5--1"}, [][]string{nil, nil}},
	} {
		sts, err := parse(c.d, c.text)
		if c.texts == nil && c.binds == nil { // shows where the scanner sees a statement end
			if err == nil || !strings.Contains(err.Error(), "SET_ME") {
				t.Errorf("%s: %v", c.text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %q: %v", c.d, c.text, err)
			continue
		}
		var texts []string
		var binds [][]string
		for _, st := range sts {
			texts, binds = append(texts, st.text), append(binds, st.binds)
		}
		if c.texts != nil && !reflect.DeepEqual(texts, c.texts) || !reflect.DeepEqual(binds, c.binds) {
			t.Errorf("%s %q\n got %q %v\nwant %q %v", c.d, c.text, texts, binds, c.texts, c.binds)
		}
	}
}

func TestRefused(t *testing.T) {
	all := []Dialect{SQLite, Postgres, MySQL}
	for _, c := range []struct {
		ds         []Dialect
		text, want string
	}{
		{all, "", "there is no statement"},
		{all, " ; -- nothing\n;", "there is no statement"},
		{all, "BEGIN", "line 1: BEGIN controls the transaction"},
		{all, "DELETE FROM a;\n\n  commit", "line 3: COMMIT controls the transaction"},
		{all, "DELETE FROM a; /* x */ RollBack TO x", "ROLLBACK controls the transaction"},
		{all, "end", "END controls"},
		{all, "START TRANSACTION", "START controls"},
		{all, "SAVEPOINT a", "SAVEPOINT controls"},
		{all, "RELEASE a", "RELEASE controls"},
		{all, "VACUUM", "VACUUM cannot run in a transaction"},
		{all, "PRAGMA foreign_keys = off", "PRAGMA changes the connection"},
		{all, "ATTACH 'x' AS y", "ATTACH changes the connection"},
		{all, "DETACH y", "DETACH changes"},
		{all, "SET autocommit = 1", "SET changes the connection"},
		{all, "CALL p()", "CALL runs statements that cannot be checked"},
		{all, "EXECUTE p", "EXECUTE runs"},
		{all, "EXPLAIN SELECT 1", "EXPLAIN is not known to be safe"},
		{all, "DELET FROM a", "DELET is not known"},
		{all, "'x'", "a statement without a word"},
		{all, "DELETE FROM a WHERE b = 'x", "a ' is not closed"},
		{all, "DELETE FROM a /* x", "a comment is not closed"},
		{all, "DELETE FROM a WHERE \"b = 1", "a \" is not closed"},
		{all, "DELETE FROM a\nWHERE b = :tik", "line 2: no parameter is called :tik: use :key, :job, :tick"},
		{all, "SELECT 1\x00; COMMIT", "NUL"},
		{[]Dialect{SQLite, MySQL}, "DELETE FROM a WHERE b = ?", "? cannot name a parameter here"},
		{[]Dialect{SQLite, Postgres}, "DELETE FROM a WHERE b = $1", "$ cannot name a parameter here"},
		{[]Dialect{SQLite}, "DELETE FROM a WHERE b = @x", "@ cannot name"},
		{[]Dialect{SQLite}, "CREATE TEMP TRIGGER a AFTER INSERT ON b BEGIN DELETE FROM c; END", "CREATE TRIGGER has a body"},
		{[]Dialect{SQLite}, "INSERT OR/**/ROLLBACK INTO a VALUES (1)", "ON CONFLICT ROLLBACK can end the transaction"},
		{[]Dialect{SQLite}, "CREATE TABLE a (b UNIQUE ON CONFLICT ROLLBACK)", "ON CONFLICT ROLLBACK can end"},
		{[]Dialect{SQLite}, "SELECT [a", "a [ is not closed"},
		{[]Dialect{SQLite}, "LOCK TABLES a", "LOCK is not known"},
		{[]Dialect{Postgres}, "CREATE UNIQUE INDEX CONCURRENTLY a ON b (c)", "CREATE UNIQUE CONCURRENTLY cannot run in a transaction"},
		{[]Dialect{Postgres}, "ALTER SYSTEM SET a = b", "ALTER SYSTEM cannot run"},
		{[]Dialect{Postgres}, "DROP DATABASE a", "DROP DATABASE cannot run"},
		{[]Dialect{Postgres}, "REINDEX TABLE CONCURRENTLY a", "CONCURRENTLY cannot run"},
		{[]Dialect{Postgres}, "COPY a TO PROGRAM 'x'", "COPY writes outside"},
		{[]Dialect{Postgres}, "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END", "BEGIN ATOMIC has a body"},
		{[]Dialect{Postgres}, "SET SESSION x = 1", "SET changes the connection"},
		{[]Dialect{Postgres}, "SELECT $a$ x", "a $a$ is not closed"},
		{[]Dialect{Postgres}, `SELECT E'\'`, "a ' is not closed"},
		{[]Dialect{MySQL}, "CREATE TABLE a (b int)", "CREATE commits by itself"},
		{[]Dialect{MySQL}, "TRUNCATE a", "TRUNCATE commits"},
		{[]Dialect{MySQL}, "LOCK TABLES a READ", "LOCK commits"},
		{[]Dialect{MySQL}, "ALTER TABLE a ADD b int", "ALTER commits"},
		{[]Dialect{MySQL}, "RENAME TABLE a TO b", "RENAME commits"},
		{[]Dialect{MySQL}, "ANALYZE TABLE a", "ANALYZE commits"},
		{[]Dialect{MySQL}, "SELECT 1 /*! ; COMMIT */", "a comment that is executed"},
		{[]Dialect{MySQL}, "SELECT 1 /*M!100 COMMIT */", "a comment that is executed"},
		{[]Dialect{MySQL}, `SELECT 'a\'; COMMIT; -- '`, "a backslash stands before a quote"},
		{[]Dialect{MySQL}, "SELECT 1 INTO OUTFILE '/x'", "INTO OUTFILE writes outside"},
	} {
		for _, d := range c.ds {
			if err := Check(d, c.text); err == nil || !strings.HasPrefix(err.Error(), "sqljob: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %q: got %v, want %q", d, c.text, err, c.want)
			}
		}
	}
	if err := Check("oracle", "SELECT 1"); err == nil || !strings.Contains(err.Error(), "no rules") {
		t.Error(err)
	}
	err := Check(SQLite, "BEGIN;\nDELETE FROM a;\nVACUUM")
	if err == nil || len(strings.Split(err.Error(), "\n")) != 2 {
		t.Errorf("not every statement is told: %v", err)
	}
}

// FuzzNothingEndsTheTransaction gives what is accepted to SQLite in a transaction
// that must still be there afterwards.
func FuzzNothingEndsTheTransaction(f *testing.F) {
	for _, text := range []string{
		"INSERT INTO a VALUES (:key); DELETE FROM a WHERE b = 'x;--'", "SELECT 1 /* ; */; -- x\nUPDATE a SET b = [b] || \"b\"", "COMMIT", "/**/COMMIT", "-- x\rCOMMIT", "SELECT ';COMMIT'", "\ufeffCOMMIT",
		"CREATE TABLE c (d); INSERT INTO c VALUES (:tick)", "INSERT OR ROLLBACK INTO a VALUES (1)", "WITH x AS (VALUES (1)) SELECT * FROM x", "EXPLAIN COMMIT", "SELECT x'00'; END", "DROP TABLE a", "SELECT $$;COMMIT;$$", "SELECT 'a\\'; COMMIT; --'",
	} {
		for _, d := range []string{"sqlite", "postgres", "mysql"} {
			f.Add(d, text)
		}
	}
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := db.Close(); err != nil {
			f.Error(err)
		}
	})
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("CREATE TABLE a (b UNIQUE); INSERT INTO a VALUES ('kept')"); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, dialect, text string) {
		sts, err := parse(Dialect(dialect), text)
		if err != nil || dialect != "sqlite" || strings.Contains(strings.ToLower(text), "recursive") {
			return
		}
		ctx := context.Background()
		conn, err := db.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}()
		if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			t.Fatal(err)
		}
		for _, st := range sts {
			args := make([]any, len(st.binds))
			_, _ = conn.ExecContext(ctx, st.text, args...) // most of it is nonsense
		}
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			t.Fatalf("%q ended the transaction: %v", text, err)
		}
		var n int
		if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM a WHERE b = 'kept'").Scan(&n); err != nil || n != 1 {
			t.Fatalf("%q left its mark: %d, %v", text, n, err)
		}
	})
}
