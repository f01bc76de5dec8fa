package sqllock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// Advisory is the lock backend with a session lock (pg_advisory_lock, GET_LOCK)
// beside the lease row: a key is granted only where both are free. So a holder
// that stands still past its TTL keeps the key for some time more, and one whose
// connection broke keeps it until its lease ends. All keys of one TTL have their
// session locks on one connection. It is safe for concurrent use.
type Advisory struct {
	rows
	sql sessionSQL

	mu       sync.Mutex
	claims   map[string]*claim // by key: what this driver has or is about to have
	sessions map[time.Duration]*session
	ghosts   map[int64]time.Time // connections given up, until the server has ended them for certain
	sweep    *time.Timer         // to the end of the first claim that nobody renewed
	sweepAt  time.Time
	closed   bool
	sweeping sync.WaitGroup
}

var (
	_ driver.Driver       = (*Advisory)(nil)
	_ driver.BatchRenewer = (*Advisory)(nil)
	_ driver.Inspector    = (*Advisory)(nil)
	_ driver.Limiter      = (*Advisory)(nil)
)

// claim is a key whose session lock this driver has for a token. Session locks
// belong to a connection, not to a token, so it is the claim that keeps two tokens
// of one driver apart.
type claim struct {
	token driver.Token
	fence int64 // 0 until the row is known to be granted
	s     *session
	until time.Time // then the session lock is given back, unless renewed
	busy  bool      // an acquire is under way
}

// NewAdvisory returns a driver with session locks on an open database of
// PostgreSQL, MariaDB or MySQL, without a pooler that shares connections between
// clients (PgBouncer's transaction mode) in between. The caller closes it before
// the database. The pool must allow two connections, and one more for every further
// TTL that is in use at a time.
func NewAdvisory(db *gorm.DB, opts ...Option) (*Advisory, error) {
	a := &Advisory{claims: map[string]*claim{}, sessions: map[time.Duration]*session{}, ghosts: map[int64]time.Time{}}
	if err := a.open(db, opts); err != nil {
		return nil, err
	}
	var err error
	if a.sql, err = newSessionSQL(a.conn.Dialect); err != nil {
		return nil, err
	}
	if pool, err := db.DB(); err == nil && pool.Stats().MaxOpenConnections == 1 {
		return nil, errors.New("sqllock: mode advisory: max_conns: 1 is too few, the session locks take a connection for themselves: allow 2 or more")
	}
	return a, nil
}

// Acquire implements [driver.Driver]: the session lock, then the row.
func (a *Advisory) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("sqllock: acquire: %w", context.Cause(ctx)))
	}
	start := time.Now()
	c, err := a.reserve(ctx, r)
	if err != nil {
		return driver.Grant{}, err
	}
	g, err := a.acquire(ctx, a.conn, r)
	var held *driver.HeldError
	switch {
	case err == nil, !errors.As(err, &held) && !driver.IsNotApplied(err):
		// Perhaps granted, and then it needs its session lock.
		a.settle(c, g.Fence, start.Add(r.TTL))
	default:
		a.drop(ctx, c.s, map[string]*claim{r.Key: c})
	}
	return g, err
}

// reserve takes the session lock of a request. Where that is taken, it tells who
// holds the key; and where the row says that nobody does, somebody is about to
// write it or has just freed it, hence a few more tries.
func (a *Advisory) reserve(ctx context.Context, r driver.Request) (*claim, error) {
	delay := backoff.Policy{Base: 4 * time.Millisecond, Max: 64 * time.Millisecond}
	for n := 0; ; n++ {
		seen := a.claimed(r.Key)
		c, err := a.claim(r)
		if err != nil {
			return nil, driver.NotApplied(err)
		}
		if c != nil {
			got, err := a.take(ctx, c.s, r.Key)
			if got || err == nil && mutation.On("advisory-lock") {
				return c, nil
			}
			a.forget(r.Key, c)
			if err != nil { // whatever the server did ended with the connection
				return nil, driver.NotApplied(fmt.Errorf("sqllock: acquire: session lock: %w", a.conn.Explain(err)))
			}
		}
		h, err := a.inspect(ctx, a.conn, r.Key)
		switch {
		case err == nil:
			return nil, &driver.HeldError{Holder: h}
		case !errors.Is(err, driver.ErrFree):
			return nil, driver.NotApplied(err)
		case a.dropOutlived(ctx, r.Key, seen):
		case n == 8 || backoff.Wait(ctx, delay.Delay(n)) != nil:
			// It stands still past its TTL.
			return nil, &driver.HeldError{Holder: driver.Holder{Key: r.Key}}
		}
	}
}

// claimed is the claim that this driver has on the key; the zero claim if none.
func (a *Advisory) claimed(key string) claim {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.claims[key]; c != nil {
		return *c
	}
	return claim{}
}

// dropOutlived drops this driver's claim on a key whose row was found free after the
// claim was seen, and reports whether there was one: the lease was given back through
// another driver, which could not know of it.
func (a *Advisory) dropOutlived(ctx context.Context, key string, seen claim) bool {
	a.mu.Lock()
	c := a.claims[key]
	outlived := c != nil && *c == seen && !c.busy
	a.mu.Unlock()
	if outlived {
		a.drop(ctx, c.s, map[string]*claim{key: c})
	}
	return outlived
}

// claim returns the claim of the request, made or found; nil if another token has
// the key.
func (a *Advisory) claim(r driver.Request) (*claim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errClosed
	}
	c := a.claims[r.Key]
	switch {
	case c == nil:
		c = &claim{token: r.Token, s: a.session(r.TTL)}
		a.claims[r.Key] = c
	case c.token != r.Token:
		return nil, nil
	case c.busy:
		return nil, errors.New("sqllock: acquire: a request with this token is under way")
	}
	c.busy = true
	return c, nil
}

var errClosed = errors.New("sqllock: the driver is closed")

// settle ends an acquire that leaves a claim.
func (a *Advisory) settle(c *claim, fence int64, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.busy, c.until, c.fence = false, until, cmp.Or(fence, c.fence)
	a.sweepBy(until)
}

// forget removes a claim that has no session lock.
func (a *Advisory) forget(key string, c *claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.claims[key] == c {
		delete(a.claims, key)
	}
}

// drop gives the session locks of claims back. What a context that has ended leaves
// undone, the sweep does.
func (a *Advisory) drop(ctx context.Context, s *session, claims map[string]*claim) {
	a.mu.Lock()
	for key, c := range claims {
		if a.claims[key] == c {
			delete(a.claims, key)
		}
	}
	a.mu.Unlock()
	if ctx.Err() == nil && a.untake(ctx, s, slices.Collect(maps.Keys(claims))) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	again := time.Now()
	for key, c := range claims {
		if a.claims[key] == nil {
			c.busy, c.until = false, again
			a.claims[key] = c
		}
	}
	a.sweepBy(again)
}

// Renew implements [driver.Driver] as RenewBatch does.
func (a *Advisory) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if err := a.RenewBatch(ctx, []driver.Hold{h})[0]; err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: h.Fence}, nil
}

// RenewBatch implements [driver.BatchRenewer]: it renews the rows, and then asks the
// connection whether it still has the session locks. The row decides. A lease
// whose session lock was lost with its connection goes on as a row alone, and gets
// a new one where that is free.
func (a *Advisory) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	start := time.Now()
	errs := a.renewAll(ctx, holds)
	keep, gone := map[*session][]string{}, claimsOf{}
	a.mu.Lock()
	for i, h := range holds {
		c := a.claims[h.Key]
		mine := c != nil && c.token == h.Token && !c.busy
		switch {
		case errs[i] == nil && c == nil && !a.closed:
			c = &claim{token: h.Token, s: a.session(h.TTL)}
			a.claims[h.Key] = c
			fallthrough
		case errs[i] == nil && mine:
			c.fence, c.until = h.Fence, start.Add(h.TTL)
			keep[c.s] = append(keep[c.s], h.Key)
			a.sweepBy(c.until)
		case errors.Is(errs[i], driver.ErrNotOurs) && mine && c.fence == h.Fence:
			gone.add(h.Key, c)
		}
	}
	a.mu.Unlock()
	if end, ok := ctx.Deadline(); ok { // the answer is known, and should not be late for this
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	for s, keys := range keep {
		a.mind(ctx, s, keys)
	}
	for s, claims := range gone {
		a.drop(ctx, s, claims)
	}
	return errs
}

// Release implements [driver.Driver]: the session lock first, so that whoever is
// woken by the row finds it free.
func (a *Advisory) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if err := ctx.Err(); err != nil {
		return 0, driver.NotApplied(fmt.Errorf("sqllock: release: %w", context.Cause(ctx)))
	}
	a.mu.Lock()
	c := a.claims[h.Key]
	mine := c != nil && c.token == h.Token && !c.busy && (h.Fence == 0 || h.Fence == c.fence)
	a.mu.Unlock()
	if mine {
		a.drop(ctx, c.s, map[string]*claim{h.Key: c})
	}
	// Also where an earlier try has dropped the claim: the connection that it gave up
	// may still have the lock, and others would be refused a key that was given back.
	if !mutation.On("advisory-ghost") {
		a.reap(ctx, h.Key)
	}
	return a.release(ctx, a.conn, h)
}

// ForceRelease implements [driver.Inspector]: it frees the row, ends the connection
// that has the session lock, and waits until the lock is free. Other keys with
// their session locks on that connection go on as rows, and get new ones with
// their next renewal. It needs the same database user as the holder, or one that
// may end others' connections.
func (a *Advisory) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	out, err := a.rows.ForceRelease(ctx, key)
	if err != nil {
		return out, err
	}
	if _, err := a.sql.kick(ctx, a.conn, a.name(key), func(int64) bool { return true }); err != nil {
		return 0, fmt.Errorf("sqllock: force release: the row is free, the holder's connection could not be ended: %w", a.conn.Explain(err))
	}
	return out, nil
}

// sweepBy has the sweep run at t at the latest. The caller holds mu.
func (a *Advisory) sweepBy(t time.Time) {
	if a.closed || !a.sweepAt.IsZero() && !t.Before(a.sweepAt) {
		return
	}
	a.sweepAt = t
	if a.sweep == nil {
		a.sweep = time.AfterFunc(time.Until(t), a.over)
	} else {
		a.sweep.Reset(time.Until(t))
	}
}

// claimsOf are claims by session and key.
type claimsOf map[*session]map[string]*claim

func (m claimsOf) add(key string, c *claim) {
	if m[c.s] == nil {
		m[c.s] = map[string]*claim{}
	}
	m[c.s][key] = c
}

// over gives back the session locks of claims that nobody renewed: their rows have
// ended.
func (a *Advisory) over() {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	a.sweeping.Add(1)
	defer a.sweeping.Done()
	now := time.Now()
	ended := claimsOf{}
	var next time.Time
	for key, c := range a.claims {
		switch {
		case c.busy:
		case !now.Before(c.until):
			ended.add(key, c)
		case next.IsZero() || c.until.Before(next):
			next = c.until
		}
	}
	a.sweepAt = time.Time{}
	if !next.IsZero() {
		a.sweepBy(next)
	}
	a.mu.Unlock()
	for s, claims := range ended {
		ctx, cancel := context.WithTimeout(context.Background(), sweepLimit) //nolint:forbidigo // a root: nobody asked for this
		a.drop(ctx, s, claims)
		cancel()
	}
}

// sweepLimit bounds what a sweep asks; a connection that does not answer is closed.
const sweepLimit = time.Second

// Close closes the connections of what is still held; the rows end with their TTL.
// It leaves the database open.
func (a *Advisory) Close() error {
	a.mu.Lock()
	a.closed = true
	if a.sweep != nil {
		a.sweep.Stop()
	}
	left := a.sessions
	a.sessions, a.claims = map[time.Duration]*session{}, map[string]*claim{}
	a.mu.Unlock()
	for _, s := range left {
		s.use <- struct{}{} // what is under way has a time limit
		s.kill()
		s.closed = true
		<-s.use
	}
	a.sweeping.Wait()
	return nil
}
