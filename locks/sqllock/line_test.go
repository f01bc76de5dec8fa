package sqllock_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

func closed(t *testing.T, d *sqllock.Driver) *sqllock.Driver {
	t.Helper()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// lasting is a request whose grant outlives any test.
func lasting(key string) driver.Request {
	r := request(key)
	r.TTL = 10 * time.Minute
	return r
}

// waiting waits until so many stand in line for the key.
func waiting(ctx context.Context, t *testing.T, d driver.Inspector, key string, n int) {
	t.Helper()
	for {
		h, err := d.Inspect(ctx, key)
		if err != nil {
			t.Fatalf("%d wait for %q, want %d: %v", h.Waiters, key, n, err)
		}
		if h.Waiters == n {
			return
		}
		<-time.After(10 * time.Millisecond) // real time: a server counts them
	}
}

// In a line that moves, a release is what brings the next one in, and no look.
func TestLineMovesWithoutLooks(t *testing.T) {
	const turns = 30
	eachPlace(t, func(t *testing.T, p *place) {
		ctx, cancel := contextWithin(t, 5*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		var looks, grants [3]int
		for i := range looks {
			db, count := sqlcount.Wrap(p.user(t, 4))
			d := closed(t, newDriver(t, db))
			all.Go(func() {
				for range turns {
					r := lasting("k")
					g, err := d.AcquireQueued(ctx, r)
					if err != nil {
						t.Error(err)
						return
					}
					grants[i]++
					if out, err := d.Release(ctx, driver.Hold{Request: r, Fence: g.Fence}); err != nil || out != driver.ReleasedOK {
						t.Error(out, err)
					}
				}
				for _, q := range count.Queries() {
					if strings.Contains(q, "INSERT INTO solotick_locks") {
						looks[i]++
					}
				}
			})
		}
		all.Wait()
		// Each wait begins with a look. One more in half a second is there for when the
		// line stands still.
		if more := looks[0] + looks[1] + looks[2] - len(looks)*turns; more > turns {
			t.Errorf("%d looks more than waits, in %d hand-overs", more, len(looks)*turns)
		}
	})
}

// Waiters take no more than half of the pool, and those without a place get their keys
// too.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	const keys, conns = 12, 4
	eachPlace(t, func(t *testing.T, p *place) {
		ctx, cancel := contextWithin(t, 5*time.Minute)
		defer cancel()
		holder := closed(t, newDriver(t, p.user(t, 4)))
		db := p.user(t, conns)
		waiter := closed(t, newDriver(t, db))
		pool, err := db.DB()
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var holds []driver.Hold
		for i := range keys {
			key := fmt.Sprint("many", i)
			holds = append(holds, hold(t, holder, lasting(key)))
			all.Go(func() {
				r := lasting(key)
				g, err := waiter.AcquireQueued(ctx, r)
				if err != nil || g.Fence <= holds[i].Fence {
					t.Errorf("key %d: fence %d after %d, %v", i, g.Fence, holds[i].Fence, err)
					return
				}
				if out, err := waiter.Release(ctx, driver.Hold{Request: r, Fence: g.Fence}); err != nil || out != driver.ReleasedOK {
					t.Error(out, err)
				}
			})
		}
		for {
			all, err := holder.List(ctx, "many", keys)
			if err != nil {
				t.Fatal(err)
			}
			places := 0
			for _, h := range all {
				places += h.Waiters
			}
			if places > conns/2 {
				t.Fatalf("%d places of a pool of %d", places, conns)
			}
			if places == conns/2 {
				break
			}
			<-time.After(10 * time.Millisecond) // real time: a server counts them
		}
		for _, h := range holds {
			if out, err := holder.Release(ctx, h); err != nil || out != driver.ReleasedOK {
				t.Error(out, err)
			}
		}
		all.Wait()
		if n := pool.Stats().OpenConnections; n > conns {
			t.Errorf("%d connections, of %d", n, conns)
		}
	})
}

// Who came from the line holds the key without a connection soon after, and hands it
// over all the same.
func TestHolderFromTheLineNeedsNoConnection(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		ctx, cancel := contextWithin(t, 2*time.Minute)
		defer cancel()
		first, db := closed(t, newDriver(t, p.user(t, 4))), p.user(t, 4)
		second, third := closed(t, newDriver(t, db)), closed(t, newDriver(t, p.user(t, 4)))
		queue := func(d *sqllock.Driver) <-chan driver.Hold {
			come := make(chan driver.Hold, 1)
			go func() {
				r := lasting("k")
				g, err := d.AcquireQueued(ctx, r)
				if err != nil {
					t.Error(err)
				}
				come <- driver.Hold{Request: r, Fence: g.Fence}
			}()
			return come
		}
		release := func(d *sqllock.Driver, h driver.Hold) {
			t.Helper()
			if out, err := d.Release(ctx, h); err != nil || out != driver.ReleasedOK {
				t.Fatal(out, err)
			}
		}
		h := hold(t, first, lasting("k"))
		come := queue(second)
		waiting(ctx, t, first, "k", 1)
		release(first, h)
		h = <-come
		come = queue(third)
		waiting(ctx, t, first, "k", 1)
		pool, err := db.DB()
		if err != nil {
			t.Fatal(err)
		}
		for pool.Stats().InUse > 0 {
			if ctx.Err() != nil {
				t.Fatal("the holder still has a connection")
			}
			<-time.After(50 * time.Millisecond) // real time: the connection is closed after seconds
		}
		release(second, h)
		release(third, <-come)
	})
}

// Whoever stood in line for longer than a TTL is granted a whole one: it counts from the
// last look that found the key held, not from when the statement was sent.
func TestGrantFromTheLineIsAWholeOne(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		ctx, cancel := contextWithin(t, time.Minute)
		defer cancel()
		holder, head, last := closed(t, newDriver(t, p.user(t, 4))), closed(t, newDriver(t, p.user(t, 4))), closed(t, newDriver(t, p.user(t, 4)))
		h := hold(t, holder, lasting("k"))
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() {
			r := lasting("k")
			g, err := head.AcquireQueued(ctx, r)
			if err != nil {
				t.Error(err)
				return
			}
			if out, err := head.Release(ctx, driver.Hold{Request: r, Fence: g.Fence}); err != nil || out != driver.ReleasedOK {
				t.Error(out, err)
			}
		})
		waiting(ctx, t, holder, "k", 1)
		r := request("k")
		r.TTL = testTTL
		all.Go(func() {
			g, err := last.AcquireQueued(ctx, r)
			if err != nil {
				t.Error(err)
				return
			}
			if age := time.Since(g.From); age >= 2*r.TTL {
				t.Errorf("it counts from %v ago, and was granted just now", age)
			}
			if _, err := last.Release(ctx, driver.Hold{Request: r, Fence: g.Fence}); err != nil {
				t.Error(err)
			}
		})
		waiting(ctx, t, holder, "k", 2)
		<-time.After(2 * r.TTL) // real time: longer than the grant will live
		if out, err := holder.Release(ctx, h); err != nil || out != driver.ReleasedOK {
			t.Error(out, err)
		}
	})
}

// A process that dies while it waits leaves the line before its turn, which would cost
// a lease for nobody.
func TestDeadWaiterLeavesTheLine(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		ctx, cancel := contextWithin(t, time.Minute)
		defer cancel()
		holder, next := closed(t, newDriver(t, p.user(t, 4))), closed(t, newDriver(t, p.user(t, 4)))
		proxy := faultproxy.Start(t, p.addr)
		db, closer := p.open(p.userDSN(proxy.Addr()), 4)
		dead := newDriver(t, db)
		h := hold(t, holder, lasting("k"))
		var all sync.WaitGroup
		defer all.Wait()
		leave, end := context.WithCancel(ctx)
		defer end()
		wait := func(d *sqllock.Driver) {
			all.Go(func() {
				if _, err := d.AcquireQueued(leave, lasting("k")); err == nil {
					t.Error("granted a held key")
				}
			})
		}
		wait(next)
		waiting(ctx, t, holder, "k", 1)
		wait(dead)
		waiting(ctx, t, holder, "k", 2)
		proxy.Refuse()
		waiting(ctx, t, holder, "k", 1)
		end()
		all.Wait()
		if err := errors.Join(dead.Close(), closer()); err != nil {
			t.Error(err)
		}
		if out, err := holder.Release(ctx, h); err != nil || out != driver.ReleasedOK {
			t.Error(out, err)
		}
	})
}

// A look that the server carried out and that nobody heard of is not forgotten when the
// next one is refused.
func TestWaiterRemembersALookOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		ctx, cancel := contextWithin(t, time.Minute)
		defer cancel()
		other := closed(t, newDriver(t, p.user(t, 4)))
		db, count := sqlcount.Wrap(p.user(t, 4))
		d := closed(t, newDriver(t, db))
		hold(t, other, lasting("k"))
		r := lasting("k")
		looks := 0 // one after the other
		count.Before(func(query string) error {
			if !strings.Contains(query, "INSERT INTO solotick_locks") {
				return nil
			}
			switch looks++; looks {
			case 1:
				return nil
			case 2: // the key becomes free, and the look's answer is lost
				p.deleteRow(t, "k")
				if _, err := other.Acquire(ctx, r); err != nil {
					t.Error(err)
				}
				return errors.New("connection reset by peer")
			default:
				return &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			}
		})
		_, err := d.AcquireQueued(ctx, r)
		if err == nil || ctx.Err() != nil {
			t.Fatal(err)
		}
		if !driver.IsNotApplied(err) {
			if _, err := d.Release(ctx, driver.Hold{Request: r}); err != nil {
				t.Fatal(err)
			}
		}
		if _, left := other.Acquire(ctx, lasting("k")); left != nil {
			t.Errorf("left behind by a wait that ended with %v: %v", err, left)
		}
	})
}

// An acquire of unknown outcome that is carried out while its release is under way, after
// that found nothing and before it looks who has the key, is released all the same.
func TestReleaseMeetsTheAcquireThatComesLate(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		ctx, cancel := contextWithin(t, time.Minute)
		defer cancel()
		other := closed(t, newDriver(t, p.user(t, 4)))
		db, count := sqlcount.Wrap(p.user(t, 4))
		d := closed(t, newDriver(t, db))
		r := lasting("k")
		late := sync.OnceFunc(func() {
			if _, err := other.Acquire(ctx, r); err != nil {
				t.Error(err)
			}
		})
		count.Before(func(query string) error {
			if strings.HasPrefix(query, "SELECT name, token") {
				late()
			}
			return nil
		})
		if out, err := d.Release(ctx, driver.Hold{Request: r}); err != nil || out != driver.ReleasedOK {
			t.Errorf("Release = %v, %v", out, err)
		}
		if _, err := other.Acquire(ctx, lasting("k")); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
}

// oneConnection is a poor pooler: every client's statements go over the same
// connection.
type oneConnection struct{ conn *stdlib.Conn }

type sharedConn struct{ *stdlib.Conn }

func (sharedConn) Close() error { return nil }

func (sharedConn) ResetSession(context.Context) error { return nil }

func (o oneConnection) Connect(context.Context) (sqldriver.Conn, error) {
	return sharedConn{o.conn}, nil
}

func (o oneConnection) Driver() sqldriver.Driver { return stdlib.GetDefaultDriver() }

// Through a pooler a session lock would stay with whoever has the connection next.
func TestNoLineThroughAPooler(t *testing.T) {
	p := places[0].shared(t)
	ctx, cancel := contextWithin(t, time.Minute)
	defer cancel()
	config, err := pgx.ParseConfig(p.userDSN(p.addr))
	if err != nil {
		t.Fatal(err)
	}
	under, err := stdlib.GetConnector(*config).Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer under.Close()
	pool := sql.OpenDB(oneConnection{under.(*stdlib.Conn)})
	defer pool.Close()
	db, err := postgresdb.Over(pool)
	if err != nil {
		t.Fatal(err)
	}
	locked := func() (n int) {
		if err := p.admin.Raw("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&n).Error; err != nil {
			t.Fatal(err)
		}
		return n
	}
	holder := closed(t, newDriver(t, p.user(t, 4)))
	for name, d := range map[string]*sqllock.Driver{"found out": newDriver(t, db), "told": newPooled(t, db)} {
		if _, line := driver.As[driver.Queuer](d); line == (name == "told") {
			t.Errorf("%s: keeps a line: %v", name, line)
		}
		h := hold(t, holder, lasting("k"))
		come := make(chan error, 1)
		r := lasting("k")
		go func() {
			_, err := d.AcquireQueued(ctx, r)
			come <- err
		}()
		until := time.After(time.Second) // real time: some looks
		for done := false; !done; {
			select {
			case <-until:
				done = true
			case <-time.After(20 * time.Millisecond):
				if n := locked(); n > 0 {
					t.Fatalf("%s: %d session locks", name, n)
				}
			}
		}
		if out, err := holder.Release(ctx, h); err != nil || out != driver.ReleasedOK {
			t.Fatal(out, err)
		}
		if err := <-come; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if out, err := d.Release(ctx, driver.Hold{Request: r}); err != nil || out != driver.ReleasedOK {
			t.Error(out, err)
		}
	}
}

func newPooled(t *testing.T, db *gorm.DB) *sqllock.Driver {
	t.Helper()
	d, err := sqllock.NewDriver(db, sqllock.Pooled())
	if err != nil {
		t.Fatal(err)
	}
	return d
}
