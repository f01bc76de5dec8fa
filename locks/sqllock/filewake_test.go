package sqllock_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libtnb/sqlite"
	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

// seldom is a locker that would not look again within the test.
var seldom = locks.Config{TTL: 2 * time.Hour, Poll: time.Hour, RequestTimeout: time.Minute}

// asked waits until the driver behind counter has asked for a key n times.
func asked(t *testing.T, count *sqlcount.Counter, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); acquires(count) < n; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("asked %d times, want %d", acquires(count), n)
		}
	}
}

func acquires(c *sqlcount.Counter) int { return sent(c, "INSERT INTO solotick_locks") }

// looks are those at the rows that are waited for.
func looks(c *sqlcount.Counter) int { return sent(c, "AND name IN") }

func sent(c *sqlcount.Counter, text string) (n int) {
	for _, q := range c.Queries() {
		if strings.Contains(q, text) {
			n++
		}
	}
	return n
}

// Two processes hand a key to each other over the file alone: neither would look again
// for an hour.
func TestReleaseWakesAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	var lockers [2]*locks.Locker
	var counts [2]*sqlcount.Counter
	for i := range lockers {
		db, count := sqlcount.Wrap(openDB(t, path))
		lockers[i], counts[i] = locker(t, newDriver(t, db), seldom), count
	}
	lease, err := lockers[0].TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextWithin(t, 2*time.Minute)
	defer cancel()
	var longest time.Duration
	for i := range 10 {
		waiter := (i + 1) % 2
		counts[waiter].Reset()
		come := make(chan *locks.Lease, 1)
		go func() {
			next, err := lockers[waiter].Acquire(ctx, "k")
			if err != nil {
				t.Error(err)
			}
			come <- next
		}()
		asked(t, counts[waiter], 2) // once before it listens, and once after
		for i%3 == 0 && looks(counts[waiter]) < 6 && ctx.Err() == nil {
			<-time.After(time.Millisecond) // those of its coming are over: only the file tells now
		}
		began := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if lease = <-come; lease == nil {
			t.FailNow()
		}
		longest = max(longest, time.Since(began))
	}
	t.Logf("ten hand-overs, of which the longest took %v", longest)
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Whatever is written to the file, a waiter's driver reads it 20 times a second at most,
// and asks for the key no more often than without hints.
func TestBusyFileIsLookedAtSeldom(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	busy := newDriver(t, openDB(t, path))
	h, other := hold(t, busy, request("k")), hold(t, busy, request("other"))
	db, count := sqlcount.Wrap(openDB(t, path))
	waiting := locker(t, newDriver(t, db), seldom)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 10 { // of one driver: they share its looks
		key := "k"
		if i > 0 {
			key = fmt.Sprint("k", i)
			hold(t, busy, request(key))
		}
		wg.Go(func() { _, _ = waiting.Acquire(ctx, key) })
	}
	asked(t, count, 20)
	count.Reset()
	began, writes := time.Now(), 0
	for time.Since(began) < 1500*time.Millisecond {
		for _, h := range []driver.Hold{h, other} {
			if _, err := busy.Renew(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			writes++
		}
	}
	n, took := looks(count), time.Since(began)
	t.Logf("%d looks of ten waiters at %d writes in %v", n, writes, took)
	if most := int(took/(50*time.Millisecond)) + 4; n == 0 || n > most {
		t.Errorf("%d looks in %v, want %d at most, and some", n, took, most)
	}
	if n := acquires(count); n != 0 {
		t.Errorf("it asked %d times for a key that is held", n)
	}
	cancel()
	wg.Wait()
}

// What waiters ask is no sign to other waiters, or there would be no end of it.
func TestLooksAreNoSign(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	h := hold(t, newDriver(t, openDB(t, path)), request("k"))
	db, count := sqlcount.Wrap(openDB(t, path))
	d := newDriver(t, db)
	defer func() { _ = d.Close() }()
	hint, stop, err := d.Wake(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	quiet := func() int { // as many as follow one sign, or what came meanwhile
		for end := time.Now().Add(time.Minute); ; {
			before := looks(count)
			<-time.After(time.Second) // real time: the pauses of the looks add up to a third
			if n := looks(count); n == before && n > 0 {
				return n
			}
			if time.Now().After(end) {
				t.Fatal("the looks have no end")
			}
		}
	}
	other := newDriver(t, openDB(t, path))
	before := quiet()
	for range 50 {
		if _, err := other.Acquire(t.Context(), request("k")); err == nil {
			t.Fatal("granted twice")
		}
		if _, err := other.Survey(t.Context(), []string{"k"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := quiet(); n != before {
		t.Errorf("%d looks at what wrote nothing", n-before)
	}
	if len(hint) != 0 {
		t.Error("a hint although the key is held")
	}
	if _, err := other.Renew(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if n := quiet(); n == before || n > before+6 {
		t.Errorf("%d looks at one renewal, want one to six", n-before)
	}
}

// Of 64 processes that wait for one key few ask for it when it is released.
func TestHerdAtAFileIsSmall(t *testing.T) {
	t.Parallel()
	const waiters = 64
	path := filepath.Join(t.TempDir(), "locks.db")
	lease, err := locker(t, newDriver(t, openDB(t, path)), seldom).TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	db, count := sqlcount.Wrap(openDB(t, path))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	come := make(chan *locks.Lease, waiters)
	for range waiters {
		l := locker(t, newDriver(t, db), seldom)
		wg.Go(func() {
			if next, err := l.Acquire(ctx, "k"); err == nil {
				come <- next
			}
		})
	}
	asked(t, count, 2*waiters)
	count.Reset()
	const turns = 5
	for range turns {
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease = <-come
	}
	t.Logf("%d requests of %d waiters, and %d looks, for %d hand-overs", acquires(count), waiters, looks(count), turns)
	if n := acquires(count); n > turns*waiters {
		t.Errorf("%d requests of %d waiters for %d hand-overs", n, waiters, turns)
	}
	cancel()
	wg.Wait()
}

// Where no file can be watched, the waiters of this process are told, and others look.
func TestWithoutAFileWaitersLook(t *testing.T) {
	t.Parallel()
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{SkipDefaultTransaction: true})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1) // each has a memory of its own
	t.Cleanup(func() { _ = pool.Close() })
	d := newDriver(t, db)
	defer func() { _ = d.Close() }()
	h := hold(t, d, request("k"))
	hint, stop, err := d.Wake(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
		t.Fatal(out, err)
	}
	select {
	case <-hint:
	case <-time.After(time.Minute):
		t.Error("nobody was told of a release of the same driver")
	}

	lease, err := locker(t, newDriver(t, db), seldom).TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	often := seldom
	often.Poll = 10 * time.Millisecond
	waiting, come := locker(t, newDriver(t, db), often), make(chan error, 1)
	go func() {
		_, err := waiting.Acquire(t.Context(), "k")
		come <- err
	}()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-come; err != nil {
		t.Error(err)
	}
}

// The log goes with the last connection, and comes anew with the next: it is watched
// again.
func TestLogThatIsMadeAnewIsWatched(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	w := sqllock.WatchLog(path)
	defer w.Close()
	for i := range 3 {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.Watch()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("frame"); err != nil {
			t.Fatal(err)
		}
		for told := false; !told; {
			select {
			case e := <-w.Events():
				told = e.Has(sqllock.Written)
			case <-time.After(time.Minute):
				t.Fatalf("round %d: nothing was told of a write", i)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
