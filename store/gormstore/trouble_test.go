package gormstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libtnb/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
	"github.com/solotick/solotick/store/storetest"
)

func wantUnavailable(t *testing.T, err error, text string) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want unavailable and %q", err, text)
	}
}

// full makes the database file take no more pages, and gives them back.
func (p *place) full(yes bool) {
	p.Helper()
	pages := "4294967294"
	if yes {
		pages = "1" // raised to what is in use
	}
	p.must(p.db.Exec("PRAGMA max_page_count = " + pages).Error)
}

// fill takes what is free in the pages in use.
func (p *place) fill() {
	p.Helper()
	for i := range 10_000 {
		n := queued("filler", time.Now().String())
		n.Args = []byte(strings.Repeat("x", 1<<(i%12)))
		if _, err := p.s.Enqueue(p.ctx, space, []store.NewExecution{n}); err != nil {
			wantUnavailable(p.T, err, "full")
			return
		}
	}
	p.Fatal("the disk does not get full")
}

// A claim that finds no space records nothing; the same claim is granted when
// there is space again.
func TestDiskFullBeforeAClaim(t *testing.T) {
	p := newPlace(t)
	tick := p.register("job")
	p.full(true)
	p.fill()
	run := cron("job", tick)
	run.Args = []byte(strings.Repeat("x", 20_000))
	_, err := p.s.Claim(p.ctx, store.ClaimRequest{Namespace: space, Owner: p.owner, Lease: long, Runs: []store.ClaimRun{run}})
	wantUnavailable(t, err, "full")
	if _, err := p.s.Find(p.ctx, space, run.Key); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after the claim that failed: %v", err)
	}
	p.full(false)
	p.started(run)
}

// A run whose effect finds no space is rolled back whole and stays the attempt's.
func TestDiskFullInARun(t *testing.T) {
	p := withEffects(t)
	tick := p.register("job")
	x := p.started(cron("job", tick))
	p.full(true)
	p.fill()
	err := p.db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO effects VALUES (?, 1)", strings.Repeat("x", 20_000)).Error; err != nil {
			return err
		}
		return p.s.FinishTx(p.ctx, tx, done(x))
	})
	if err == nil || !strings.Contains(err.Error(), "full") {
		t.Fatalf("err %v", err)
	}
	p.full(false)
	if got, err := p.s.Get(p.ctx, space, x.ID); err != nil || got.State != store.StateRunning || p.effects() != 0 {
		t.Errorf("after the rollback: %v, %v, %d effects", got.State, err, p.effects())
	}
	p.must(p.finishWithEffect(x))
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	db := openDB(t, path)
	s := newStore(t, db)
	if err := db.Exec("INSERT INTO solotick_schema_version VALUES ('store', 99, 'from_the_future', 'x', 0)").Error; err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"migrate": s.Migrate(t.Context()), "check": s.CheckSchema(t.Context())} {
		if !errors.Is(err, store.ErrSchema) || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "this program at version") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestMissingTables(t *testing.T) {
	s, err := gormstore.New(openDB(t, filepath.Join(t.TempDir(), "store.db")))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Register(t.Context(), space, []store.JobSpec{{Job: "job"}})
	if !errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "migrate") {
		t.Errorf("err %v", err)
	}
	if err := s.CheckSchema(t.Context()); !errors.Is(err, store.ErrSchema) {
		t.Errorf("err %v", err)
	}
	for stmt := range strings.SplitSeq(s.MigrationSQL(), ";\n") {
		if !strings.HasPrefix(stmt, "CREATE ") && !strings.HasPrefix(stmt, "INSERT INTO solotick_schema_version ") && stmt != "" {
			t.Errorf("unexpected statement %.80q", stmt)
		}
	}
}

// Damage that shows later than at start.
func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	db, err := sqlitedb.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, db)
	for range 300 {
		n := queued("mail", time.Now().String())
		n.Args = []byte(strings.Repeat("x", 300))
		if _, err := s.Enqueue(t.Context(), space, []store.NewExecution{n}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sqlitedb.Close(db); err != nil {
		t.Fatal(err)
	}
	s = newStore(t, openDB(t, path))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(4096); at < info.Size(); at += 4096 {
		if _, err := f.WriteAt(bytes4096, at); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.List(t.Context(), store.Filter{Namespace: space})
	wantUnavailable(t, err, "damaged")
}

var bytes4096 = []byte(strings.Repeat("\xa5", 4096))

// A claim whose COMMIT is cut off is unknown to the caller; the repeat settles it.
func TestUnknownCommit(t *testing.T) {
	p := newPlace(t)
	tick := p.register("job")
	lost := errors.New("no answer")
	run := cron("job", tick)
	run.ID = store.NewID(tick)
	ctx, cancel := context.WithCancelCause(p.ctx)
	p.count.Before(func(query string) error {
		if query == "COMMIT" {
			cancel(lost) // the transaction is rolled back behind the caller's back
			return context.Canceled
		}
		return nil
	})
	_, err := p.s.Claim(ctx, store.ClaimRequest{Namespace: space, Owner: p.owner, Lease: long, Runs: []store.ClaimRun{run}})
	wantUnavailable(t, err, "canceled")
	p.count.Before(nil)
	first := p.started(run)
	again := p.started(run) // a repeat of one that was applied
	if again.ID != first.ID || again.Attempt != 1 || again.Fence != first.Fence {
		t.Errorf("repeat %+v, want %+v", again.Ref(), first.Ref())
	}
}

// A fetcher that has seen rows whose key is taken before it asks for them gets the
// others.
func TestFetchPassesOverKeysTakenMeanwhile(t *testing.T) {
	p := newPlace(t)
	keyed := func(name, key string) store.NewExecution {
		n := queued("mail", name)
		n.LockKey = key
		return n
	}
	_, err := p.s.Enqueue(p.ctx, space, []store.NewExecution{keyed("1", "ann"), keyed("2", "bob"), queued("mail", "3")})
	p.must(err)
	_, err = p.s.Register(p.ctx, space, []store.JobSpec{{Job: "mail"}})
	p.must(err)
	rival := newStore(t, openDB(t, p.path))
	raced := false
	p.count.Before(func(query string) error {
		if query != "BEGIN" || raced {
			return nil
		}
		raced = true // between the two statements, another run takes ann's key
		run := store.ClaimRun{NewExecution: keyed("other", "ann")}
		got, err := rival.Claim(p.ctx, store.ClaimRequest{Namespace: space, Owner: store.NewOwner(), Lease: long, Runs: []store.ClaimRun{run}})
		if err != nil || got.Runs[0].Outcome != store.OutcomeStarted {
			t.Errorf("rival: %+v, %v", got, err)
		}
		return nil
	})
	got := p.fetch(10, "mail")
	if !raced || len(got.Runs) != 2 || got.Runs[0].Key.Name != "2" || got.Runs[1].Key.Name != "3" {
		t.Errorf("raced %v, fetched %+v", raced, got.Runs)
	}
}

// Names that look like dates must come back as they are, also from a database
// that the user opened with a driver's own habits: deferred transactions, time
// parsing, GORM's prepared statements.
func TestForeignDatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	open := func(tb testing.TB) store.Store {
		tb.Helper()
		db, err := gorm.Open(sqlite.Open(path+"?_pragma=journal_mode(WAL)"), &gorm.Config{PrepareStmt: true, Logger: logger.Discard})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			sqlDB, err := db.DB()
			if err == nil {
				err = sqlDB.Close()
			}
			if err != nil {
				tb.Error(err)
			}
		})
		return newStore(tb, db)
	}
	s := open(t)
	const day = "2026-01-01"
	reg, err := s.Register(t.Context(), day, []store.JobSpec{{Job: day, Spec: day, Hash: day}})
	if err != nil {
		t.Fatal(err)
	}
	n := queued(day, day)
	n.LockKey, n.CreatedBy, n.Zone, n.Queue = day, day, day, day
	if _, err := s.Enqueue(t.Context(), day, []store.NewExecution{n}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Fetch(t.Context(), store.FetchRequest{Namespace: day, Owner: store.NewOwner(), OwnerLabel: day, Lease: long, Jobs: []string{day}, Limit: 1})
	if err != nil || len(got.Runs) != 1 {
		t.Fatalf("fetched %+v, %v", got, err)
	}
	x := got.Runs[0]
	for _, v := range []string{x.Namespace, x.Key.Job, x.Key.Name, x.LockKey, x.CreatedBy, x.Zone, x.Queue, x.OwnerLabel, reg.Jobs[0].Job, reg.Jobs[0].Namespace} {
		if v != day {
			t.Errorf("got %q, want %q", v, day)
		}
	}
	if testing.Short() {
		return
	}
	t.Run("conformance", func(t *testing.T) {
		storetest.RunShort(t, func(t *testing.T) storetest.Harness {
			path = filepath.Join(t.TempDir(), "store.db")
			return storetest.Harness{Open: open}
		})
	})
}

func TestNewRefuses(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "store.db"))
	if _, err := gormstore.New(db, gormstore.WithPrefix("bad-prefix; DROP")); err == nil || !strings.Contains(err.Error(), "prefix") {
		t.Errorf("prefix: %v", err)
	}
	if _, err := gormstore.New(nil); err == nil {
		t.Error("nil database accepted")
	}
	tx := db.Begin()
	defer tx.Rollback()
	if _, err := gormstore.New(tx); err == nil || !strings.Contains(err.Error(), "transaction") {
		t.Errorf("transaction: %v", err)
	}
}
