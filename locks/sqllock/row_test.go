package sqllock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

// What mode row promises beyond, or beside, the suite of lockstest.

func (p *place) rowDriver(t *testing.T, addr string) driver.Driver {
	t.Helper()
	d := p.driver(t, addr, sqllock.ModeRow)
	t.Cleanup(func() {
		if err := d.(interface{ Close() error }).Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func refused(t *testing.T, d driver.Driver, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var held *driver.HeldError
	if _, err := d.Acquire(ctx, request(key)); !errors.As(err, &held) || held.Holder.Key != key {
		t.Fatalf("acquire of a held key: %v", err)
	}
}

func TestRowHoldsAKey(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		a, b := p.rowDriver(t, p.addr), p.rowDriver(t, p.addr)
		h := hold(t, a, request("k"))
		refused(t, b, "k")
		refused(t, a, "k")
		if g, err := a.Acquire(t.Context(), h.Request); err != nil || g.Fence != h.Fence {
			t.Errorf("the same token again: %+v, %v, had fence %d", g, err, h.Fence)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, acquire := a.Acquire(ended, h.Request)
		_, renew := a.Renew(ended, h)
		_, release := a.Release(ended, h)
		if acquire == nil || renew == nil || release == nil || errors.Is(renew, driver.ErrNotOurs) {
			t.Errorf("with an ended context: %v, %v, %v", acquire, renew, release)
		}
		if _, err := a.Renew(t.Context(), h); err != nil {
			t.Errorf("renew: %v", err)
		}
		other := h
		other.Token = driver.NewToken()
		if _, err := a.Renew(t.Context(), other); !errors.Is(err, driver.ErrNotOurs) {
			t.Errorf("renewal of another token: %v", err)
		}
		if _, err := b.Renew(t.Context(), h); err == nil || errors.Is(err, driver.ErrNotOurs) {
			t.Errorf("renewal by another process: %v", err)
		}
		if out, err := b.Release(t.Context(), other); err != nil || out != driver.ReleasedOther {
			t.Errorf("release of another's: %v, %v", out, err)
		}
		for _, want := range []driver.Released{driver.ReleasedOK, driver.ReleasedGone} {
			if out, err := a.Release(t.Context(), h); err != nil || out != want {
				t.Errorf("release: %v, %v, want %v", out, err, want)
			}
		}
		if _, err := a.Renew(t.Context(), h); !errors.Is(err, driver.ErrNotOurs) {
			t.Errorf("renewal after the release: %v", err)
		}
		next := hold(t, b, request("k"))
		if next.Fence <= h.Fence {
			t.Errorf("fence %d after %d", next.Fence, h.Fence)
		}
		if _, err := b.Release(t.Context(), next); err != nil {
			t.Error(err)
		}
	})
}

// Of those who use a key for the first time at the same moment one gets it, and the
// others hear at once that it is held: the row that the winner has made and holds lets
// nobody wait for it.
func TestRowOfANewKeyLetsNobodyWait(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		drivers := make([]driver.Driver, 6)
		for i := range drivers {
			drivers[i] = p.rowDriver(t, p.addr)
		}
		for round := range 10 {
			var all sync.WaitGroup
			errs := make([]error, len(drivers))
			for i, d := range drivers {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					_, errs[i] = d.Acquire(ctx, request(fmt.Sprint("new", round)))
				})
			}
			all.Wait()
			won := 0
			for _, err := range errs {
				if _, held := errors.AsType[*driver.HeldError](err); err == nil {
					won++
				} else if !held {
					t.Errorf("round %d: %v", round, err)
				}
			}
			if won != 1 {
				t.Errorf("round %d: %d have it", round, won)
			}
		}
	})
}

// A rollback gives the row's number back; the fence grows all the same.
func TestRowFenceGrowsOverARollback(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		d := p.rowDriver(t, p.addr)
		last := int64(0)
		for range 3 {
			r := request("k")
			r.TTL = time.Second
			h := hold(t, d, r)
			if h.Fence <= last {
				t.Errorf("fence %d after %d", h.Fence, last)
			}
			last = h.Fence
			p.endConnections(t)
			if _, err := d.Renew(t.Context(), h); !errors.Is(err, driver.ErrNotOurs) {
				t.Errorf("renewal over a connection that was ended: %v", err)
			}
		}
	})
}

// endConnections ends what the user with few rights has open, and waits for it.
func (p *place) endConnections(t *testing.T) {
	t.Helper()
	ids := "SELECT pid FROM pg_stat_activity WHERE usename = 'locker' AND datname = current_database()"
	end := "SELECT pg_terminate_backend(?)"
	if p.name == "mariadb" {
		ids = "SELECT id FROM information_schema.processlist WHERE user = 'locker' AND db = DATABASE()"
		end = "KILL ?"
	}
	for {
		var found []int64
		if err := p.admin.Raw(ids).Scan(&found).Error; err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			return
		}
		for _, id := range found {
			_ = p.admin.Exec(end, id).Error // it may have ended since
		}
	}
}

// A process that dies holds nothing; one that stands still, or is cut off, holds the
// row until the server misses it.
func TestRowEndsWithItsTTL(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		proxy := faultproxy.Start(t, p.addr)
		cut, other := p.rowDriver(t, proxy.Addr()), p.rowDriver(t, p.addr)
		r := request("k")
		r.TTL = time.Second
		start := time.Now()
		h := hold(t, cut, r)
		proxy.BlackHole(faultproxy.Both)
		wait, cancel := contextWithin(t, 20*time.Second)
		defer cancel()
		for {
			g, err := other.Acquire(wait, request("k"))
			if err == nil {
				if time.Since(start) < r.TTL {
					t.Errorf("passed over after %v of %v", time.Since(start), r.TTL)
				}
				if g.Fence <= h.Fence {
					t.Errorf("fence %d after %d", g.Fence, h.Fence)
				}
				break
			}
			if _, held := errors.AsType[*driver.HeldError](err); !held {
				t.Fatal(err)
			}
			<-time.After(20 * time.Millisecond) // real time: a server counts it
		}
		proxy.Pass()
	})
}

// TestRowLearnsFromTheReleaseThatTheServerEndedIt: the server's own time was shorter, so
// the transaction had ended without the driver's knowledge.
func TestRowLearnsFromTheReleaseThatTheServerEndedIt(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		if p.name != "postgres" {
			return // MariaDB closes the connection without a word, so the outcome is unknown
		}
		d, err := sqllock.NewRow(p.user(t, 2))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		other := p.rowDriver(t, p.addr)
		for _, want := range []driver.Released{driver.ReleasedGone, driver.ReleasedOther} {
			h := hold(t, d, request("k"))
			if err := d.Impatient(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			next := request("k")
			g, err := other.Acquire(t.Context(), next)
			for held := (*driver.HeldError)(nil); errors.As(err, &held); {
				<-time.After(5 * time.Millisecond) // real time: a server counts it
				g, err = other.Acquire(t.Context(), next)
			}
			if err == nil && want == driver.ReleasedGone {
				_, err = other.Release(t.Context(), driver.Hold{Request: next, Fence: g.Fence})
			}
			if err != nil {
				t.Fatal(err)
			}
			if out, err := d.Release(t.Context(), h); err != nil || out != want {
				t.Errorf("release: %v, %v; want %v", out, err, want)
			}
		}
	})
}

func TestRowCountsUnderTheLock(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		var all sync.WaitGroup
		count := 0 // guarded by the lock alone: the race detector looks on
		var inside sync.Mutex
		for range 3 {
			l, err := locks.New(p.rowDriver(t, p.addr), locks.Config{TTL: 10 * time.Second, Poll: 20 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			for range 2 {
				all.Go(func() {
					for range 5 {
						err := l.Do(t.Context(), "k", func(context.Context, *locks.Lease) error {
							if !inside.TryLock() {
								t.Error("two are inside")
								return nil
							}
							count++
							inside.Unlock()
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		if count != 30 {
			t.Errorf("count %d of 30", count)
		}
	})
}

// Under REPEATABLE READ, InnoDB's default, a look at a key without a row locks the gap
// that it would stand in, and keys beside it could not be made by anybody.
func TestRowLocksNoGap(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		if p.name != "mariadb" {
			t.Skip("has no locks on gaps")
		}
		d := p.rowDriver(t, p.addr)
		hold(t, d, request("k"))
		var levels []string
		if err := p.admin.Raw("SELECT trx_isolation_level FROM information_schema.innodb_trx JOIN information_schema.processlist p ON p.id = trx_mysql_thread_id WHERE p.db = DATABASE()").Scan(&levels).Error; err != nil {
			t.Fatal(err)
		}
		if len(levels) != 1 || levels[0] != "READ COMMITTED" {
			t.Errorf("the transaction of a held key is at %q, want READ COMMITTED", levels)
		}
	})
}

// A connection comes back to the pool as it was.
func TestRowLeavesTheConnectionAsItWas(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		db := p.user(t, 1)
		setting := map[string]string{"postgres": "SHOW idle_in_transaction_session_timeout", "mariadb": "SELECT CONCAT(@@session.wait_timeout, ' ', @@session.tx_isolation)"}[p.name]
		read := func() (s string) {
			if err := db.Raw(setting).Scan(&s).Error; err != nil {
				t.Fatal(err)
			}
			return s
		}
		before := read()
		d, err := sqllock.NewRow(db)
		if err != nil {
			t.Fatal(err)
		}
		p.makeRow(t, "k")
		h := hold(t, d, request("k"))
		if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
			t.Fatal(out, err)
		}
		if after := read(); after != before {
			t.Errorf("the pool's connection has %q, had %q", after, before)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// makeRow makes a key's row.
func (p *place) makeRow(t *testing.T, key string) {
	t.Helper()
	d := newDriver(t, p.admin)
	if _, err := d.Release(t.Context(), hold(t, d, request(key))); err != nil {
		t.Fatal(err)
	}
}

// A lease keeps mode row out, and is told.
func TestRowRespectsALease(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		lease := newDriver(t, p.user(t, 2))
		h := hold(t, lease, request("k"))
		d := p.rowDriver(t, p.addr)
		var held *driver.HeldError
		if _, err := d.Acquire(t.Context(), request("k")); !errors.As(err, &held) || held.Holder.Token != h.Token || held.Holder.Remaining <= 0 {
			t.Errorf("acquire of a leased key: %v", err)
		}
		if out, err := d.Release(t.Context(), driver.Hold{Request: request("k")}); err != nil || out != driver.ReleasedOther {
			t.Errorf("release of a leased key: %v, %v", out, err)
		}
	})
}

func TestRowAndAdvisoryNeedAServer(t *testing.T) {
	db := openDB(t, t.TempDir()+"/locks.db")
	if _, err := sqllock.NewRow(db); err == nil {
		t.Error("mode row on SQLite was accepted")
	}
	if _, err := sqllock.NewAdvisory(db); err == nil {
		t.Error("mode advisory on SQLite was accepted")
	}
	if err := (sqllock.Settings{Mode: "rows"}).Validate(); err == nil {
		t.Error("a mode that is none was accepted")
	}
}
