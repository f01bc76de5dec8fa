package sqllock_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

// eachPlace runs f for every kind of server, side by side.
func eachPlace(t *testing.T, f func(t *testing.T, p *place)) {
	var all sync.WaitGroup
	for _, kind := range places {
		all.Go(func() {
			t.Run(kind.name, func(t *testing.T) { f(t, kind.shared(t)) })
		})
	}
	all.Wait()
}

// One statement to acquire, held or not, one to release, one to renew any number
// of locks up to the batch, on one connection without a transaction.
func TestServerStatements(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		db, count := sqlcount.Wrap(p.user(t, 1))
		d := newDriver(t, db)
		hold(t, d, request("first")) // and asks the server what it is
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
		var held *driver.HeldError
		want("acquire of a held key", 1, func() {
			if _, err := d.Acquire(t.Context(), request("k")); !errors.As(err, &held) {
				t.Fatalf("err %v", err)
			}
		})
		if x := held.Holder; x.Label != "host:1" || x.Token != h.Token || x.Fence != h.Fence || x.Remaining <= 0 || x.Remaining > time.Minute {
			t.Errorf("holder %+v", x)
		}
		want("renew", 1, func() {
			if _, err := d.Renew(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		})
		holds := make([]driver.Hold, 0, 1000)
		for i := range cap(holds) {
			holds = append(holds, hold(t, d, request(fmt.Sprint("many", i))))
		}
		batches := map[string]int{"postgres": 1, "mariadb": 2}[p.name]
		want("renew 1000", batches, func() {
			if errs := d.RenewBatch(t.Context(), holds); !slices.Equal(errs, make([]error, len(holds))) {
				t.Fatal(errs[0])
			}
		})
		want("release", 1, func() {
			if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
				t.Fatal(out, err)
			}
		})
	})
}

// An operator's transaction holds the row: the answer comes in time, says that
// nothing was done, and nothing is done later.
func TestRowThatIsLockedIsBusy(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		d := newDriver(t, p.user(t, 4))
		free := hold(t, d, request("k"))
		if _, err := d.Release(t.Context(), free); err != nil {
			t.Fatal(err)
		}
		blocker := p.admin.Begin()
		defer blocker.Rollback()
		if err := blocker.Exec("UPDATE solotick_locks SET beats = beats + 1").Error; err != nil {
			t.Fatal(err)
		}
		ctx, cancel := contextWithin(t, time.Second)
		defer cancel()
		_, err := d.Acquire(ctx, request("k"))
		var held *driver.HeldError
		if err == nil || errors.As(err, &held) || !driver.IsNotApplied(err) {
			t.Fatalf("err %v, want one that says busy and not applied", err)
		}
		if err := blocker.Rollback().Error; err != nil {
			t.Fatal(err)
		}
		if h, err := d.Inspect(t.Context(), "k"); !errors.Is(err, driver.ErrFree) {
			t.Errorf("after the wait the key is held by %+v, %v", h, err)
		}
	})
}

// The driver of go-sql-driver counts changed rows, or found ones.
func TestFoundRowsOrChangedRows(t *testing.T) {
	p := places[1].shared(t)
	for _, found := range []bool{false, true} {
		t.Run(fmt.Sprint(found), func(t *testing.T) {
			db, closer := p.open(p.userDSN(p.addr)+map[bool]string{true: "&clientFoundRows=true"}[found], 2)
			defer func() {
				if err := closer(); err != nil {
					t.Error(err)
				}
			}()
			d := newDriver(t, db)
			h := hold(t, d, request(fmt.Sprint("rows", found)))
			for range 3 {
				if _, err := d.Renew(t.Context(), h); err != nil {
					t.Fatal(err)
				}
			}
			other := h
			other.Token = driver.NewToken()
			if errs := d.RenewBatch(t.Context(), []driver.Hold{h, other}); errs[0] != nil || !errors.Is(errs[1], driver.ErrNotOurs) {
				t.Error(errs)
			}
			if out, err := d.Release(t.Context(), other); err != nil || out != driver.ReleasedOther {
				t.Error(out, err)
			}
			if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
				t.Error(out, err)
			}
			if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedGone {
				t.Error(out, err)
			}
		})
	}
}

// Processes that start together on an empty database make one table.
func TestConcurrentMigrations(t *testing.T) {
	for _, kind := range places {
		t.Run(kind.name, func(t *testing.T) {
			p := kind.shared(t)
			for _, table := range []string{"solotick_locks", "solotick_schema_version"} {
				if err := p.admin.Exec("DROP TABLE " + table).Error; err != nil {
					t.Fatal(err)
				}
			}
			var all sync.WaitGroup
			errs := make([]error, 10)
			for i := range errs {
				db, closer := p.open(p.dsnAt(p.addr), 2)
				defer func() { _ = closer() }()
				d := newDriver(t, db)
				all.Go(func() { errs[i] = d.Migrate(t.Context()) })
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		})
	}
}

func advisory(t *testing.T, p *place, conns int) (*sqllock.Advisory, func() int) {
	t.Helper()
	db := p.user(t, conns)
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetConnMaxLifetime(time.Second)
	a, err := sqllock.NewAdvisory(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a, func() int { return pool.Stats().OpenConnections }
}

// serverLocks counts the session locks at the server.
func serverLocks(t *testing.T, p *place, key string) int {
	t.Helper()
	query := "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	var args []any
	if p.name == "mariadb" {
		query = "SELECT IS_USED_LOCK(SHA2(CONCAT(DATABASE(), '/', ?), 256)) IS NOT NULL"
		args = []any{fmt.Sprintf("%x", sha256.Sum256([]byte("solotick_locks/"+key)))}
	}
	var n int
	if err := p.admin.Raw(query, args...).Scan(&n).Error; err != nil {
		t.Fatal(err)
	}
	return n
}

// A connection that returns to the pool would keep the lock.
func TestAdvisoryLeavesNoLockBehind(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		a, _ := advisory(t, p, 2)
		h := hold(t, a, request("k"))
		if n := serverLocks(t, p, "k"); n != 1 {
			t.Fatalf("%d session locks while it is held", n)
		}
		if out, err := a.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
			t.Fatal(out, err)
		}
		if n := serverLocks(t, p, "k"); n != 0 {
			t.Errorf("%d session locks after the release", n)
		}
		hold(t, a, request("k"))
		if err := a.Close(); err != nil { // with the key held
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); serverLocks(t, p, "k") != 0; <-time.After(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("a session lock is left after Close")
			}
		}
	})
}

func TestAdvisoryRefusalsLeakNoConnection(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		holder, _ := advisory(t, p, 2)
		hold(t, holder, request("k"))
		a, open := advisory(t, p, 3)
		for range 1000 {
			var held *driver.HeldError
			if _, err := a.Acquire(t.Context(), request("k")); !errors.As(err, &held) {
				t.Fatal(err)
			}
		}
		if n := open(); n > 3 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// The pool ends connections after a second; the lock's is not the pool's meanwhile.
func TestAdvisoryOutlivesThePoolsLifetime(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	for _, kind := range places {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			p := kind.shared(t)
			a, _ := advisory(t, p, 4)
			l, err := locks.New(a, locks.Config{TTL: 2 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			lease, err := l.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			other, _ := advisory(t, p, 2)
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
				var held *driver.HeldError
				if _, err := other.Acquire(t.Context(), request("k")); !errors.As(err, &held) || lease.Err() != nil || serverLocks(t, p, "k") != 1 {
					t.Fatalf("other: %v, lease: %v", err, lease.Err())
				}
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Who stands still past the TTL keeps the key as long as the connection lives, and
// who lost the connection keeps it as long as the row says.
func TestAdvisoryNeedsBothToBeFree(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		still, _ := advisory(t, p, 2)
		h := hold(t, still, request("k"))
		past := "UPDATE solotick_locks SET until_us = 1"
		if err := p.admin.Exec(past).Error; err != nil {
			t.Fatal(err)
		}
		other, _ := advisory(t, p, 2)
		var held *driver.HeldError
		if _, err := other.Acquire(t.Context(), request("k")); !errors.As(err, &held) {
			t.Fatalf("granted beside a living connection: %v", err)
		}
		if _, err := still.Renew(t.Context(), h); !errors.Is(err, driver.ErrNotOurs) {
			t.Errorf("renewal of an ended row: %v", err)
		}

		lost := hold(t, other, request("l"))
		if err := other.Close(); err != nil { // its connection, not its row
			t.Fatal(err)
		}
		third, _ := advisory(t, p, 2)
		if _, err := third.Acquire(t.Context(), request("l")); !errors.As(err, &held) || held.Holder.Token != lost.Token {
			t.Errorf("granted before the row's end: %v", err)
		}
	})
}
