package sqlitedb

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"
)

func open(tb testing.TB, path string) *gorm.DB {
	tb.Helper()
	db, err := Open(path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := Close(db); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func must(tb testing.TB, db *gorm.DB, query string, args ...any) {
	tb.Helper()
	if err := db.Exec(query, args...).Error; err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

func TestSettings(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a ? b%41#c.db"))
	for query, want := range map[string]string{
		"PRAGMA journal_mode": "wal", "PRAGMA synchronous": "2", "PRAGMA busy_timeout": "5000",
	} {
		var got string
		if err := db.Raw(query).Scan(&got).Error; err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", query, got, err, want)
		}
	}
}

// Every refusal names the path and a remedy, and leaves the disk as it was.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sound := func() []byte {
		path := filepath.Join(t.TempDir(), "sound.db")
		db, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		must(t, db, "CREATE TABLE t (a TEXT)")
		for range 200 {
			must(t, db, "INSERT INTO t VALUES (?)", strings.Repeat("x", 500))
		}
		if err := Close(db); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}()
	damaged := bytes.Clone(sound)
	for i := 4096; i < 3*4096; i++ {
		damaged[i] = 0xA5
	}
	if err := os.Mkdir(filepath.Join(dir, "locked"), 0o555); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, want string }{
		"empty":              {"", "name a file"},
		"memory":             {":memory:", "in-memory"},
		"uri":                {"file:x.db?mode=ro", "plain file path"},
		"directory":          {dir, "is a directory"},
		"no parent":          {filepath.Join(dir, "none", "a.db"), "does not exist"},
		"parent is file":     {filepath.Join(write("plain", 0o644, nil), "a.db"), "not a directory"},
		"unreadable":         {write("unreadable.db", 0o222, sound), "cannot be read"},
		"read-only":          {write("readonly.db", 0o444, sound), "read-only"},
		"read-only dir":      {filepath.Join(dir, "locked", "a.db"), "cannot be written"},
		"not a database":     {write("text.db", 0o644, []byte(strings.Repeat("hello ", 100))), "not a SQLite database"},
		"short":              {write("short.db", 0o644, []byte("SQLite format 3")), "not a SQLite database"},
		"damaged":            {write("damaged.db", 0o644, damaged), "damaged"},
		"truncated":          {write("truncated.db", 0o644, sound[:3*4096]), "damaged"},
		"damaged first page": {write("page1.db", 0o644, append(bytes.Clone(sound[:100]), bytes.Repeat([]byte{7}, 8000)...)), "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			before := listing(t, dir)
			db, err := Open(c.path, nil)
			if err == nil {
				_ = Close(db)
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "sqlitedb: ") {
				t.Errorf("error %q: want it to say %q", err, c.want)
			}
			if c.path != "" && !strings.Contains(err.Error(), c.path) {
				t.Errorf("error %q does not name the path", err)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("disk changed:\n%s\nbecame\n%s", before, after)
			}
		})
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		fmt.Fprintf(&b, "%s %x\n", e.Name(), len(data))
	}
	return b.String()
}

// A SELECT outside a transaction must not wait for the writer, and must see what
// was committed before it.
func TestReadersRunBesideTheWriter(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a.db"))
	must(t, db, "CREATE TABLE t (a INTEGER)")
	must(t, db, "INSERT INTO t VALUES (1)")
	count := func() (n int) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := db.WithContext(ctx).Raw("SELECT count(*) FROM t").Scan(&n).Error; err != nil {
			t.Fatal(err)
		}
		return n
	}
	for round := 1; round <= 4; round++ { // the statements become prepared ones on the way
		tx := db.Begin()
		must(t, tx, "INSERT INTO t VALUES (?)", round)
		var inside int
		if err := tx.Raw("SELECT count(*) FROM t").Scan(&inside).Error; err != nil || inside != round+1 {
			t.Fatalf("inside: %d, %v; want %d", inside, err, round+1)
		}
		if n := count(); n != round {
			t.Fatalf("beside the open transaction: %d rows, want %d", n, round)
		}
		if err := tx.Commit().Error; err != nil {
			t.Fatal(err)
		}
		if n := count(); n != round+1 {
			t.Fatalf("after the commit: %d rows, want %d", n, round+1)
		}
	}
	sqlDB, err := db.DB()
	if err != nil || sqlDB.Stats().MaxOpenConnections != 1 {
		t.Errorf("DB() must be the one writer: %v", err)
	}
}

// Read, then write, in a transaction: with deferred transactions most of these
// fail at once although each would wait (spec fact 8).
func TestReadThenWriteInManyProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	path := filepath.Join(t.TempDir(), "new.db")
	const processes = 10
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("child: %v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	var n int
	if err := open(t, path).Raw("SELECT n FROM counter").Scan(&n).Error; err != nil || n != processes*childRounds {
		t.Errorf("counter = %d, %v; want %d", n, err, processes*childRounds)
	}
}

const (
	childEnv    = "SQLITEDB_TEST_CHILD"
	childRounds = 20
)

// child adds to a counter by read-then-write.
func child(path string) int {
	db, err := Open(path, &Options{BusyTimeout: 30 * time.Second, OpenTimeout: 30 * time.Second})
	if err == nil {
		defer func() { _ = Close(db) }()
		err = db.Exec("CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, n INTEGER)").Error
	}
	if err == nil {
		err = db.Exec("INSERT INTO counter VALUES (1, 0) ON CONFLICT DO NOTHING").Error
	}
	for i := 0; i < childRounds && err == nil; i++ {
		err = db.Transaction(func(tx *gorm.DB) error {
			var n int
			if err := tx.Raw("SELECT n FROM counter WHERE id = 1").Scan(&n).Error; err != nil {
				return err
			}
			return tx.Exec("UPDATE counter SET n = ? WHERE id = 1", n+1).Error
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestRowsAreRolledBackWhenTheContextEnds(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a.db"))
	must(t, db, "CREATE TABLE t (a INTEGER)")
	ctx, cancel := context.WithCancel(t.Context())
	tx := db.WithContext(ctx).Begin()
	must(t, tx, "INSERT INTO t VALUES (1)")
	cancel()
	// The writer is free again without anybody's rollback.
	must(t, db.WithContext(t.Context()), "INSERT INTO t VALUES (2)")
	var n int
	if err := db.Raw("SELECT count(*) FROM t").Scan(&n).Error; err != nil || n != 1 {
		t.Errorf("rows = %d, %v; want 1", n, err)
	}
}

func TestPreparedStatementsAreBounded(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a.db"))
	p := db.ConnPool.(*pool)
	for i := range 2 * keptTexts {
		for range 2 {
			var n int
			if err := db.Raw(fmt.Sprintf("SELECT %d", i)).Scan(&n).Error; err != nil || n != i {
				t.Fatal(n, err)
			}
		}
	}
	if n := len(p.read.stmts); n != keptStatements {
		t.Errorf("%d prepared statements, want %d", n, keptStatements)
	}
	if n := len(p.read.once); n > keptTexts {
		t.Errorf("%d texts kept, want at most %d", n, keptTexts)
	}
}

func TestVerb(t *testing.T) {
	for query, want := range map[string]string{
		" select 1": "SELECT", "\n(SELECT 1)": "SELECT", "SELECT*FROM t": "SELECT", "with x as (select 1) insert into t select 1": "INSERT",
		"WITH a (t) AS MATERIALIZED (SELECT ')' FROM b) SELECT t FROM a": "SELECT", "WITH select_x AS (SELECT 1) DELETE FROM t": "DELETE",
		"WITH \"select \" AS (SELECT 1) UPDATE t SET a = 1": "UPDATE", "WITH x AS (SELECT 1) /* SELECT */ DELETE FROM t": "",
		"WITH [select 1] AS (SELECT 1) DELETE FROM t": "", "WITH x -- SELECT": "", "WITH x AS (SELECT 'it''s') REPLACE INTO t SELECT 1": "REPLACE",
		"/* c */ SELECT 1": "", "": "", "SAVEPOINT x": "", "pragma x": "PRAGMA", "Update t set a=1": "UPDATE",
	} {
		if got := verb(query); got != want {
			t.Errorf("verb(%q) = %q, want %q", query, got, want)
		}
	}
}

func TestCloseOfAForeignDB(t *testing.T) {
	if err := Close(&gorm.DB{Config: &gorm.Config{}}); err == nil {
		t.Error("closed a pool that is not ours")
	}
}
