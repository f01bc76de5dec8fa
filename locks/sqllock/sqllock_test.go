package sqllock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

func openDB(tb testing.TB, path string) *gorm.DB {
	tb.Helper()
	db, err := sqlitedb.Open(path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func newDriver(tb testing.TB, db *gorm.DB) *sqllock.Driver {
	tb.Helper()
	d, err := sqllock.NewDriver(db)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// closing is a driver with a database of its own, as a process has.
type closing struct {
	*sqllock.Driver
	db *gorm.DB
}

func (c closing) Close() error { return errors.Join(c.Driver.Close(), sqlitedb.Close(c.db)) }

func harness(tb testing.TB) lockstest.Harness {
	path := filepath.Join(tb.TempDir(), "locks.db")
	console := openDB(tb, path)
	if err := newDriver(tb, console).Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return lockstest.Harness{
		New: func(tb testing.TB) driver.Driver {
			tb.Helper()
			db, err := sqlitedb.Open(path, nil)
			if err != nil {
				tb.Fatal(err)
			}
			return closing{newDriver(tb, db), db}
		},
		Delete: func(tb testing.TB, key string) {
			tb.Helper()
			if err := console.Exec("DELETE FROM solotick_locks WHERE name = ?", key).Error; err != nil {
				tb.Fatal(err)
			}
			// The fence of a row made anew begins at the clock, which counts in ms.
			<-time.After(2 * time.Millisecond)
		},
	}
}

func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	h := harness(t)
	h.TTL = 1500 * time.Millisecond
	h.SideBySide = 6 // they share one writer
	lockstest.Run(t, h)
}

func BenchmarkLock(b *testing.B) { lockstest.Bench(b, harness(b)) }

func request(key string) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: time.Minute, Label: "host:1"}
}

func hold(t *testing.T, d driver.Driver, r driver.Request) driver.Hold {
	t.Helper()
	g, err := d.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return driver.Hold{Request: r, Fence: g.Fence}
}

// The promises of the package comment, by count.
func TestStatements(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	db, count := sqlcount.Wrap(openDB(t, path))
	d := newDriver(t, db)
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := func(what string, n int, f func()) {
		t.Helper()
		count.Reset()
		f()
		if got := count.Statements(); got != n || count.Transactions() != 0 {
			t.Errorf("%s: %d statements, %d transactions, want %d and 0: %q", what, got, count.Transactions(), n, count.Queries())
		}
	}
	var h driver.Hold
	want("acquire", 1, func() { h = hold(t, d, request("k")) })
	wal := func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	size := wal()
	var held *driver.HeldError
	want("acquire of a held key", 1, func() {
		if _, err := d.Acquire(t.Context(), request("k")); !errors.As(err, &held) {
			t.Fatalf("err %v", err)
		}
	})
	if got := wal(); got != size {
		t.Errorf("a refused acquire wrote %d bytes to the journal", got-size)
	}
	if x := held.Holder; x.Label != "host:1" || x.Token != h.Token || x.Fence != h.Fence || x.Remaining <= 0 || x.Remaining > time.Minute ||
		time.Since(x.Since) > time.Minute {
		t.Errorf("holder %+v", x)
	}
	want("renew", 1, func() {
		if _, err := d.Renew(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	})
	holds := []driver.Hold{h}
	for _, k := range []string{"a", "b", "c"} {
		holds = append(holds, hold(t, d, request(k)))
	}
	want("renew 4", 1, func() {
		if errs := d.RenewBatch(t.Context(), holds); !slices.Equal(errs, make([]error, 4)) {
			t.Fatal(errs)
		}
	})
	want("release", 1, func() {
		if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
			t.Fatal(out, err)
		}
	})
}

func TestTableIsMadeAtTheFirstUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	for range 2 {
		l, err := sqllock.New(openDB(t, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The lock must not end with the caller's rollback.
func TestRefusesATransaction(t *testing.T) {
	tx := openDB(t, filepath.Join(t.TempDir(), "locks.db")).Begin()
	defer tx.Rollback()
	if _, err := sqllock.NewDriver(tx); err == nil || !strings.Contains(err.Error(), "transaction") {
		t.Errorf("err %v", err)
	}
}

// A writer that stays is neither a holder nor an unknown answer: the statement
// was not applied.
func TestBlockedWriterIsUnavailable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	d := newDriver(t, openDB(t, path))
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	blocker := openDB(t, path).Begin()
	defer blocker.Rollback()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := d.Acquire(ctx, request("k"))
	var held *driver.HeldError
	if err == nil || errors.As(err, &held) {
		t.Errorf("err %v", err)
	}
	if took := time.Since(start); took > time.Minute/2 {
		t.Errorf("blocked for %v although the context ended", took)
	}
}

func TestFullDiskIsNotApplied(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "locks.db"))
	d := newDriver(t, db)
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Exec("PRAGMA max_page_count = 1").Error; err != nil { // raised to what is in use
		t.Fatal(err)
	}
	var err error
	for i := 0; i < 2000 && err == nil; i++ {
		r := request(strings.Repeat("x", 400) + string(rune('a'+i%26)) + time.Now().String())
		r.TTL = time.Hour
		_, err = d.Acquire(t.Context(), r)
	}
	if err == nil || !driver.IsNotApplied(err) || !strings.Contains(err.Error(), "full") {
		t.Errorf("err %v, want one that says full and not applied", err)
	}
}

func TestPlugin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	opener := func(_ context.Context, dsn string) (*gorm.DB, func() error, error) {
		db, err := sqlitedb.Open(dsn, nil)
		if err != nil {
			return nil, nil, err
		}
		return db, func() error { return sqlitedb.Close(db) }, nil
	}
	r, err := locks.NewRegistry(sqllock.Plugin("sqlite", opener))
	if err != nil {
		t.Fatal(err)
	}
	with := func(c sqllock.PluginConfig) func(any) error {
		return func(into any) error {
			*into.(*sqllock.PluginConfig) = c
			return nil
		}
	}
	d, err := r.Open(t.Context(), "sqlite", with(sqllock.PluginConfig{DSN: path, TablePrefix: "other_"}))
	if err != nil {
		t.Fatal(err)
	}
	l, err := locks.New(d, locks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil { // and with it the database
		t.Fatal(err)
	}
	for name, c := range map[string]sqllock.PluginConfig{
		"dsn":          {},
		"table_prefix": {DSN: path, TablePrefix: "a-b"},
		"directory":    {DSN: t.TempDir()},
	} {
		if _, err := r.Open(t.Context(), "sqlite", with(c)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: err %v", name, err)
		}
	}
	if _, err := locks.New(d, locks.Config{TTL: 20 * time.Millisecond}); err == nil {
		t.Error("a TTL below the limit was accepted")
	}
}

// Another process's transaction holds the writer while the row's end passes: what
// is granted then must have its whole TTL.
func TestGrantAfterAWaitHasItsWholeTTL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	d := newDriver(t, openDB(t, path))
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	blocker := openDB(t, path).Begin()
	done := make(chan error, 1)
	r := request("k")
	r.TTL = time.Second
	go func() {
		_, err := d.Acquire(context.Background(), r)
		done <- err
	}()
	<-time.After(2 * r.TTL)
	if err := blocker.Rollback().Error; err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got := time.Now()
	h, err := d.Inspect(t.Context(), "k")
	if err != nil || h.Remaining < r.TTL/2-time.Since(got) {
		t.Errorf("remaining %v of %v, %v", h.Remaining, r.TTL, err)
	}
}
